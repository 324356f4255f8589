"""Large files over the doors: whole, in ranges, cut off, abandoned; what is refused at once."""

from __future__ import annotations

import io
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from tests.unit.api.serving import serving

import datalattice
from datalattice.actions import (
    CHUNK_BYTES_MAX,
    GetFile,
    ListTopics,
    OfferRecords,
    PutFile,
    ReadFile,
    with_resume,
)
from datalattice.api.grpc import GrpcLimits
from datalattice.apps.dlfs import Drive, Stat
from datalattice.client import Node
from datalattice.client.grpc import GrpcClient
from datalattice.client.rest import RestClient
from datalattice.errors import (
    Conflict,
    IsADirectory,
    NoSuchPath,
    StaleToken,
    Timeout,
    UsageError,
)
from datalattice.service import OPERATOR, LocalClient, Service
from datalattice.service.access import Principal

testclient = pytest.importorskip("starlette.testclient")
uvicorn = pytest.importorskip("uvicorn")

from datalattice.api.rest import rest_app  # noqa: E402 - only where starlette is

FILES = "/api/v1/drives/d/files"
DATA = random.Random(1).randbytes(3 * CHUNK_BYTES_MAX + 1_000)


@pytest.fixture
def node() -> Iterator[Node]:
    with datalattice.open(":memory:") as made:
        made.drive("d").ensure()
        made.drive("d").mkdir("/dir")
        yield made


@contextmanager
def over_rest(service: Service) -> Iterator[RestClient]:
    app, _ = rest_app(service, lambda _: Principal(None, "socket"))
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        with RestClient(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


@contextmanager
def over_grpc(service: Service) -> Iterator[GrpcClient]:
    with serving(service) as served, GrpcClient(served.path) as client:
        yield client


@contextmanager
def in_process(service: Service) -> Iterator[LocalClient]:
    yield LocalClient(service)


WAYS: dict[str, Callable[[Service], AbstractContextManager[Any]]] = {
    "process": in_process,
    "rest": over_rest,
    "grpc": over_grpc,
}


@pytest.fixture(params=list(WAYS))
def client(request: pytest.FixtureRequest, node: Node) -> Iterator[Any]:
    with WAYS[request.param](Service(node)) as made:
        yield made


def taken(client: Any, request: GetFile) -> list[Any]:
    """Return the pieces of a file."""
    with client.stream(request) as pieces:
        return list(pieces)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, len(DATA)])
def test_a_file_of_any_length_goes_there_and_back(size: int, client: Any, node: Node) -> None:
    data = DATA[:size]
    for body in (io.BytesIO(data), [data[:10], data[10:]], iter([data])):
        info = client.upload(PutFile(drive="d", path="/f"), body)
        assert (info.path, info.size) == ("/f", size)
        assert node.drive("d").read("/f") == data
    pieces = taken(client, GetFile(drive="d", path="/f"))
    assert b"".join(one.data for one in pieces) == data
    assert all(one.size == size and one.hash == info.hash for one in pieces)
    assert all(len(one.data) <= CHUNK_BYTES_MAX for one in pieces)


