"""The suite of all actions, on each way to a service."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.unit.service.cases import BAD, GOOD, NO_STORE, ONCE, UNRUN, Backend, Flow, Good, World
from tests.unit.service.livecases import LIVE, LiveWorld

from datalattice.actions import (
    ACTIONS,
    REQUEST_ID_CHARS_MAX,
    ActionKind,
    ActionRequest,
    CreateTopic,
    ExecMethod,
    NodeInfo,
    OfferRecords,
)
from datalattice.client import ControlClient
from datalattice.client.rest import RestClient
from datalattice.errors import DataLatticeError, RequestReused, UsageError
from datalattice.node import OfferedService
from datalattice.node.control import SOCKET_NAME, ControlServer, OfferedActions
from datalattice.service import OPERATOR, LocalClient
from datalattice.service.access import Principal

SOCKET = Principal(None, "socket")


class InProcess:
    """The service itself."""

    def __init__(self, world: World) -> None:
        self._service = world.service

    def call(self, request: ActionRequest[Any], request_id: str | None = None) -> Any:
        return self._service.call(request, OPERATOR, request_id=request_id)

    call_from_another = call

    def take(self, request: ActionRequest[Any], count: int, act: Callable[[], object]) -> list[Any]:
        with self._service.stream(request, OPERATOR) as stream:
            items = iter(stream)
            act()
            return [next(items) for _ in range(count)]


class OverDoor:
    """A client of a door."""

    def __init__(
        self, connect: Callable[[], AbstractContextManager[Any]], streams_begun: threading.Semaphore
    ) -> None:
        self._connect = connect
        self._client: Any = None
        self._begun = streams_begun

    @contextmanager
    def connected(self) -> Iterator[OverDoor]:
        with self._connect() as self._client:
            yield self

    def call(self, request: ActionRequest[Any], request_id: str | None = None) -> Any:
        return self._client.call(request, request_id=request_id)

    def call_from_another(self, request: ActionRequest[Any], request_id: str) -> Any:
        with self._connect() as client:
            return client.call(request, request_id=request_id)

    def take(self, request: ActionRequest[Any], count: int, act: Callable[[], object]) -> list[Any]:
        items = self._client.stream(request)
        taken: list[Any] = []

        failed: list[DataLatticeError] = []

        def read() -> None:
            try:
                taken.extend(next(items) for _ in range(count))
            except DataLatticeError as error:
                failed.append(error)
                self._begun.release()
            items.close()

        reader = threading.Thread(target=read)
        reader.start()
        assert self._begun.acquire(timeout=60)
        act()
        reader.join(60)
        assert not reader.is_alive()
        if failed:
            raise failed[0]
        return taken


def told_of_streams(world: World) -> threading.Semaphore:
    """Return what is released each time a stream of the world's service has begun."""
    begun = threading.Semaphore(0)
    begin = world.service.stream

    def stream(request: ActionRequest[Any], caller: Principal) -> Any:
        found = begin(request, caller)
        begun.release()
        return found

    world.service.stream = stream  # type: ignore[method-assign]
    return begun


@contextmanager
def over_rest(world: World) -> Iterator[OverDoor]:
    begun = told_of_streams(world)
    with (
        listening(world) as url,
        OverDoor(lambda: RestClient(url), begun).connected() as door,
    ):
        yield door


