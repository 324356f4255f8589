"""A daemon's doors between real processes: sockets, tokens, kill -9, the end."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Self

import pytest

import datalattice
from datalattice.actions import (
    AddPeer,
    CreateStore,
    CreateTopic,
    DrainNode,
    Empty,
    FollowTopic,
    GetFile,
    GetNodeHealth,
    GetNodeStatus,
    GetPolicy,
    ListPeers,
    ListStorePeers,
    MakeDirectory,
    NameNode,
    NodeEvent,
    OfferRecords,
    PutFile,
    PutPolicy,
    ReadRecords,
    ReloadSettings,
    RightHolders,
    StopNode,
    TakeLock,
    WatchAudit,
    WatchNode,
    WriteFile,
)
from datalattice.cli.node.peers import health_document
from datalattice.client import connect, running
from datalattice.client.credentials import make_token
from datalattice.client.rest import RestClient
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import (
    Draining,
    FileLocked,
    PeerUnavailable,
    Unauthenticated,
    Unauthorized,
    UsageError,
)
from datalattice.lattice import did_of
from datalattice.node import take_socket
from datalattice.testing.polling import until
from datalattice.testing.ports import held_port
from datalattice.testing.processes import killing

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

pytestmark = [pytest.mark.once, pytest.mark.processes]

WAIT_S = 120


class Process:
    """`lattice daemon` on a folder."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        before: Sequence[str] = (sys.executable, "-m", "datalattice.cli"),
        pass_fds: Sequence[int] = (),
        stderr: IO[bytes] | None = None,
    ) -> None:
        self.folder = folder
        process = subprocess.Popen(
            [*before, "--dir", str(folder), "--json", "daemon",
             "--port", "0", "--attached", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **environment},
            pass_fds=pass_fds,
        )  # fmt: skip
        with contextlib.ExitStack() as stack:
            self.process = stack.enter_context(killing(process))
            assert process.stdout is not None
            lines = list(takewhile(lambda line: line != "}\n", process.stdout))
            self.ready: dict[str, Any] = json.loads("".join([*lines, "}"]))
            self._killing = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._killing.close()

    def end(self, number: int = signal.SIGTERM) -> int:
        with self._killing:
            self.process.send_signal(number)
            return self.process.wait(WAIT_S)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Process]:
    with Process(tmp_path / "node", "--rest", "127.0.0.1:0") as made:
        yield made


def test_our_own_user_does_all_through_the_socket(daemon: Process) -> None:
    path = daemon.ready["doors"]["socket"]
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    with RestClient(path) as client:
        client.call(OfferRecords(topic="log", values=("a", "b")))
        assert client.call(GetNodeStatus()).data_path == str(daemon.folder)
        assert client.call(ListPeers()).peers == ()
        client.call(AddPeer(address="127.0.0.1:1"))
        assert [peer.address for peer in client.call(ListPeers()).peers] == ["127.0.0.1:1"]
    with datalattice.open(daemon.folder) as node:
        assert list(node.queue("log")) == ["a", "b"]
    grpc = pytest.importorskip("datalattice.client.grpc")
    with grpc.GrpcClient(daemon.ready["doors"]["grpc socket"]) as client:
        assert [one.value for one in client.call(ReadRecords(topic="log")).records] == ["a", "b"]
    assert daemon.end() in (0, 143)
    assert not Path(path).exists()
    assert running(daemon.folder) is None


def test_events_of_the_node_and_its_name_come_through_each_door(daemon: Process) -> None:
    grpc = pytest.importorskip("datalattice.client.grpc")
    socket_, other = daemon.ready["doors"]["socket"], daemon.ready["doors"]["grpc socket"]
    with RestClient(socket_) as rest, grpc.GrpcClient(other) as second:
        streams = [client.stream(WatchNode()) for client in (rest, second)]
        told: list[list[NodeEvent]] = [[], []]
        readers = [
            threading.Thread(target=lambda at=at, one=one: told[at].append(next(one)))
            for at, one in enumerate(streams)
        ]
        for reader in readers:
            reader.start()
        made: list[bytes] = []
        # A reader may begin after the first ones.
        while any(reader.is_alive() for reader in readers):
            made.append(rest.call(CreateStore(store_type="kv", name=f"s{len(made)}")).id)
            readers[0].join(0.05)
        for found in told:
            assert found[0].store_ready is not None
            assert found[0].store_ready.root_id == found[0].store_ready.store_id
            assert found[0].store_ready.store_id in made
        rest.call(NameNode(name="north"))
        assert second.call(GetNodeStatus()).display_name == "north"
        store = rest.call(CreateStore(store_type="kv", name="named")).id
        for id in (store, made[0]):
            assert [one.name for one in rest.call(ListStorePeers(id=id)).items] == ["north"]
        for stream in streams:
            stream.close()


