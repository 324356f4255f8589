"""gRPC: the service over gRPC, described by reflection.

It needs the extra `doors`. Source: docs/grpc.md.
"""

try:
    import grpc  # noqa: F401 - imported first, so that the error names the extra
    import grpc_reflection  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"gRPC is not usable ({error}): pip install 'datalattice[doors]'", name=error.name
    ) from error

from datalattice.api.grpc.door import (
    GrpcAuthenticate as GrpcAuthenticate,
    GrpcDoor as GrpcDoor,
    GrpcLimits as GrpcLimits,
    GrpcLoop as GrpcLoop,
    socket_caller as socket_caller,
)
