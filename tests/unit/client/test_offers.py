"""Offering records to a folder's own queues, beside a running node and without one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from datalattice.actions import ActionRequest, AppendRecords
from datalattice.apps.queue import Topics
from datalattice.cells import Vector, encode_message, novelty, to_cell, to_python
from datalattice.client import (
    ControlClient,
    Editor,
    Folder,
    connect,
    editing,
    edits,
    packed,
    reading,
    write_key,
)
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import (
    BadFormat,
    MissingData,
    NoSigningKey,
    OutcomeUnknown,
    PeerUnavailable,
    StoreFull,
    Timeout,
    TypeMismatch,
    UsageError,
)
from datalattice.lattice import root_lattice
from datalattice.node import operations
from datalattice.service import FolderService
from datalattice.store import CellStore
from datalattice.testing.folders import alone, append_change, running_node
from datalattice.testing.polling import LIMIT_S

OWNER = KeyPair(bytes(32))
PATIENCE_S = LIMIT_S


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a folder with a key."""
    found = Folder(tmp_path / "home")
    write_key(found.key_path, OWNER)
    return found


Place = Callable[[Path], AbstractContextManager[object]]


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """Run a node in this process that serves the folder's users, as a daemon does."""
    with (
        closing(FolderService(folder, OWNER, NodeConfig())) as service,
        running_node(folder, service=service),
    ):
        yield


@pytest.fixture(params=[alone, running_node, served])
def place(request: pytest.FixtureRequest) -> Place:
    """Return what has no node run in a folder, and what has one run."""
    made: Place = request.param
    return made


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the operations that clients ask for from here on."""
    names: list[str] = []
    real = ControlClient.call

    def call(client: ControlClient, request: ActionRequest[Any]) -> Any:
        names.append(request.action.name)
        return real(client, request)

    monkeypatch.setattr(ControlClient, "call", call)
    return names


def entries_in(folder: Folder, topic: str = "t") -> list[tuple[object, object, object]]:
    """Return (key, value, headers) of the folder's own records."""
    with reading(folder) as root:
        cursor = RootLattice(root_lattice(), root_lattice().zero() if root is None else root)
        queue = Topics.at(cursor, OWNER.public_key).partition(topic, 0)
        return [(one.key, to_python(one.value), to_python(one.headers)) for one in queue.entries()]


def values_in(folder: Folder) -> list[object]:
    return [value for _, value, _ in entries_in(folder)]


def test_records_are_on_disk_with_keys_and_headers(folder: Folder, place: Place) -> None:
    with place(folder.path), editing(folder) as editor:
        assert editor.offer_many("t", 0, ["one", 2]) == range(2)
        assert editor.offer_many("t", 0, [None], ["k"], [{"a": 1}]) == range(2, 3)
        assert editor.offer_many("t", 0, ["four", "five"], [None, 5]) == range(3, 5)
        assert editor.offer_many("t", 0, []) == range(5, 5)
        assert entries_in(folder) == [
            (None, "one", {}),
            (None, 2, {}),
            ("k", None, {"a": 1}),
            (None, "four", {}),
            (5, "five", {}),
        ]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("t", 0, ["one"], ["k", "l"]), UsageError, "`keys` has 2 elements for 1 values"),
        (("t", 0, ["one"], None, [{}, {}]), UsageError, "`headers` has 2 elements for 1 values"),
        (("t", 0, ["one"], None, [7]), TypeMismatch, "`headers` is not a mapping or None"),
        ((None, 0, ["one"]), UsageError, "topic"),
        (("", 0, ["one"]), UsageError, "the topic's name is empty"),
        (("t", 0, [object()]), TypeMismatch, "object"),
    ],
)
def test_what_is_no_record_is_refused(
    folder: Folder, place: Place, arguments: Any, error: Any, words: str
) -> None:
    with place(folder.path), editing(folder) as editor:
        editor.offer_many("t", 0, ["before"])
        with pytest.raises(error, match=words):
            editor.offer_many(*arguments)
        assert values_in(folder) == ["before"]


def offered(editor: Editor, values: list[object], requests: list[str]) -> list[str]:
    """Return what was asked of the node for an offer."""
    requests.clear()
    assert len(editor.offer_many("t", 0, values)) == len(values)
    return list(requests)