def test_a_node_is_ended_through_a_door_and_an_answer_is_had(daemon: Process) -> None:
    with RestClient(daemon.ready["doors"]["socket"]) as client:
        assert client.call(StopNode()) == Empty()
    assert daemon.process.wait(WAIT_S) == 0
    daemon.end()
    assert running(daemon.folder) is None


def test_others_read_and_write_what_their_credential_allows(
    tmp_path: Path, ending: contextlib.ExitStack
) -> None:
    admin, other = KeyPair.generate(), KeyPair.generate()
    options = ("--rest", "127.0.0.1:0", "--admin", did_of(admin.public_key))
    daemon = ending.enter_context(Process(tmp_path / "node", *options))
    url = daemon.ready["doors"]["rest"]

    def client(pair: KeyPair | None, audience: str = url) -> RestClient:
        if pair is None:
            return RestClient(url)
        return RestClient(url, token=lambda: make_token(pair, audience, SystemClock().now_ms()))

    offer = OfferRecords(topic="log", values=("x",))
    with client(admin) as allowed, client(other) as narrow, client(None) as nobody:
        assert allowed.call(offer).spans[0].end == 1
        assert nobody.call(ReadRecords(topic="log")).end == 1
        with pytest.raises(Unauthenticated):
            nobody.call(offer)
        with pytest.raises(Unauthorized):
            narrow.call(offer)
        assert nobody.call(GetNodeStatus()).data_path == ""
    with client(admin, "http://elsewhere") as wrong, pytest.raises(Unauthenticated):
        wrong.call(GetNodeStatus())
    daemon.end()


def test_what_was_answered_survives_kill_9(daemon: Process, ending: contextlib.ExitStack) -> None:
    path = daemon.ready["doors"]["socket"]
    with RestClient(path) as client:
        for number in range(20):
            client.call(OfferRecords(topic="log", values=(number,)))
        daemon.end(signal.SIGKILL)
        with pytest.raises(PeerUnavailable):
            client.call(OfferRecords(topic="log", values=(99,)))
    again = ending.enter_context(Process(daemon.folder))
    with RestClient(again.ready["doors"]["socket"]) as client:
        found = client.call(ReadRecords(topic="log")).records
        assert [one.value for one in found] == list(range(20))
    again.end()


