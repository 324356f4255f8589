"""A request with an id is sent again after a lost connection, and only then."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datalattice.actions import GetKey, OfferedRecords, OfferRecords
from datalattice.client import RestClient, RetryPolicy
from datalattice.client.retrying import TIMEOUTS_MAX, Attempts, ConnectionLost, unreached_error
from datalattice.crypto import SeededEntropy
from datalattice.errors import (
    DataLatticeError,
    Draining,
    NoSuchPath,
    OutcomeUnknown,
    PeerUnavailable,
    RequestReused,
    Timeout,
    Unauthenticated,
    UsageError,
)
from datalattice.testing.ports import held_port

OFFER = OfferRecords(topic="log", values=("a",))
AT_ONCE = RetryPolicy(tries=4, first_s=0.0)
DONE = (
    b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n"
    b'{"spans": []}'
)
# Both say that the connection ends: a client that sends at once must not send on it.
REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n"
    b'connection: close\r\ncontent-length: 38\r\n\r\n{"code": "draining", "detail": "ends"}'
)
GATEWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\n"
    b"connection: close\r\ncontent-length: 3\r\n\r\n<p>"
)


def attempts(policy: RetryPolicy = AT_ONCE) -> Attempts:
    return Attempts(policy, SeededEntropy(1), "queue.offer", None)


def test_pauses_double_up_to_the_longest_and_end() -> None:
    sends = attempts(RetryPolicy(tries=6, first_s=1.0, most_s=4.0))
    assert [sends.pause_after(ConnectionLost("gone")) for _ in range(5)] == [1, 2, 4, 4, 4]
    with pytest.raises(OutcomeUnknown, match=f"sent 6 times.*{sends.id}"):
        sends.pause_after(ConnectionLost("gone"))


def test_ids_are_given_or_made_from_entropy() -> None:
    made = [Attempts(AT_ONCE, SeededEntropy(seed), "a", None).id for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    assert len(made[0]) == 32
    assert Attempts(AT_ONCE, SeededEntropy(1), "a", "mine").id == "mine"
    with pytest.raises(UsageError, match="the id of a request"):
        Attempts(AT_ONCE, SeededEntropy(1), "a", "")


@pytest.mark.parametrize(
    "error",
    [unreached_error("refused"), NoSuchPath("x"), Draining("x"), PeerUnavailable("another")],
)
def test_an_error_that_answers_all_sends_is_raised(error: DataLatticeError) -> None:
    with pytest.raises(type(error)) as caught:
        attempts().pause_after(error)
    assert caught.value is error


@pytest.mark.parametrize(
    "error", [unreached_error("refused"), Draining("x"), Unauthenticated("x"), PeerUnavailable("x")]
)
def test_an_answer_without_a_look_for_the_id_leaves_an_earlier_send_open(
    error: DataLatticeError,
) -> None:
    for first in (ConnectionLost("gone"), OutcomeUnknown("the service does not know"), Timeout("")):
        sends = attempts()
        sends.pause_after(first)
        sends.pause_after(error)
        sends.pause_after(error)
        with pytest.raises(OutcomeUnknown):
            sends.pause_after(error)


def test_an_answer_after_a_look_for_the_id_ends_it() -> None:
    for error in (RequestReused("x"), UsageError("x"), NoSuchPath("x")):
        sends = attempts()
        sends.pause_after(ConnectionLost("gone"))
        with pytest.raises(type(error)):
            sends.pause_after(error)


def test_few_sends_wait_in_vain() -> None:
    sends = attempts(RetryPolicy(tries=50, first_s=0.0))
    for _ in range(TIMEOUTS_MAX - 1):
        sends.pause_after(Timeout("no answer"))
    with pytest.raises(OutcomeUnknown):
        sends.pause_after(Timeout("no answer"))


class Server:
    """Takes connections one after the other; each reads one request and gets what comes next."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.ids: list[str] = []
        self.ended = threading.Semaphore(0)
        self._answers = answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with self._listening:
            for answer in self._answers:
                connection, _ = self._listening.accept()
                with connection:
                    data = b""
                    while b"\r\n\r\n" not in data or not data.endswith(b"]"):
                        data += connection.recv(65_536)
                    head = data.split(b"\r\n\r\n")[0].decode().lower()
                    found = [line for line in head.split("\r\n") if "idempotency-key: " in line]
                    self.ids += [line.partition(": ")[2] for line in found]
                    if answer is not None:
                        connection.sendall(answer)
                self.ended.release()


@contextmanager
def served(*answers: bytes | None) -> Iterator[Server]:
    server = Server(list(answers))
    yield server
    server.thread.join(60)
    assert not server.thread.is_alive()


def rest(url: str) -> OfferedRecords:
    with RestClient(url, retry=AT_ONCE, entropy=SeededEntropy(5)) as client:
        return client.call(OFFER)