@contextmanager
def listening(world: World) -> Iterator[str]:
    """Serve the world's service over REST; give the URL."""
    uvicorn = pytest.importorskip("uvicorn")
    from datalattice.api.rest import rest_app

    app, _ = rest_app(world.service, lambda _: SOCKET)
    bound = socket.socket(proto=socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    bound.listen()  # a client may connect before the server runs
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        bound.close()
        assert not thread.is_alive()


@contextmanager
def over_grpc(world: World) -> Iterator[OverDoor]:
    pytest.importorskip("grpc_reflection")
    from tests.unit.api.serving import serving

    from datalattice.client.grpc import GrpcClient

    begun = told_of_streams(world)
    with (
        serving(world.service) as served,
        OverDoor(lambda: GrpcClient(served.path), begun).connected() as door,
    ):
        yield door


class OverControl:
    """The control socket of a node."""

    def __init__(self, path: str, client: ControlClient) -> None:
        self._path = path
        self._client = client

    def call(self, request: ActionRequest[Any], request_id: str | None = None) -> Any:
        return self._client.call(request, request_id=request_id)

    def call_from_another(self, request: ActionRequest[Any], request_id: str) -> Any:
        with ControlClient(self._path) as client:
            return client.call(request, request_id=request_id)

    def take(self, request: ActionRequest[Any], count: int, act: Callable[[], object]) -> list[Any]:
        with self._client.stream(request) as items:
            act()
            return [next(items) for _ in range(count)]


@contextmanager
def over_control(world: World) -> Iterator[OverControl]:
    with ExitStack() as stack:
        path = world.control
        if path is None:
            path = stack.enter_context(controlled(LocalClient(world.service)))
        yield OverControl(path, stack.enter_context(ControlClient(path)))


@contextmanager
def controlled(service: OfferedService) -> Iterator[str]:
    """Serve a service over a control socket; give its path."""
    began: Future[Callable[[], object]] = Future()

    async def serve(folder: Path) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        offered = OfferedActions(service)
        server = await ControlServer.start(folder, offered)
        began.set_result(lambda: loop.call_soon_threadsafe(ending.set))
        await ending.wait()
        await server.close()
        offered.close()

    with TemporaryDirectory() as folder:
        thread = threading.Thread(target=lambda: asyncio.run(serve(Path(folder))))
        thread.start()
        end = began.result(60)
        try:
            yield str(Path(folder) / SOCKET_NAME)
        finally:
            end()
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def in_process(world: World) -> Iterator[InProcess]:
    yield InProcess(world)


BACKENDS: dict[str, Callable[[World], AbstractContextManager[Backend]]] = {
    "process": in_process,
    "rest": over_rest,
    "grpc": over_grpc,
    "control": over_control,
}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, world: World) -> Iterator[Backend]:
    with BACKENDS[request.param](world) as made:
        yield made


def test_every_action_has_a_good_and_a_bad_case() -> None:
    assert {*GOOD, *LIVE, *UNRUN} == set(ACTIONS)
    assert len(GOOD) + len(LIVE) + len(UNRUN) == len(ACTIONS)
    assert set(BAD) | {"stores.exec"} == set(ACTIONS)  # its failures are in the answer


@pytest.mark.parametrize("name", list(GOOD))
def test_a_good_request_is_done(name: str, backend: Backend, world: World) -> None:
    check_good(name, GOOD[name], backend, world)


def check_good(name: str, case: Good | Flow, backend: Backend, world: Any) -> None:
    """Check that a request is done."""
    request = case.make(world)
    assert request.action.name == name
    if isinstance(case, Flow):
        items = backend.take(request, case.count, lambda: case.act(world))
        assert case.check(items, world), items
    else:
        result = backend.call(request)
        assert type(result) is request.action.result
        assert case.check(result, world), result


@pytest.mark.parametrize("way", list(BACKENDS))
def test_a_running_node_does_what_it_alone_can(way: str, tmp_path: Path) -> None:
    world = LiveWorld(tmp_path)
    try:
        with BACKENDS[way](world) as backend:
            for name, case in LIVE.items():
                check_good(name, case, backend, world)
    finally:
        world.close()


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_request_raises_the_same_error(name: str, backend: Backend, world: World) -> None:
    case = BAD[name]
    request = case.make(world)
    is_stream = request.action.kind is ActionKind.STREAM
    with pytest.raises(case.error):
        backend.take(request, 1, lambda: None) if is_stream else backend.call(request)