@pytest.mark.parametrize("door", ["socket", "grpc socket"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stream_goes_on_with_a_daemon_that_was_started_anew(
    number: int, door: str, daemon: Process, ending: contextlib.ExitStack
) -> None:
    kinds: dict[str, Any] = {"socket": RestClient}
    if door != "socket":
        kinds[door] = pytest.importorskip("datalattice.client.grpc").GrpcClient
    path = daemon.ready["doors"][door]
    with kinds[door](path) as client:
        client.call(OfferRecords(topic="log", values=("a", "b")))
        records = client.stream(FollowTopic(topic="log"))
        assert [next(records).value for _ in range(2)] == ["a", "b"]
        daemon.end(number)
        again = ending.enter_context(Process(daemon.folder))
        with kinds[door](path) as other:
            other.call(OfferRecords(topic="log", values=("c",)))
        assert next(records).value == "c"
        records.close()
        again.end()


def test_a_foreign_name_is_not_served_on_loopback(daemon: Process) -> None:
    host, port = daemon.ready["doors"]["rest"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.sendall(
            b"GET /api/v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        )
        assert connection.makefile("rb").readline().split()[1] == b"421"


def test_latticed_is_the_daemon() -> None:
    code = "from datalattice.cli import start_daemon; start_daemon()"
    shown = subprocess.check_output([sys.executable, "-c", code, "--help"], text=True)
    assert "serves its users" in shown


def health(daemon: Process) -> dict[str, Any]:
    client = connect(daemon.folder)
    assert client is not None
    with client:
        return health_document(client)


@pytest.mark.parametrize("door", ["rest", "grpc"])
def test_a_port_that_is_taken_is_tried_again_and_the_other_doors_serve(
    door: str, tmp_path: Path, ending: contextlib.ExitStack
) -> None:
    port = ending.enter_context(held_port())  # a third process would keep it from the daemon
    with socket.create_server(("127.0.0.1", port)):
        address = f"127.0.0.1:{port}"
        daemon = ending.enter_context(Process(tmp_path / "node", f"--{door}", address))
        with RestClient(daemon.ready["doors"]["socket"]) as client:
            client.call(OfferRecords(topic="log", values=("a",)))
        found = health(daemon)
        assert found["health"].startswith("degraded")
        assert address in found["reasons"]["doors"]
        assert "rest" in found["reasons"]["doors"] or "grpc" in found["reasons"]["doors"]
    until(lambda: health(daemon)["reasons"] == {})
    if door == "rest":
        with RestClient(daemon.ready["doors"]["rest"]) as client:
            assert client.call(ReadRecords(topic="log")).end == 1
    assert daemon.end() in (0, 143)


def test_settings_are_read_again_and_a_wrong_file_changes_nothing(
    tmp_path: Path, ending: contextlib.ExitStack
) -> None:
    admin = KeyPair.generate()
    daemon = ending.enter_context(Process(tmp_path / "node", "--rest", "127.0.0.1:0"))
    url = daemon.ready["doors"]["rest"]
    offer = OfferRecords(topic="log", values=("x",))
    with RestClient(url, token=lambda: make_token(admin, url, SystemClock().now_ms())) as client:
        with pytest.raises(Unauthorized):
            client.call(offer)
        file = daemon.folder / "node.toml"
        file.write_text(f"access.admins = ['{did_of(admin.public_key)}']\nnode.rounds_max = 5\n")
        with datalattice.open(daemon.folder) as node:
            assert node.reload() == ["node.rounds_max"]
        client.call(offer)
        file.write_text("access.admins = []\nlimits.reads_per_s = 0\n")
        with (
            datalattice.open(daemon.folder) as node,
            pytest.raises(UsageError, match="reads_per_s"),
        ):
            node.reload()
        client.call(offer)  # what was in force stays
        absent = "listen = '127.0.0.1:0'\ntls = 'on'\ncert = 'absent.pem'\nkey = 'absent.pem'\n"
        file.write_text(f"access.admins = []\n[doors.rest]\n{absent}")
        with (
            datalattice.open(daemon.folder) as node,
            pytest.raises(UsageError, match=r"absent\.pem cannot be read"),
        ):
            node.reload()
        client.call(offer)
        file.write_text("limits.effects_per_s = 1\n[access]\n")
        with RestClient(daemon.ready["doors"]["socket"]) as owner:
            assert owner.call(ReloadSettings()).waiting == ()
        with pytest.raises(Unauthorized):
            client.call(offer)
    daemon.end()


def test_all_doors_and_the_control_socket_have_one_service(daemon: Process) -> None:
    lock = TakeLock(drive="files", path="/a", owner_note="x")
    write = WriteFile(drive="files", path="/a", data=b"x")
    control = connect(daemon.folder)
    assert control is not None
    with control, RestClient(daemon.ready["doors"]["socket"]) as rest:
        control.call(write)
        rest.call(PutPolicy(scope="values", rights=(RightHolders(right="r", who=()),)))
        assert control.call(GetPolicy(scope="values")).rights[0].right == "r"
        control.call(lock)
        with pytest.raises(FileLocked):
            rest.call(write)
        with control.stream(WatchAudit()) as audit:
            rest.call(CreateTopic(topic="t"))
            made = next(audit).record
            assert made is not None
            assert made.action == "queue.create"


def test_a_daemon_that_drains_takes_no_requests_and_answers_its_owner(daemon: Process) -> None:
    control = connect(daemon.folder)
    assert control is not None
    place = daemon.ready["doors"]["socket"]
    with control, RestClient(place) as rest:
        rest.call(OfferRecords(topic="log", values=("a",)))
        records = rest.stream(FollowTopic(topic="log", start="0"))
        assert next(records).value == "a"
        rest.call(DrainNode())
        with pytest.raises((Draining, PeerUnavailable)):
            next(records)
        until(lambda: not Path(place).exists())
        assert control.call(GetNodeHealth()).health == "draining"
        assert control.call(ReadRecords(topic="log")).end == 1
    with pytest.raises(PeerUnavailable), RestClient(place) as late:
        late.call(GetNodeStatus())
    assert daemon.end() in (0, 143)


def test_a_stream_ends_when_the_daemon_drains_and_health_says_so(
    tmp_path: Path, ending: contextlib.ExitStack
) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "node.toml").write_text("node.http_port = 0\n")
    daemon = ending.enter_context(Process(tmp_path / "node", "--rest", "127.0.0.1:0"))
    with RestClient(daemon.ready["doors"]["rest"]) as client:
        client.call(GetNodeStatus())
        with RestClient(daemon.ready["doors"]["socket"]) as owner:
            owner.call(OfferRecords(topic="log", values=("a",)))
            records = owner.stream(FollowTopic(topic="log", start="0"))
            assert next(records).value == "a"
            assert daemon.end() in (0, 143)
            with pytest.raises((Draining, PeerUnavailable)):
                next(records)


def test_a_service_manager_hears_of_the_start_the_loops_and_the_end(
    tmp_path: Path, ending: contextlib.ExitStack
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hearing:
        hearing.bind(str(tmp_path / "n"))
        hearing.settimeout(WAIT_S)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "900000"}
        daemon = ending.enter_context(Process(tmp_path / "node", environment=environment))
        said = [hearing.recv(1_000).decode() for _ in range(3)]
        assert said == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
        daemon.process.send_signal(signal.SIGHUP)
        while not said[-1].startswith("RELOADING=1"):
            said.append(hearing.recv(1_000).decode())
        while said[-1] != "READY=1":
            said.append(hearing.recv(1_000).decode())
        daemon.end()
        while said[-1] != "STOPPING=1":
            said.append(hearing.recv(1_000).decode())


HANDED = """
import os, sys
for place, fd in enumerate(sys.argv[2].split(",")):
    os.dup2(int(fd), 3 + place)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "3", "LISTEN_FDNAMES": sys.argv[1]}
os.execv(sys.executable, [sys.executable, "-m", "datalattice.cli", *sys.argv[3:]])
"""


def test_sockets_that_were_handed_over_are_served_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for one, name in zip(made, ("c", "s"), strict=True):
            one.bind(str(tmp_path / name))
            (tmp_path / name).chmod(0o600)
            one.listen()
        web = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        # High, so that none is overwritten before it is copied.
        high = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 50) for one in (*made, web)]
        port = web.getsockname()[1]
        code = [sys.executable, "-c", HANDED, "control:socket:rest", ",".join(map(str, high))]
        try:
            daemon = stack.enter_context(
                Process(folder, "--rest", "127.0.0.1:1", before=code, pass_fds=high)
            )
        finally:
            for fd in high:
                os.close(fd)
        assert daemon.ready["doors"]["rest"] == f"http://127.0.0.1:{port}"
        for place in (str(tmp_path / "s"), f"http://127.0.0.1:{port}"):
            with RestClient(place) as client:
                client.call(GetNodeStatus())
        assert health(daemon)["health"] == "ok"
        daemon.end()
        assert (tmp_path / "c").exists()  # they are the service manager's
        assert (tmp_path / "s").exists()


def test_a_handed_over_socket_that_others_can_open_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "s", "LISTEN_FDS": "1"}
        here = os.dup2(made.fileno(), fcntl.fcntl(made.fileno(), fcntl.F_DUPFD, 3))
        environment["LISTEN_FDNAMES"] = ":".join([*("x" for _ in range(3, here)), "s"])
        environment["LISTEN_FDS"] = str(here - 2)
        try:
            with pytest.raises(UsageError, match="does not listen"):
                take_socket("s", environment)
            made.listen()
            (tmp_path / "s").chmod(0o660)
            with pytest.raises(UsageError, match="SocketMode=0600"):
                take_socket("s", environment)
            (tmp_path / "s").chmod(0o600)
            taken = take_socket("s", environment)
            assert taken is not None
            taken.close()
            assert take_socket("t", environment) is None
            assert take_socket("s", {**environment, "LISTEN_PID": "1"}) is None
        finally:
            os.close(here)