def async_rest(url: str) -> OfferedRecords:
    pytest.importorskip("httpx")
    from datalattice.client.asyncrest import AsyncRestClient

    async def call() -> OfferedRecords:
        async with AsyncRestClient(url, retry=AT_ONCE, entropy=SeededEntropy(5)) as client:
            return await client.call(OFFER)

    return asyncio.run(call())


CALLS = pytest.mark.parametrize("call", [rest, async_rest])


@CALLS
def test_a_client_sends_again_with_the_same_id(call: Callable[[str], OfferedRecords]) -> None:
    half = DONE[: len(DONE) - 5]
    for answers in ((None, half, REFUSED, DONE), (GATEWAY, DONE)):
        with served(*answers) as server:
            assert call(server.url) == OfferedRecords()
        assert len(server.ids) == len(answers)
        assert set(server.ids) == {SeededEntropy(5).bytes(16).hex()}


@CALLS
def test_a_client_says_that_the_outcome_is_unknown(
    call: Callable[[str], OfferedRecords],
) -> None:
    with served(None, None) as server, pytest.raises(OutcomeUnknown, match="sent 4 times"):
        call(server.url)  # the last two find no service
    assert len(server.ids) == 2


@CALLS
def test_a_request_that_was_not_sent_is_not_in_doubt(
    call: Callable[[str], OfferedRecords],
) -> None:
    with held_port() as port, pytest.raises(PeerUnavailable, match="cannot be reached"):
        call(f"http://127.0.0.1:{port}")


def test_a_connection_that_the_service_ended_is_made_anew() -> None:
    once = RetryPolicy(tries=1)
    with served(DONE, DONE) as server, RestClient(server.url, retry=once) as client:
        client.call(OFFER, request_id="one")
        assert server.ended.acquire(timeout=60)
        client.call(OFFER, request_id="two")
    assert server.ids == ["one", "two"]


def test_what_may_be_repeated_as_it_is_has_no_id_and_is_sent_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def end() -> None:
            listening.accept()[0].close()

        thread = threading.Thread(target=end)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with RestClient(url, retry=AT_ONCE) as client, pytest.raises(PeerUnavailable):
            client.call(GetKey(database="d", key="k"))
        thread.join(60)


# --- over gRPC ------------------------------------------------------------------------------------


@contextmanager
def lost_by_grpc(times: int, tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Serve the offer; the first `times` answers are lost as those of a killed service are."""
    grpc = pytest.importorskip("grpc")
    from concurrent.futures import ThreadPoolExecutor

    ids: list[str] = []

    class Offers(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
        def service(self, _details: object) -> object:
            return grpc.unary_unary_rpc_method_handler(self.answer)

        def answer(self, _data: bytes, context: Any) -> bytes:
            ids.append(dict(context.invocation_metadata())["lattice-request-id"])
            if len(ids) <= times:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            return OfferedRecords().encode()

    path = tmp_path / "grpc.sock"
    server = grpc.server(ThreadPoolExecutor(2), handlers=(Offers(),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield path, ids
    finally:
        server.stop(0).wait(60)


def blocking(path: Path) -> OfferedRecords:
    from datalattice.client.grpc import GrpcClient

    with GrpcClient(path, retry=AT_ONCE, entropy=SeededEntropy(5)) as client:
        return client.call(OFFER)


def waiting(path: Path) -> OfferedRecords:
    from datalattice.client.grpc import AsyncGrpcClient

    async def call() -> OfferedRecords:
        async with AsyncGrpcClient(path, retry=AT_ONCE, entropy=SeededEntropy(5)) as client:
            return await client.call(OFFER)

    return asyncio.run(call())


GRPC_CALLS = pytest.mark.parametrize("call", [blocking, waiting])


@GRPC_CALLS
@pytest.mark.parametrize("times", [0, 1, AT_ONCE.tries - 1, AT_ONCE.tries])
def test_a_grpc_client_sends_again_with_the_same_id(
    call: Callable[[Path], OfferedRecords], times: int, tmp_path: Path
) -> None:
    with lost_by_grpc(times, tmp_path) as (path, ids):
        if times < AT_ONCE.tries:
            assert call(path) == OfferedRecords()
        else:
            with pytest.raises(OutcomeUnknown, match="sent 4 times"):
                call(path)
    assert len(ids) == min(times + 1, AT_ONCE.tries)
    assert set(ids) == {SeededEntropy(5).bytes(16).hex()}


@GRPC_CALLS
def test_a_grpc_request_that_was_not_sent_is_not_in_doubt(
    call: Callable[[Path], OfferedRecords], tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    with pytest.raises(PeerUnavailable, match="failed to connect"):
        call(tmp_path / "none.sock")
