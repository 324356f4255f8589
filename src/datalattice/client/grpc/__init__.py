"""gRPC: the actions of a service, called over its gRPC door.

    with GrpcClient("data/doors/grpc.sock") as client:
        client.call(OfferRecords(topic="log", values=("hello",)))
        client.store(store_id).put(key=b"a", value=b"b")

It needs the extra `doors`. Source: docs/grpc.md.
"""

try:
    import grpc  # noqa: F401 - imported first, so that the error names the extra
except ImportError as error:
    raise ImportError(
        f"gRPC is not usable ({error}): pip install 'datalattice[doors]'", name=error.name
    ) from error

from datalattice.client.calling import Token as Token
from datalattice.client.grpc.blocking import GrpcClient as GrpcClient, GrpcStream as GrpcStream
from datalattice.client.grpc.channels import (
    AUTHORIZATION as AUTHORIZATION,
    CODE_KEY as CODE_KEY,
    MESSAGE_SIZES as MESSAGE_SIZES,
    REQUEST_ID_KEY as REQUEST_ID_KEY,
    RESUME_KEY as RESUME_KEY,
    RETRY_KEY as RETRY_KEY,
)
from datalattice.client.grpc.waiting import AsyncGrpcClient as AsyncGrpcClient