def test_failures_of_a_method_are_in_its_answer(backend: Backend, world: World) -> None:
    for store, method, payload, code in (
        (NO_STORE, "get", b"", 1),
        (world.store, "gett", b"", 2),
        (world.store, "get", b"\xff", 3),
    ):
        answer = backend.call(ExecMethod(store_id=store, method=method, payload=payload))
        assert (answer.error_code, answer.error != "") == (code, True)


def test_a_repeated_effect_has_the_effect_of_one(backend: Backend, world: World) -> None:
    for name, case in GOOD.items():
        if ACTIONS[name].kind is ActionKind.QUERY and isinstance(case, Good):
            request = case.make(world)
            one, other = backend.call(request), backend.call(request)
            if isinstance(one, NodeInfo) and isinstance(other, NodeInfo):
                one, other = replace(one, ts=0), replace(other, ts=0)  # the time of the answer
            assert one == other, name


# --- requests with an id --------------------------------------------------------------------------


def test_every_action_of_kind_once_has_a_case() -> None:
    assert set(ONCE) == {one.name for one in ACTIONS.values() if one.kind is ActionKind.ONCE}


@pytest.mark.parametrize("name", list(ONCE))
def test_a_request_that_is_repeated_is_done_once(name: str, backend: Backend, world: World) -> None:
    request = ONCE[name][0](world)
    before = world.effects()
    first = backend.call(request, "an-id")
    done = world.effects()
    assert done != before
    assert backend.call(request, "an-id") == first
    assert backend.call_from_another(request, "an-id") == first
    assert world.effects() == done
    backend.call(request, "another-id")
    assert world.effects() != done
    backend.call(request)  # a client makes an id of its own for each call
    again = world.effects()
    backend.call(request)
    assert world.effects() != again


@pytest.mark.parametrize("name", list(ONCE))
def test_an_id_does_not_serve_for_another_request(
    name: str, backend: Backend, world: World
) -> None:
    request, other = (make(world) for make in ONCE[name])
    first = backend.call(request, "an-id")
    done = world.effects()
    with pytest.raises(RequestReused):
        backend.call(other, "an-id")
    assert world.effects() == done
    assert backend.call(request, "an-id") == first


@pytest.mark.parametrize("name", list(ONCE))
def test_requests_with_one_id_that_race_are_done_once(
    name: str, backend: Backend, world: World
) -> None:
    request, count = ONCE[name][0](world), 6
    results: list[Any] = []
    together = threading.Barrier(count)

    def call() -> None:
        together.wait(60)
        results.append(backend.call_from_another(request, "an-id"))

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    done = world.effects()
    assert results == [backend.call(request, "an-id")] * count
    assert world.effects() == done


def test_a_request_that_failed_may_come_again_with_its_id(backend: Backend, world: World) -> None:
    bad = OfferRecords(topic="log", values=())
    for _ in range(2):
        with pytest.raises(UsageError, match="values: one or more"):
            backend.call(bad, "an-id")
    backend.call(OfferRecords(topic="log", values=("c",)), "an-id")
    assert list(world.node.queue("log")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("id", "is_taken"),
    [
        ("x", True),
        ("x" * (REQUEST_ID_CHARS_MAX - 1), True),
        ("!~" * (REQUEST_ID_CHARS_MAX // 2), True),
        ("x" * (REQUEST_ID_CHARS_MAX + 1), False),
        ("", False),
        ("a b", False),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}", False),
        ("a\nb", False),
    ],
)
def test_the_id_of_a_request_is_short_and_visible(
    id: str, is_taken: bool, backend: Backend, world: World
) -> None:
    request = OfferRecords(topic="log", values=("c",))
    if is_taken:
        assert backend.call(request, id) == backend.call(request, id)
    else:
        with pytest.raises(UsageError, match="the id of a request has 1 to 128"):
            backend.call(request, id)
    assert len(world.node.queue("log")) == 2 + is_taken


def test_an_action_that_may_be_repeated_as_it_is_needs_no_id(
    backend: Backend, world: World
) -> None:
    for name in ("one", "two"):
        backend.call(CreateTopic(topic=name), "an-id")
    assert {"one", "two"} <= set(world.node.topics())