def test_records_go_by_one_request_and_very_many_by_an_edit(
    folder: Folder, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_node(folder.path), editing(folder) as editor:
        monkeypatch.setattr(edits, "OFFER_RECORDS_MAX", 8)
        assert offered(editor, list(range(7)), requests) == ["queue.append"]
        assert offered(editor, list(range(8)), requests) == ["queue.append"]
        assert offered(editor, list(range(9)), requests) == ["root.swap"]
        long: list[object] = ["x" * 3_000, "y" * 5_000]
        columns = Vector.of((to_cell(long), None, None))
        size = sum(len(encoding) for _, encoding, _ in novelty(columns))
        monkeypatch.setattr(edits, "_BATCH_BYTES", size)
        assert offered(editor, long, requests) == ["queue.append"]
        monkeypatch.setattr(edits, "_BATCH_BYTES", size - 1)
        assert offered(editor, long, requests)[-1] == "root.swap"
        assert values_in(folder) == [*range(7), *range(8), *range(9), *long, *long]


def test_records_may_refer_to_what_was_staged(folder: Folder, place: Place) -> None:
    value = ["z" * 4_000, *("w" * 300 for _ in range(40))]
    with place(folder.path), editing(folder) as editor:
        cell = to_cell(value)
        editor.stage(cell)
        assert editor.offer_many("t", 0, [cell]) == range(1)
        assert values_in(folder) == [value]


def asked(
    folder: Folder, values: object = ("v",), home: Any = None, **changed: Any
) -> tuple[int, int]:
    """Ask the node for an offer; return where its records are."""
    columns = [values, changed.pop("keys", None), changed.pop("headers", None)]
    usual: dict[str, Any] = {
        "owner": OWNER.public_key,
        "topic": "t",
        "partition": 0,
        "packed": packed(to_cell(columns), home),
    }
    client = connect(folder.path)
    assert client is not None
    with client:
        made = client.call(AppendRecords(**(usual | changed)))
    return made.first, made.count


def test_the_node_refuses_what_is_no_offer(folder: Folder, tmp_path: Path) -> None:
    other = KeyPair(bytes([7]) * 32).public_key
    wrong: list[tuple[dict[str, object], Any, str]] = [
        ({"owner": b""}, UsageError, "AppendRecordsRequest.owner: bytes"),
        ({"owner": bytes(31)}, UsageError, "AppendRecordsRequest.owner: bytes"),
        ({"owner": other}, NoSigningKey, "no key here may sign for the owner"),
        ({"topic": None}, UsageError, "topic"),
        ({"topic": ""}, UsageError, "the topic's name is empty"),
        ({"partition": None}, UsageError, "records are appended to a partition, got nil"),
        ({"packed": b""}, BadFormat, "a value is cut off"),
        ({"packed": encode_message(7)}, UsageError, "records is a vector"),
        ({"packed": encode_message(to_cell([["v"]]))}, UsageError, "records are .values keys"),
        ({"values": None}, UsageError, "values is a vector"),
        ({"values": {"a": 1}}, UsageError, "values is a vector"),
        ({"values": []}, UsageError, "values are 1 to 10000 in one offer, got 0"),
        ({"keys": "k"}, UsageError, "keys is a vector"),
        ({"keys": []}, UsageError, "keys are 1 to 10000 in one offer, got 0"),
        ({"keys": ["k", "l"]}, UsageError, "`keys` has 2 elements for 1 values"),
        ({"headers": [1]}, TypeMismatch, "`headers` is not a mapping or None"),
    ]
    with running_node(folder.path):
        for changed, error, words in wrong:
            with pytest.raises(error, match=words):
                asked(folder, **changed)
        with CellStore.open(tmp_path / "elsewhere") as home:
            home.commit(to_cell(["x" * 1_000, "y" * 2_000]))
            for values in (home.root(), [home.root()]):
                with pytest.raises(MissingData, match="missing cells: 0x"):
                    asked(folder, values, home)
        # Nothing of it stays behind, and nothing is in the way of what follows.
        assert asked(folder) == (0, 1)
        assert values_in(folder) == ["v"]


def test_the_node_appends_so_many_records_at_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "OFFER_RECORDS_MAX", 8)
    with running_node(folder.path):
        assert asked(folder, values=list(range(7))) == (0, 7)
        assert asked(folder, values=list(range(8)), keys=list(range(8))) == (7, 8)
        for name in ("values", "keys", "headers"):
            with pytest.raises(UsageError, match=f"{name} are 1 to 8 in one offer, got 9"):
                asked(folder, **{name: [None] * 9})
        assert len(values_in(folder)) == 15


def test_without_a_key_of_the_node_nothing_is_offered(folder: Folder) -> None:
    with (
        running_node(folder.path, has_key=False),
        editing(folder) as editor,
        pytest.raises(NoSigningKey, match="started without a key"),
    ):
        editor.offer_many("t", 0, ["one"])


