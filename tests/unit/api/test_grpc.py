"""The gRPC door, from outside: actions, errors, streams, reflection, machines, hostile callers."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import aio
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tests.unit.api.serving import Served, serving

import datalattice
from datalattice.actions import (
    ACTIONS,
    PIECE_BYTES_MAX,
    Action,
    ActionKind,
    ActionRequest,
    CreateStore,
    DecodeValue,
    FollowTopic,
    GetNodeStatus,
    GetStore,
    GetValue,
    ListTopics,
    MakeDirectory,
    NodeInfo,
    OfferRecords,
    PutValue,
    QueueRecord,
    ReadRecords,
    WriteFile,
)
from datalattice.actions.formats import HexFormat
from datalattice.api.grpc import GrpcDoor, GrpcLimits, GrpcLoop
from datalattice.cells import encode
from datalattice.client import Client, StoreMethods
from datalattice.client.grpc import (
    CODE_KEY,
    RESUME_KEY,
    RETRY_KEY,
    AsyncGrpcClient,
    GrpcClient,
)
from datalattice.errors import (
    Backpressure,
    BadFormat,
    DataLatticeError,
    Draining,
    LimitExceeded,
    NoSuchPath,
    PeerUnavailable,
    RateLimited,
    Timeout,
    Unauthenticated,
    Unauthorized,
    UnsupportedOperation,
    UsageError,
)
from datalattice.service import Service, Streamed
from datalattice.service.access import ANONYMOUS, BadCredential, Principal
from datalattice.testing.polling import LIMIT_S, until

SOCKET = Principal(None, "socket")


@pytest.fixture
def node() -> Iterator[Any]:
    with datalattice.open(":memory:") as opened:
        yield opened


@pytest.fixture
def service(node: Any) -> Service:
    return Service(node)


@pytest.fixture
def served(service: Service) -> Iterator[Served]:
    with serving(service) as door:
        yield door


@pytest.fixture
def client(served: Served) -> Iterator[GrpcClient]:
    with GrpcClient(served.path) as made:
        yield made


def bare(action: Action) -> ActionRequest[Any]:
    """Return a request in which nothing is given but what must have a length."""
    given: dict[str, Any] = {}
    for field in action.request.declared():
        size = getattr(field.codec, "_size", None)
        if isinstance(field.codec, HexFormat) and size and not field.repeated:
            given[field.name] = b"\x07" * size
    return action.request(**given)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DataLatticeError as error:
        return type(error), str(error)


def first(stream: Any) -> Any:
    with stream as items:
        return next(iter(items))


@pytest.mark.parametrize("name", list(ACTIONS))
def test_every_action_answers_through_the_door_as_in_the_process(
    name: str, service: Service, client: GrpcClient
) -> None:
    action = ACTIONS[name]
    request = bare(action)
    if action.kind is ActionKind.STREAM:
        if name == "lattice.watch":  # the one that begins with an item
            inside: Any = first(service.stream(request, SOCKET))
            assert first(client.stream(request)) == inside
            return
        inside = outcome(lambda: service.stream(request, SOCKET))
        assert outcome(lambda: first(client.stream(request))) == inside
        return
    inside = outcome(lambda: service.call(request, SOCKET))
    outside = outcome(lambda: client.call(request))
    if isinstance(inside, NodeInfo) and isinstance(outside, NodeInfo):
        inside, outside = replace(inside, ts=0), replace(outside, ts=0)  # the time of the answer
    if action.kind is ActionKind.QUERY:
        assert outside == inside
    else:  # done a second time, it may find less to do
        assert type(outside) is type(inside)
        if isinstance(inside, tuple):
            assert outside == inside


def test_records_are_written_and_read(client: GrpcClient, node: Any) -> None:
    offered = client.call(OfferRecords(topic="log", values=("a", 7, None)))
    assert (offered.spans[0].start, offered.spans[0].end) == (0, 3)
    page = client.call(ReadRecords(topic="log"))
    assert [record.value for record in page.records] == ["a", 7, None]
    assert node.queue("log")[0] == "a"


# --- errors -----------------------------------------------------------------------------------


def raw(client: GrpcClient, method: str, data: bytes) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        client._channel.unary_unary(f"/{method}")(data, timeout=LIMIT_S)
    return caught.value


def test_an_error_has_status_code_text_and_class(client: GrpcClient) -> None:
    request = GetStore(id=b"\x07" * 16)
    error = raw(client, request.action.method, request.encode())
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert dict(error.trailing_metadata())[CODE_KEY] == "no-such-path"
    with pytest.raises(NoSuchPath, match="this node has no store 07070707"):
        client.call(request)


def test_bytes_that_are_no_request_are_the_callers_mistake(client: GrpcClient) -> None:
    seed = random.Random(7)
    good = OfferRecords(topic="log", values=("hello", [1, 2])).encode()
    hostile = [good[:size] for size in range(1, len(good), 7)]
    hostile += [seed.randbytes(seed.randrange(1, 200)) for _ in range(60)]
    hostile += [b"\x0a\xff\xff\xff\xff\x7f", b"\x0b" * 50, good + b"\x12\x01\xff"]
    for data in hostile:
        try:
            OfferRecords.decode(data)
        except BadFormat:
            error = raw(client, OfferRecords.action.method, data)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, data
            assert dict(error.trailing_metadata())[CODE_KEY] == "bad-format"
    assert client.call(ListTopics()).topics == ()  # nothing of it was done


def test_hostile_bytes_never_are_a_fault(client: GrpcClient) -> None:
    seed = random.Random(8)
    for action in ACTIONS.values():
        if action.kind is ActionKind.STREAM:
            continue
        for data in (seed.randbytes(40), b"\x0a\x02\xc0\x00", b"\x08" + b"\xff" * 9 + b"\x7f"):
            call = client._channel.unary_unary(f"/{action.method}").future(data, timeout=LIMIT_S)
            assert call.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), action


@pytest.mark.parametrize("levels", [100, 50_000])
def test_a_value_that_is_nested_too_deeply_is_refused(levels: int, client: GrpcClient) -> None:
    inner = encode([[]])
    head = inner[: -len(encode([]))]
    with pytest.raises(BadFormat):
        client.call(DecodeValue(data=head * levels + inner))


def test_a_message_is_as_long_as_the_limit_and_not_longer(service: Service) -> None:
    request = PutValue(value="x" * 3_000)
    size = len(request.encode())
    for limit, is_taken in ((size - 1, False), (size, True), (size + 1, True)):
        with (
            serving(service, limits=GrpcLimits(request_bytes=limit)) as served,
            GrpcClient(served.path) as client,
        ):
            if is_taken:
                assert client.call(request).hash
            else:
                with pytest.raises(LimitExceeded):
                    client.call(request)


def test_an_answer_is_as_long_as_the_limit_and_not_longer(service: Service, node: Any) -> None:
    node.queue("log").offer("x" * 3_000)
    request = ReadRecords(topic="log")
    size = len(service.call(request, SOCKET).encode())
    for limit, is_given in ((size - 1, False), (size, True), (size + 1, True)):
        with (
            serving(service, limits=GrpcLimits(answer_bytes=limit)) as served,
            GrpcClient(served.path) as client,
        ):
            if is_given:
                assert client.call(request).end == 1
            else:
                with pytest.raises(LimitExceeded, match=f"the answer has {size} bytes"):
                    client.call(request)


def test_a_long_text_of_an_error_is_cut(
    client: GrpcClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_named: object) -> None:
        raise NoSuchPath("a" + "\n\N{SNOWMAN}" * 5_000 + "\udc80")

    monkeypatch.setattr(service, "call", fail)
    with pytest.raises(NoSuchPath) as caught:
        client.call(GetNodeStatus())
    assert str(caught.value) == "a" + "\n\N{SNOWMAN}" * 499 + "\n"


def test_a_fault_keeps_its_text(
    client: GrpcClient,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **_named: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(service, "call", fail)
    error = raw(client, GetNodeStatus.action.method, b"")
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in error.details()
    assert "a secret" in caplog.text


def test_an_unknown_method_is_unimplemented(client: GrpcClient) -> None:
    assert raw(client, "no.Service/Method", b"").code() is grpc.StatusCode.UNIMPLEMENTED
    error = raw(client, "datalattice.v1.QueueService/Offer", b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_service_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with GrpcClient(tmp_path / "none") as client, pytest.raises(PeerUnavailable):
        client.call(GetNodeStatus())


def test_a_call_without_answer_ends_with_its_time(
    served: Served, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(service, "call", lambda *_, **_named: goes_on.wait(60))
    with GrpcClient(served.path, timeout_s=0.2) as client, pytest.raises(Timeout):
        client.call(GetNodeStatus())
    goes_on.set()


@pytest.mark.parametrize("target", ["localhost", "host:port", ""])
def test_a_target_is_a_socket_or_an_address(target: str) -> None:
    with pytest.raises(UsageError, match="a door is"):
        GrpcClient(target)


# --- who asks ---------------------------------------------------------------------------------


def by_token(metadata: Any, address: str | None) -> Principal:
    token = metadata.get("authorization")
    if token is None:
        return ANONYMOUS
    if token == "Bearer busy":
        raise RateLimited(f"too many from {address}", 2.5)
    if token != "Bearer good":
        raise BadCredential("signature")
    return SOCKET


@pytest.fixture
def tcp(service: Service) -> Iterator[str]:
    with serving(service, authenticate=by_token) as served:
        port = served.run(served.door.listen_tcp("127.0.0.1:0"))
        yield f"127.0.0.1:{port}"


def test_tcp_has_callers_with_credentials(tcp: str) -> None:
    with GrpcClient(tcp, token=lambda: "good") as client:
        assert client.call(ListTopics()).topics == ()
    with GrpcClient(tcp) as client:
        assert client.call(GetNodeStatus()).version
        with pytest.raises((Unauthenticated, Unauthorized)):
            client.call(PutValue(value=1))


def test_a_bad_credential_is_unauthenticated_everywhere(tcp: str) -> None:
    with GrpcClient(tcp, token="bad") as client:
        for action in ACTIONS.values():
            request = bare(action)
            is_stream = action.kind is ActionKind.STREAM
            with pytest.raises(Unauthenticated):
                first(client.stream(request)) if is_stream else client.call(request)


def test_a_bad_credential_is_unauthenticated_in_reflection_too(tcp: str) -> None:
    with grpc.insecure_channel(tcp) as channel:
        call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        answers = call(iter([b"\x3a\x00"]), metadata=(("authorization", "Bearer bad"),))
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_two_credentials_are_not_taken_for_one(tcp: str) -> None:
    with grpc.insecure_channel(tcp) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{GetNodeStatus.action.method}")(
            b"", metadata=(("authorization", "Bearer good"), ("authorization", "Bearer good"))
        )
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_caller_learns_when_to_try_again(tcp: str) -> None:
    with GrpcClient(tcp, token="busy") as client:
        with pytest.raises(RateLimited, match=r"too many from 127\.0\.0\.1$") as caught:
            client.call(GetNodeStatus())
        assert caught.value.retry_s == 2.5
    with grpc.insecure_channel(tcp) as channel, pytest.raises(grpc.RpcError) as plain:
        channel.unary_unary(f"/{GetNodeStatus.action.method}")(
            b"", metadata=(("authorization", "Bearer busy"),)
        )
    assert dict(plain.value.trailing_metadata())[RETRY_KEY] == "2500"


def test_a_socket_takes_no_credential(served: Served) -> None:
    with GrpcClient(served.path, token="good") as client, pytest.raises(Unauthenticated):
        client.call(GetNodeStatus())


def test_a_socket_needs_a_folder_of_its_owner(service: Service, tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with pytest.raises(UsageError, match="mode 0700"):
        asyncio.run(GrpcDoor(service).listen_socket(tmp_path / "s"))
    with pytest.raises(UsageError, match="at most 107 bytes"):
        asyncio.run(GrpcDoor(service).listen_socket(tmp_path / ("s" * 107)))


def test_a_door_on_tcp_needs_authentication_and_beyond_this_machine_tls(service: Service) -> None:
    with pytest.raises(UsageError, match="needs `authenticate`"):
        asyncio.run(GrpcDoor(service).listen_tcp("127.0.0.1:0"))
    for address in ("0.0.0.0:0", "[::]:0", "localhost:0"):
        with pytest.raises(UsageError, match="use TLS"):
            asyncio.run(GrpcDoor(service, by_token).listen_tcp(address))


def test_a_door_with_a_certificate_is_called_by_who_has_it(service: Service) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "door")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 7)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with serving(service, authenticate=by_token) as served:
        port = served.run(served.door.listen_tcp("127.0.0.1:0", lambda: (private, certificate)))
        address = f"localhost:{port}"
        with GrpcClient(address, token="good", certificate=certificate) as client:
            assert client.call(ListTopics()).topics == ()
        with GrpcClient(address, token="good") as client, pytest.raises(PeerUnavailable):
            client.call(ListTopics())


def test_a_port_that_is_taken_is_an_error(service: Service, tcp: str) -> None:
    with pytest.raises(OSError, match=tcp):
        asyncio.run(GrpcDoor(service, by_token).listen_tcp(tcp))


# --- streams ----------------------------------------------------------------------------------


def test_a_stream_delivers_what_is_there_and_what_comes(client: GrpcClient, node: Any) -> None:
    node.queue("log").offer_many(range(200))
    with client.stream(FollowTopic(topic="log")) as records:
        assert [next(records).value for _ in range(200)] == list(range(200))
        node.queue("log").offer("new")
        assert next(records).value == "new"


def other_threads() -> int:
    """Return how many threads there are beside those of the door's pool, which stay."""
    return sum(not one.name.startswith("grpc-door") for one in threading.enumerate())