@pytest.mark.parametrize("request_of", [ReadFile, GetFile])
def test_a_read_has_one_version_whatever_is_written_meanwhile(
    request_of: type[ReadFile | GetFile], client: Any, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = node.drive("d")
    drive.write("/f", b"before")
    before = drive.stat("/f")
    stat = Drive.stat

    def stat_and_write(self: Drive, path: str) -> Stat:
        found = stat(self, path)
        monkeypatch.undo()
        drive.write("/f", b"written meanwhile")
        return found

    monkeypatch.setattr(Drive, "stat", stat_and_write)
    request = request_of(drive="d", path="/f")
    if isinstance(request, GetFile) and isinstance(client, RestClient):
        # It asks for the status before the pieces, which are refused rather than mixed in.
        with pytest.raises(Conflict, match=before.hash.hex()):
            taken(client, request)
        return
    pieces = taken(client, request) if isinstance(request, GetFile) else [client.call(request)]
    assert [(one.data, one.size, one.hash) for one in pieces] == [(b"before", 6, before.hash)]
    assert drive.read("/f") == b"written meanwhile"


def test_a_part_of_a_file(client: Any) -> None:
    info = client.upload(PutFile(drive="d", path="/f", data=DATA[:100]), [DATA[100:]])
    for start, count in ((1, 0), (5, 7), (CHUNK_BYTES_MAX - 1, 2), (len(DATA) - 1, 9)):
        request = GetFile(drive="d", path="/f", start=start, count=count, hash=info.hash)
        pieces = taken(client, request)
        stop = start + count if count else len(DATA)
        assert b"".join(one.data for one in pieces) == DATA[start:stop]
        assert pieces[0].start == start


def test_what_the_caller_expects_counts_at_the_end(client: Any, node: Node) -> None:
    first = client.upload(PutFile(drive="d", path="/f", is_new=True), [b"one"])
    with pytest.raises(Conflict):
        client.upload(PutFile(drive="d", path="/f", is_new=True), [DATA])
    with pytest.raises(NoSuchPath):
        client.upload(PutFile(drive="d", path="/none/f"), [DATA])
    with pytest.raises(IsADirectory):
        client.upload(PutFile(drive="d", path="/dir"), [DATA])

    def body() -> Iterator[bytes]:
        yield DATA
        node.drive("d").write("/f", b"by somebody else")
        yield DATA

    with pytest.raises(Conflict):
        client.upload(PutFile(drive="d", path="/f", if_match=first.hash), body())
    assert node.drive("d").read("/f") == b"by somebody else"
    with pytest.raises(UsageError, match="no body in pieces"):
        client.upload(ListTopics(), [b"x"])
    client.call(OfferRecords(topic="log", values=(1,)))  # the connection is as good as before


def test_an_upload_that_is_abandoned_leaves_nothing(client: Any, node: Node) -> None:
    class Stopped(Exception):
        pass

    def body() -> Iterator[bytes]:
        yield DATA
        raise Stopped

    before = node.cursor().get()
    with pytest.raises(Exception):  # noqa: B017 - gRPC tells of it in its own way
        client.upload(PutFile(drive="d", path="/f"), body())
    assert node.cursor().get() == before
    assert not node.drive("d").exists("/f")


def test_a_download_goes_on_behind_each_piece_of_the_same_version(node: Node) -> None:
    service = Service(node)
    node.drive("d").write("/f", DATA)
    request = GetFile(drive="d", path="/f")
    pieces = taken(LocalClient(service), request)
    for number, piece in enumerate(pieces[:-1]):
        rest = taken(LocalClient(service), with_resume(request, piece.resume))
        assert [one.start for one in rest] == [one.start for one in pieces[number + 1 :]]
    node.drive("d").write("/f", DATA[1:])
    with pytest.raises(StaleToken, match="a fresh start begins at its first byte"):
        service.stream(with_resume(request, pieces[0].resume), OPERATOR)
    with pytest.raises(Conflict):
        service.stream(GetFile(drive="d", path="/f", hash=pieces[0].hash), OPERATOR)


def test_a_caller_that_sends_nothing_more_is_cut_off(node: Node) -> None:
    goes_on = threading.Event()

    def body() -> Iterator[bytes]:
        yield DATA
        goes_on.wait(60)

    with (
        serving(Service(node), limits=GrpcLimits(stall_s=0.1)) as served,
        GrpcClient(served.path) as client,
    ):
        with pytest.raises(Timeout, match="the caller sent nothing"):
            client.upload(PutFile(drive="d", path="/f"), body())
        goes_on.set()
        assert served.door.streams == 0
    assert not node.drive("d").exists("/f")


# --- what HTTP adds -------------------------------------------------------------------------------


@pytest.fixture
def http(node: Node) -> Any:
    app, _ = rest_app(Service(node), lambda _: Principal(None, "socket"))
    return testclient.TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("range", "status", "part", "span"),
    [
        (None, 200, slice(None), None),
        ("bytes=1-3", 206, slice(1, 4), "bytes 1-3/{size}"),
        ("bytes=-5", 206, slice(-5, None), "bytes {last5}-{last}/{size}"),
        ("bytes=300000-600000", 206, slice(300_000, 600_001), "bytes 300000-600000/{size}"),
        ("bytes={size}-", 416, slice(0), "bytes */{size}"),
        ("bytes=0-1,3-4", 200, slice(None), None),
    ],
)
def test_one_range_of_a_file(
    http: Any, node: Node, range: str | None, status: int, part: slice, span: str | None
) -> None:
    node.drive("d").write("/f", DATA)
    facts = {"size": len(DATA), "last": len(DATA) - 1, "last5": len(DATA) - 5}
    headers = {} if range is None else {"range": range.format(**facts)}
    answer = http.get(f"{FILES}/f", headers=headers)
    assert (answer.status_code, answer.content) == (status, DATA[part])
    assert answer.headers.get("content-range") == (span and span.format(**facts))
    assert answer.headers["accept-ranges"] == "bytes"
    tag = answer.headers["etag"]
    if range is not None:
        stale = http.get(f"{FILES}/f", headers={**headers, "if-range": '"other"'})
        assert (stale.status_code, stale.content) == (200, DATA)
        fresh = http.get(f"{FILES}/f", headers={**headers, "if-range": tag})
        assert fresh.status_code == status
    head = http.head(f"{FILES}/f", headers=headers)
    assert (head.status_code, head.content) == (status, b"")
    if status != 416:
        assert head.headers["content-length"] == str(len(DATA[part]))
    assert http.get(f"{FILES}/f", headers={"if-none-match": tag}).status_code == 304


def test_conditions_of_a_write(http: Any, node: Node) -> None:
    made = http.put(f"{FILES}/f?is_new=true", content=b"one")
    assert made.status_code == 200
    tag = http.head(f"{FILES}/f").headers["etag"]
    assert tag == f'"{made.json()["hash"]}"'
    for headers, status in (
        ({"if-none-match": "*"}, 412),
        ({"if-match": f'"{"00" * 32}"'}, 412),
        ({"content-range": "bytes 0-0/1"}, 400),
        ({"content-type": "text/html"}, 415),
    ):
        answer = http.put(f"{FILES}/f", content=b"x", headers=headers)
        assert answer.status_code == status, answer.text
    assert node.drive("d").read("/f") == b"one"
    assert http.put(f"{FILES}/f", content=b"two", headers={"if-match": tag}).status_code == 200
    assert http.put(f"{FILES}/g", content=b"two", headers={"if-none-match": "*"}).status_code == 200
    long = {"content-length": str((1 << 32) + 1)}
    assert http.put(f"{FILES}/f", content=b"", headers=long).status_code == 413


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "a/../../b", "a//b"]
)
def test_a_path_never_leaves_its_drive(http: Any, path: str) -> None:
    answer = http.put(f"{FILES}/{path}", content=b"x")
    assert answer.status_code in (400, 404), answer.text
    answer = http.get(f"{FILES}/{path}")
    assert answer.status_code in (400, 404), answer.text