def test_on_a_full_disk_one_offer_is_kept_and_later_ones_are_refused(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise StoreFull("no room")

    with running_node(folder.path), editing(folder) as editor:
        assert editor.offer_many("t", 0, ["before"]) == range(1)
        with monkeypatch.context() as patch:
            patch.setattr(CellStore, "commit", full)
            with pytest.raises(StoreFull, match="no room; the edit is not acknowledged: the node"):
                editor.offer_many("t", 0, ["kept"])
            for _ in range(3):
                with pytest.raises(StoreFull, match=r"^no room$"):
                    editor.offer_many("t", 0, ["refused"])
            with pytest.raises(StoreFull, match=r"^no room$"):
                editor.edit(append_change(["refused"], "other"))
        assert editor.offer_many("t", 0, ["after"]) == range(2, 3)
        assert values_in(folder) == ["before", "kept", "after"]
        assert entries_in(folder, "other") == []


def test_an_answer_that_does_not_come_is_an_error_and_nothing_is_offered_again(
    folder: Folder, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ControlClient._receive

    def lost(client: ControlClient) -> bytes:
        real(client)
        raise ConnectionResetError

    with running_node(folder.path):
        with editing(folder) as editor, monkeypatch.context() as patch:
            patch.setattr(ControlClient, "_receive", lost)
            with pytest.raises(OutcomeUnknown, match="whether the edit happened is not known"):
                editor.offer_many("t", 0, ["one"])
            assert requests == ["queue.append"]
        assert values_in(folder) == ["one"]


def test_after_a_time_out_the_connection_is_of_no_more_use(tmp_path: Path) -> None:
    """What is asked for next must not be done while its answer is taken for a late one."""
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        with ControlClient(path, timeout_s=0.01) as client:
            with pytest.raises(Timeout, match="the node did not answer"):
                client.call(AppendRecords(packed=b"one", owner=bytes(32)))
            with pytest.raises(PeerUnavailable, match="the node went away"):
                client.call(AppendRecords(packed=b"two", owner=bytes(32)))
        node, _ = listening.accept()
        with node:
            data = b"".join(iter(lambda: node.recv(65_536), b""))
    assert b"one" in data
    assert b"two" not in data


class Offering(threading.Thread):
    """Somebody who offers one record after the other until that fails."""

    def __init__(self, folder: Folder, name: str, count: int | None = None) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.label = name
        self.acknowledged: dict[int, str] = {}
        self.error: Exception | None = None
        self.ready = threading.Event()
        self._count = count

    def run(self) -> None:
        """Offer."""
        number = 0
        try:
            with editing(self.folder) as editor:
                while number != self._count:
                    value = f"{self.label} {number}"
                    (offset,) = editor.offer_many("t", 0, [value])
                    self.acknowledged[offset] = value
                    number += 1
                    if number == 5:
                        self.ready.set()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self.ready.set()


def test_a_node_that_stops_has_each_acknowledged_record_once(folder: Folder) -> None:
    with running_node(folder.path):
        writers = [Offering(folder, name) for name in "ab"]
        for one in writers:
            one.start()
        for one in writers:
            assert one.ready.wait(PATIENCE_S)
    for one in writers:
        one.join(PATIENCE_S)
        assert isinstance(one.error, (PeerUnavailable, OutcomeUnknown)), one.error
        assert len(one.acknowledged) >= 5
    stored = values_in(folder)
    assert len(set(stored)) == len(stored), "a record is there twice"
    for one in writers:
        assert {offset: stored[offset] for offset in one.acknowledged} == one.acknowledged
        count = len(one.acknowledged)
        own = [str(value) for value in stored if str(value).startswith(one.label)]
        # The one under way may be there, too: its error says that this is not known.
        assert own in ([f"{one.label} {n}" for n in range(count + more)] for more in (0, 1))
        if len(own) > count:
            assert "whether the edit happened is not known" in str(one.error)


def test_many_who_offer_get_offsets_of_their_own(folder: Folder) -> None:
    with running_node(folder.path):
        writers = [Offering(folder, name, 20) for name in "abcd"]
        for one in writers:
            one.start()
        for one in writers:
            one.join(PATIENCE_S)
            assert not one.is_alive()
            assert one.error is None
        taken = {offset: value for one in writers for offset, value in one.acknowledged.items()}
        assert [taken[offset] for offset in range(80)] == values_in(folder)


def test_offers_wait_for_an_edit_that_was_in_vain(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever offers all the time must not keep an edit from ever succeeding."""
    monkeypatch.setattr(operations, "GIVE_WAY_S", PATIENCE_S)
    runs: list[Offering] = []

    def change(cursor: RootLattice, keys: KeyPair) -> int:
        runs.append(Offering(folder, f"offer {len(runs)}", 1))
        runs[-1].start()
        # The first one passes; a later one waits for this edit, which must not wait for it.
        runs[-1].join(PATIENCE_S if len(runs) == 1 else 0.2)
        return Topics.at(cursor, keys.public_key).partition("t", 0).offer("edit")

    with running_node(folder.path):
        with editing(folder) as editor:
            editor.offer_many("t", 0, ["first"])
            assert editor.edit(change) == 2
        assert len(runs) == 2
        for one in runs:
            one.join(PATIENCE_S)
            assert one.error is None
        assert values_in(folder) == ["first", "offer 0 0", "edit", "offer 1 0"]


def test_offers_wait_for_so_long_only(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "GIVE_WAY_S", 0.05)

    def given_up(cursor: RootLattice, keys: KeyPair) -> None:
        with editing(folder) as other:
            other.offer_many("t", 0, [f"offer {len(tries)}"])
        append_change(["edit"])(cursor, keys)
        tries.append(1)
        if len(tries) == 2:
            raise ZeroDivisionError

    tries: list[int] = []
    with running_node(folder.path), editing(folder) as editor:
        with pytest.raises(ZeroDivisionError):
            editor.edit(given_up)
        assert editor.offer_many("t", 0, ["last"]) == range(2, 3)
        assert values_in(folder) == ["offer 0", "offer 1", "last"]