def test_streams_that_end_leave_nothing(
    served: Served, service: Service, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.queue("log").offer("a")
    made: list[Streamed[Any]] = []
    begin = service.stream

    def noted(request: Any, caller: Principal) -> Any:
        made.append(begin(request, caller))
        return made[-1]

    monkeypatch.setattr(service, "stream", noted)

    def one_round() -> None:
        with GrpcClient(served.path) as client:
            streams = [client.stream(FollowTopic(topic="log")) for _ in range(20)]
            for stream in streams:
                assert next(stream).value == "a"
            assert served.door.streams == 20
            for stream in streams[:10]:
                stream.close()
        until(lambda: served.door.streams == 0)  # the others end with their connection

    one_round()
    before = other_threads()
    one_round()
    until(lambda: other_threads() <= before)
    assert len(made) == 40
    assert all(stream.closed for stream in made)


def test_a_stream_that_is_cancelled_before_it_begins_is_closed(
    served: Served, service: Service, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.queue("log").offer("a")
    begun, goes_on, made = threading.Event(), threading.Event(), []
    begin = service.stream

    def slow(request: Any, caller: Principal) -> Any:
        begun.set()
        assert goes_on.wait(60)
        made.append(begin(request, caller))
        return made[0]

    monkeypatch.setattr(service, "stream", slow)
    with GrpcClient(served.path) as client:
        stream = client.stream(FollowTopic(topic="log"))
        assert begun.wait(60)
        stream.close()
        until(lambda: served.door.streams == 0)
        goes_on.set()
        until(lambda: made and made[0].closed)


class Leaving:
    """The context of a call whose caller leaves while something is being sent."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.sending, self.goes_on, self.sent = asyncio.Event(), asyncio.Event(), 0

    def invocation_metadata(self) -> None: ...

    def peer(self) -> str:
        return "unix:"

    async def read(self) -> bytes:
        return self.request

    async def send_initial_metadata(self, metadata: object) -> None: ...

    async def write(self, item: bytes) -> None:
        self.sending.set()
        await self.goes_on.wait()
        self.sent += 1


def test_what_is_being_sent_to_a_caller_that_leaves_is_awaited(served: Served, node: Any) -> None:
    node.queue("log").offer_many(["a", "b"])
    request = FollowTopic(topic="log")

    async def leave() -> int:
        context = Leaving(request.encode())
        call = asyncio.ensure_future(served.door.stream(request.action, context))
        await context.sending.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        context.goes_on.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return context.sent

    # One that nobody awaits keeps its memory for ever; no other is begun.
    assert served.run(leave()) == 1


def ended_write(loop: asyncio.AbstractEventLoop) -> BaseException | None:
    """Return how a message ends that is sent to a caller that has left."""
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    async def leave(_request: bytes, context: Any) -> None:
        try:
            await context.write(b"first")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            sent = await asyncio.gather(context.write(b"second"), return_exceptions=True)
            ended.set_result(sent[0])

    async def serve() -> BaseException | None:
        server = aio.server()
        handler = grpc.unary_stream_rpc_method_handler(leave)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test", {"leave": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()

        def call() -> None:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                next(channel.unary_stream("/test/leave")(b""))

        await asyncio.to_thread(call)
        found = await asyncio.wait_for(ended, 60)
        await server.stop(0)
        return found

    try:
        return loop.run_until_complete(serve())
    finally:
        loop.close()


def test_a_batch_that_fails_ends_where_grpc_frees_it() -> None:
    # grpc.aio frees what ends without an error.
    assert isinstance(ended_write(asyncio.new_event_loop()), aio.InternalError)
    assert ended_write(GrpcLoop()) is None


def test_other_failures_of_the_loop_are_raised() -> None:
    loop = GrpcLoop()
    try:
        for error in (aio.InternalError("other"), ValueError('Failed "execute_batch"')):
            future = loop.create_future()
            future.set_exception(error)
            with pytest.raises(type(error)):
                loop.run_until_complete(future)
    finally:
        loop.close()


@pytest.mark.parametrize("request_", [GetNodeStatus(), FollowTopic(topic="log")])
def test_a_call_whose_request_does_not_come_is_ended(
    service: Service, request_: ActionRequest[Any]
) -> None:
    goes_on = threading.Event()

    def nothing() -> Iterator[bytes]:
        goes_on.wait(60)
        yield from ()

    with (
        serving(service, limits=GrpcLimits(stall_s=0.1)) as served,
        grpc.insecure_channel(f"unix:{served.path}") as channel,
    ):
        called = channel.stream_stream(f"/{request_.action.method}")(nothing())
        with pytest.raises(grpc.RpcError) as late:
            next(called)
        goes_on.set()
        assert "the caller sent nothing for 0.1 s" in late.value.details()


@pytest.mark.parametrize("request_", [GetNodeStatus(), FollowTopic(topic="log")])
def test_a_call_that_ends_without_a_request_is_refused(
    served: Served, request_: ActionRequest[Any]
) -> None:
    with grpc.insecure_channel(f"unix:{served.path}") as channel:
        called = channel.stream_stream(f"/{request_.action.method}")
        empty = called(iter(()))
        with pytest.raises(grpc.RpcError) as bad:
            next(empty)
        assert bad.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no message" in bad.value.details()


def test_a_slow_reader_is_not_read_ahead_for(
    client: GrpcClient, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.queue("log").offer_many(["x" * 10_000] * 1_000)
    takes: list[int] = []
    take = Streamed.take

    def counted(stream: Streamed[Any]) -> list[Any]:
        takes.append(1)
        return take(stream)

    monkeypatch.setattr(Streamed, "take", counted)
    with client.stream(FollowTopic(topic="log")) as records:
        next(records)
        for _ in range(100):  # meanwhile the door could read on
            client.call(GetNodeStatus())
        assert len(takes) < 8  # of 64 records each
        assert sum(1 for _ in zip(range(999), records, strict=False)) == 999


def test_a_reader_that_takes_nothing_is_cut(service: Service, node: Any) -> None:
    node.queue("log").offer_many(["x" * 50_000] * 400)
    with (
        serving(service, limits=GrpcLimits(stall_s=0.2)) as served,
        GrpcClient(served.path) as client,
        client.stream(FollowTopic(topic="log")) as records,
    ):
        next(records)
        until(lambda: served.door.streams == 0)
        # It goes on when it reads again: nothing is lost.
        assert [next(records).offset for _ in range(399)] == list(range(1, 400))
    with (
        serving(service, limits=GrpcLimits(stall_s=0.2)) as served,
        GrpcClient(served.path, resume_s=0) as client,
        client.stream(FollowTopic(topic="log")) as records,
    ):
        next(records)
        until(lambda: served.door.streams == 0)
        with pytest.raises(Timeout):
            list(records)


def test_more_streams_and_calls_than_there_is_room_for_are_refused(
    service: Service, node: Any
) -> None:
    node.queue("log").offer("a")
    with (
        serving(service, limits=GrpcLimits(streams=2)) as served,
        GrpcClient(served.path) as client,
    ):
        request = FollowTopic(topic="log")
        with client.stream(request) as one, client.stream(request) as two:
            assert next(one).value == next(two).value == "a"
            with pytest.raises(Backpressure, match="2 streams are open"):
                first(client.stream(request))
        until(lambda: served.door.streams == 0)
        assert first(client.stream(request)).value == "a"


class Ticking:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000

    def now_ms(self) -> int:
        return self.now


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_stream_ends_with_the_credential(is_busy: bool, service: Service, node: Any) -> None:
    clock = Ticking()
    node.queue("log").offer("a")
    ends = Principal(None, "socket", expires_ms=2_000)
    with (
        serving(service, authenticate=lambda *_: ends, clock=clock) as served,
        GrpcClient(served.path) as client,
        client.stream(FollowTopic(topic="log")) as records,
    ):
        assert next(records).value == "a"
        clock.now = 2_000
        if is_busy:
            node.queue("log").offer("b")
        with pytest.raises(Unauthenticated):
            next(records)


def test_streams_end_when_the_service_stops(service: Service, node: Any) -> None:
    node.queue("log").offer("a")
    with serving(service) as served, GrpcClient(served.path, resume_s=0) as client:
        records = client.stream(FollowTopic(topic="log"))
        assert next(records).value == "a"
        served.run(served.door.stop(5.0))
        with pytest.raises(Draining):
            next(records)
        assert not served.path.exists()
        with pytest.raises(PeerUnavailable):
            client.call(GetNodeStatus())


def test_two_hundred_callers_at_once(served: Served, node: Any) -> None:
    with GrpcClient(served.path) as client, ThreadPoolExecutor(200) as pool:
        requests = [OfferRecords(topic="log", values=(one,)) for one in range(200)]
        spans = [found.spans[0] for found in pool.map(client.call, requests)]
    assert sorted(span.start for span in spans) == list(range(200))
    assert sorted(node.queue("log")) == list(range(200))
    assert served.door.calls == 0


def test_the_same_from_an_event_loop(served: Served) -> None:
    async def main() -> None:
        async with AsyncGrpcClient(served.path) as client:
            await client.call(OfferRecords(topic="log", values=("a", "b")))
            async with client.stream(FollowTopic(topic="log")) as records:
                async for record in records:
                    if record.value == "b":
                        break
            with pytest.raises(NoSuchPath):
                await client.call(GetValue(hash=b"\x07" * 32))

    asyncio.run(main())
    until(lambda: served.door.streams == 0)


# --- reflection -------------------------------------------------------------------------------


def test_a_client_that_only_reflects_finds_and_calls_everything(served: Served, node: Any) -> None:
    node.store("stock", kind="kv")
    with grpc.insecure_channel(f"unix:{served.path}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = database.get_services()
        expected = {action.method.partition("/")[0] for action in ACTIONS.values()}
        assert expected <= set(services)
        pool = DescriptorPool(database)
        for action in ACTIONS.values():
            service, _, name = action.method.partition("/")
            method = pool.FindServiceByName(service).methods_by_name[name]
            assert method.input_type.full_name == action.request.full_name
            assert method.output_type.full_name == action.result.full_name
            assert method.server_streaming == (action.kind is ActionKind.STREAM)
        offer = pool.FindServiceByName("datalattice.v1.QueueService").methods_by_name["ListTopics"]
        request = message_factory.GetMessageClass(offer.input_type)(owner="own")
        node.queue("log").offer("a")
        answer = channel.unary_unary(
            "/datalattice.v1.QueueService/ListTopics",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(offer.output_type).FromString,
        )(request)
        assert [topic.topic for topic in answer.topics] == ["log"]


def test_reflection_knows_the_machine_of_a_store_as_soon_as_there_is_one(
    served: Served, client: GrpcClient
) -> None:
    with grpc.insecure_channel(f"unix:{served.path}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        before = set(database.get_services())
        made = client.call(CreateStore(name="notes", store_type="core:kvstore"))
        added = set(database.get_services()) - before
        assert len(added) == 1
        methods = DescriptorPool(database).FindServiceByName(added.pop()).methods_by_name
        assert {"Put", "Get", "Watch"} <= set(methods)
        # The child of a store has a machine, too.
        client.call(CreateStore(parent_id=made.id, name="log", store_type="core:logstore"))
        assert len(set(database.get_services()) - before) == 2


def test_a_stranger_sees_no_machine(service: Service, node: Any) -> None:
    node.store("notes", kind="kv")
    with (
        serving(service, authenticate=lambda *_: ANONYMOUS) as served,
        grpc.insecure_channel(f"unix:{served.path}") as channel,
    ):
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert set(services) == {action.method.partition("/")[0] for action in ACTIONS.values()}


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_answers_each_question(version: str, served: Served) -> None:
    from grpc_reflection.v1alpha import reflection_pb2 as wire

    asked = [
        wire.ServerReflectionRequest(file_by_filename="datalattice/v1.proto"),
        wire.ServerReflectionRequest(file_by_filename="none.proto"),
        wire.ServerReflectionRequest(file_containing_symbol="datalattice.v1.Empty"),
        wire.ServerReflectionRequest(all_extension_numbers_of_type="datalattice.v1.Empty"),
        wire.ServerReflectionRequest(),
    ]
    with grpc.insecure_channel(f"unix:{served.path}") as channel:
        method = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        )
        sent = [one.SerializeToString() for one in asked]
        found = [wire.ServerReflectionResponse.FromString(one) for one in method(iter(sent))]
        assert [one.original_request for one in found] == asked
        assert [one.error_response.error_code for one in found] == [0, 5, 0, 5, 3]
        with pytest.raises(grpc.RpcError) as caught:
            next(method(iter([b"\xff\xff"])))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# --- machines ---------------------------------------------------------------------------------


@pytest.fixture
def notes(client: GrpcClient) -> StoreMethods:
    return client.store(client.call(CreateStore(name="notes", store_type="core:kvstore")).id)


def test_methods_of_a_store_are_called_by_name(notes: StoreMethods, node: Any) -> None:
    written = notes.put(key=b"a", value=b"b")
    assert len(written["hash"]) == 32
    assert notes.get(key=b"a")["value"] == b"b"
    assert notes.Get(key=b"a") == notes.get(key=b"a")
    assert node.store("notes")["a"] == "b"
    assert {"Put", "Get", "Watch"} <= set(dir(notes))


def test_a_stream_of_a_store_is_iterated(notes: StoreMethods, served: Served) -> None:
    events = notes.watch(prefix=b"a")
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(next(iter(events))))
    reader.start()
    until(lambda: served.door.streams == 1)
    until(lambda: notes.put(key=b"ab", value=b"c") and got)
    reader.join(60)
    assert got[0]["key"] == b"ab"
    events.close()
    until(lambda: served.door.streams == 0)


def test_what_a_store_refuses_is_raised_as_its_class(
    notes: StoreMethods, client: GrpcClient
) -> None:
    with pytest.raises(UsageError, match="its fields are: key, value"):
        notes.put(nokey=1)
    with pytest.raises(UsageError, match="Put"):
        notes.put(key=7)
    with pytest.raises(AttributeError, match="it has Put"):
        notes.no_such_method  # noqa: B018
    with pytest.raises(UsageError):
        notes.put(key=b"", value=b"x")
    with pytest.raises(NoSuchPath):
        client.store(b"\x07" * 16)
    with pytest.raises(UsageError):
        client.store("no id")


def _forged(descriptor_set: bytes) -> Client:
    return cast("Client", Forged(descriptor_set))


class Forged:
    """A service that describes stores as it likes."""

    def __init__(self, descriptor_set: bytes) -> None:
        self.descriptor_set = descriptor_set

    def call(self, request: Any) -> Any:
        return request.action.result(
            file_descriptor_set=self.descriptor_set, service_name="no.Service"
        )

    def stream(self, request: Any) -> Any:
        raise UnsupportedOperation


@pytest.mark.parametrize("forged", [b"\xff\xff", b"", b"\x0a\x04\x0a\x02\xc3\x28", b"\x0a\x00"])
def test_a_forged_description_of_a_store_is_refused(forged: bytes) -> None:
    with pytest.raises(BadFormat, match="cannot be used"):
        StoreMethods(_forged(forged), b"\x07" * 16)


def test_a_long_description_of_a_store_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        StoreMethods(_forged(bytes((1 << 20) + 1)), b"\x07" * 16)
    with pytest.raises(BadFormat):
        StoreMethods(_forged(bytes(1 << 20)), b"\x07" * 16)


def test_a_stream_tells_where_it_began_and_where_it_ended(service: Service, node: Any) -> None:
    node.queue("log").offer_many(["a", "b"])
    with serving(service) as served:
        channel = grpc.insecure_channel(f"unix:{served.path}")
        call = channel.unary_stream(f"/{ACTIONS['queue.follow'].method}")
        items = call(FollowTopic(topic="log").encode())
        begun = dict(items.initial_metadata())[RESUME_KEY]
        records = [QueueRecord.decode(next(items)) for _ in range(2)]
        served.run(served.door.stop(5.0))
        with pytest.raises(grpc.RpcError) as ended:
            next(items)
        channel.close()
    said = dict(ended.value.trailing_metadata())
    assert (said[CODE_KEY], said[RESUME_KEY]) == ("draining", records[-1].resume)
    with service.stream(FollowTopic(topic="log", resume=begun), SOCKET) as stream:
        assert [one.value for one in stream.take()] == ["a", "b"]


def test_what_callers_may_keep_in_memory_is_bounded(client: GrpcClient) -> None:
    limits = GrpcLimits()
    # Messages are kept before it is known who sends them.
    assert (limits.calls + limits.streams) * limits.request_bytes < 1 << 30
    piece = random.Random(1).randbytes(PIECE_BYTES_MAX)  # equal parts would be sent once
    client.call(MakeDirectory(drive="d"))
    assert client.call(WriteFile(drive="d", path="/f", data=piece)).size == PIECE_BYTES_MAX
    with pytest.raises(LimitExceeded):
        client.call(OfferRecords(topic="log", values=(piece, piece[:70_000])))


def test_more_calls_on_a_connection_than_it_may_have_wait_there_alone(
    service: Service, node: Any
) -> None:
    node.queue("log").offer("a")
    with (
        serving(service, limits=GrpcLimits(on_connection=2)) as served,
        GrpcClient(served.path) as busy,
        GrpcClient(served.path) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        streams = [busy.stream(FollowTopic(topic="log")) for _ in range(2)]
        assert [next(stream).value for stream in streams] == ["a", "a"]
        waiting = thread.submit(busy.call, GetNodeStatus())
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        assert other.call(GetNodeStatus()).version
        streams[0].close()
        assert waiting.result(60).version
        streams[1].close()


def test_a_client_may_have_more_calls_than_a_connection_takes(service: Service) -> None:
    async def run(path: Path) -> None:
        async with AsyncGrpcClient(path) as client:
            await client.call(GetNodeStatus())
            for _ in range(5):
                await asyncio.gather(*(client.call(GetNodeStatus()) for _ in range(500)))

    with serving(service) as served:
        asyncio.run(run(served.path))