LARGE_MIB = 256
GROWTH_MIB_MAX = 96
"""How much more memory a daemon may take for a file of 256 MiB, in either direction."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("door", ["socket", "grpc socket"])
def test_a_file_of_256_mib_goes_there_and_back_in_little_memory(door: str, daemon: Process) -> None:
    kinds: dict[str, Any] = {"socket": RestClient}
    if door != "socket":
        kinds[door] = pytest.importorskip("datalattice.client.grpc").GrpcClient
    piece = random.Random(1).randbytes(1 << 20)

    def body() -> Iterator[bytes]:
        for number in range(LARGE_MIB):
            yield number.to_bytes(4, "big") + piece[4:]

    status = Path(f"/proc/{daemon.process.pid}/status")

    def peak_mib() -> int:
        return int(status.read_text().split("VmHWM:")[1].split()[0]) >> 10

    with kinds[door](daemon.ready["doors"][door]) as client:
        client.call(MakeDirectory(drive="d"))
        before = peak_mib()
        sent = hashlib.sha256()
        for one in body():
            sent.update(one)
        assert client.upload(PutFile(drive="d", path="/big"), body()).size == LARGE_MIB << 20
        came = hashlib.sha256()
        with client.stream(GetFile(drive="d", path="/big")) as pieces:
            for one in pieces:
                came.update(one.data)
        assert came.digest() == sent.digest()
        assert peak_mib() - before < GROWTH_MIB_MAX
