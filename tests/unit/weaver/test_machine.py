"""A user defines a typed machine in forty lines; its methods are described and dispatched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from datalattice.errors import BadFormat, UnsupportedOperation, UsageError
from datalattice.protobuf import Field, Message
from datalattice.testing.machine_kit import KIT_AUTHORS, MachineReplica
from datalattice.weaver.heads import HeadReader, HeadTable
from datalattice.weaver.kv import KvMachine
from datalattice.weaver.machine import (
    Dag,
    Machine,
    MethodKind,
    Proposal,
    StateReader,
    StateWriter,
    UnknownMethod,
    Written,
    command,
    query,
    stream,
)
from datalattice.weaver.op import Op
from datalattice.weaver.sexpr import sexpr_text

A, B = KIT_AUTHORS[:2]

# --- forty lines --------------------------------------------------------------------------------


class Move(Message, name="stock.Move"):
    item: Annotated[str, Field(1)] = ""
    count: Annotated[int, Field(2, "int32")] = 0


class Level(Message, name="stock.Level"):
    item: Annotated[str, Field(1)] = ""
    count: Annotated[int, Field(2, "int64")] = 0


class Stock(Machine):
    kind = "example:stock"
    payload = Move

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        move = Move.decode(op.payload)
        key = move.item.encode()
        count = int(state.get(key) or b"0") + move.count
        state.put(key, b"%d" % count)
        return [Level(move.item, count)]

    @command
    def move(self, request: Move, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Move items in, or out while there are enough."""
        if int(state.get(request.item.encode()) or b"0") + request.count < 0:
            raise UsageError(f"there are fewer than {-request.count} of {request.item!r}")
        return Proposal(request.encode())

    @query
    def level(self, request: Level, state: StateReader, dag: Dag) -> Level:
        return Level(request.item, int(state.get(request.item.encode()) or b"0"))

    @stream
    def low_levels(self, params: Level) -> Callable[[Message], Level | None]:
        """Follow levels below a count."""
        return lambda e: e if isinstance(e, Level) and e.count < params.count else None


def test_a_machine_of_forty_lines() -> None:
    replica = MachineReplica(Stock())
    answer = replica.execute(A, "Move", Move("apple", 3))
    assert isinstance(answer, Written)
    replica.execute(B, "move", Move("apple", -2))
    assert replica.query("Level", Level("apple")) == Level("apple", 1)
    with pytest.raises(UsageError, match="fewer than 2 of 'apple'"):
        replica.execute(A, "Move", Move("apple", -2))
    low = replica.machine.event_filter("low-levels", Level(count=2))
    assert [low(event) for event in replica.take_events()] == [None, Level("apple", 1)]
    (shown,) = replica.machine.summarize(Move("apple", -2).encode())
    assert sexpr_text(shown) == '(Move (item "apple") (count -2))'


# --- dispatch -----------------------------------------------------------------------------------


class Recorder(Machine):
    """Notes which handler was called, and with which view of the operations."""

    kind = "test:recorder"

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        return ()

    @command
    def write(self, request: Written, state: StateReader, dag: Dag) -> Proposal[Level]:
        self.calls.append(("command", request.hash))
        return Proposal(b"payload", response=lambda hash: Level(hash.hex()))

    @query
    def read(self, request: Written, state: StateReader, dag: Dag) -> Level:
        self.calls.append(("query", dag.intention(request.hash).payload))
        return Level()


def test_query_routed_to_handle_query() -> None:
    machine = Recorder()
    replica = MachineReplica(machine)
    signed = replica.write(A, b"payload")
    assert replica.query("Read", Written(signed.hash)) == Level()
    assert machine.calls == [("query", b"payload")]


def test_command_routed_to_handle_command() -> None:
    machine = Recorder()
    replica = MachineReplica(machine)
    answer = replica.execute(A, "Write", Written(b"x"))
    assert answer == Level(replica.log.entries[0].signed.hash.hex())
    assert machine.calls == [("command", b"x")]


def test_unknown_method_rejected() -> None:
    replica = MachineReplica(Recorder())
    with pytest.raises(UnknownMethod, match="'Erase'; it has Write, Read"):
        replica.query("Erase", Written())
    with pytest.raises(UnknownMethod, match="Read is a query, not a command"):
        replica.execute(A, "Read", Written())
    with pytest.raises(UnknownMethod, match="Write is a command, not a query"):
        replica.query("Write", Written())


def test_a_request_of_another_type_is_refused() -> None:
    replica = MachineReplica(Recorder())
    with pytest.raises(UsageError, match="Read takes a Written, got Level"):
        replica.query("Read", Level())
    with pytest.raises(UsageError, match="low-levels takes a Level, got Move"):
        Stock().event_filter("low-levels", Move())


# --- introspection ------------------------------------------------------------------------------


def test_methods_and_streams_are_described_by_their_annotations() -> None:
    move, level = Stock.methods()
    assert (move.name, move.kind, move.request, move.response) == (
        "Move",
        MethodKind.COMMAND,
        Move,
        Written,
    )
    assert move.description == "Move items in, or out while there are enough."
    assert (level.name, level.kind, level.response) == ("Level", MethodKind.QUERY, Level)
    assert level.description == ""
    (low,) = Stock.streams()
    assert (low.name, low.params, low.event) == ("low-levels", Level, Level)
    assert [method.name for method in KvMachine.methods()] == [
        "Put",
        "Delete",
        "Batch",
        "Get",
        "List",
        "Inspect",
    ]


@pytest.mark.parametrize(
    ("machine", "service", "methods"),
    [
        (Stock, "example.Stock", {"Move": False, "Level": False, "LowLevels": True}),
        (
            KvMachine,
            "lattice.kv.KvStore",
            {
                **dict.fromkeys(["Put", "Delete", "Batch", "Get", "List", "Inspect"], False),
                "Watch": True,
            },
        ),
    ],
)
def test_descriptors_are_those_of_protobuf(
    machine: type[Machine], service: str, methods: dict[str, bool]
) -> None:
    described = descriptor_pb2.FileDescriptorSet.FromString(machine.descriptor_set())
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.Add(file)
    found = pool.FindServiceByName(service)
    assert machine.service_name() == service
    assert {one.name: one.server_streaming for one in found.methods} == methods


def test_a_subclass_keeps_methods_and_adds_its_own() -> None:
    class More(Stock):
        @query
        def twice(self, request: Level, state: StateReader, dag: Dag) -> Level:
            return Level(request.item, 2)

    assert [method.name for method in More.methods()] == ["Move", "Level", "Twice"]
    assert [method.name for method in Stock.methods()] == ["Move", "Level"]


def test_payloads_without_a_message_are_shown_as_bytes() -> None:
    assert Recorder().summarize(b"\xff") == (b"\xff",)
    assert Recorder.decode_payload(b"\xff") is None
    with pytest.raises(BadFormat):
        Stock().summarize(b"\xff")


# --- declarations that cannot work --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stock", "Example:stock", "a:b:c", ":x", ""])
def test_a_kind_is_namespace_and_name(kind: str) -> None:
    with pytest.raises(UsageError, match="kind is written namespace:name"):
        type("Broken", (Machine,), {"kind": kind})


def test_a_method_cannot_take_the_name_of_one_that_every_machine_has() -> None:
    with pytest.raises(UsageError, match="every machine has `streams`"):
        type("Broken", (Machine,), {"kind": "test:broken", "streams": query(lambda: None)})


class Unannotated(Machine):
    kind = "test:unannotated"

    @query
    def read(self, request, state, dag):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        return Level()


class WrongAnswer(Machine):
    kind = "test:wrong-answer"

    @command
    def write(self, request: Level, state: StateReader, dag: Dag) -> bytes:
        return b""


class WrongStream(Machine):
    kind = "test:wrong-stream"

    @stream
    def follow(self, params: Level) -> Callable[[Message], Level | Move | None]:
        return lambda _: None


class Unmarked(Stock):
    def level(self, request: Level, state: StateReader, dag: Dag) -> Level:
        return Level()


@pytest.mark.parametrize(
    ("machine", "refusal"),
    [
        (Unannotated, "Unannotated.read: annotate its first parameter"),
        (WrongAnswer, "WrongAnswer.write: a command returns Proposal"),
        (WrongStream, "WrongStream.follow: a command returns Proposal"),
        (Unmarked, "Unmarked.level replaces a method without saying"),
    ],
)
def test_declarations_that_cannot_work_are_refused(machine: type[Machine], refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        machine.methods()


def test_a_machine_without_apply() -> None:
    class Bare(Machine):
        kind = "test:bare"

    replica = MachineReplica(Bare())
    replica.write(A, b"x")
    done = replica.project()
    assert done.stall is not None
    assert isinstance(done.stall.error, UnsupportedOperation)


# --- a machine on heads -------------------------------------------------------------------------


class Notes(Machine):
    """One note an author may overwrite; conflicts are kept."""

    kind = "test:notes"

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        table = HeadTable(state, dag.intention, lambda payload: {b"note": payload})
        table.apply(b"note", op, op.payload)
        return ()


def test_a_machine_may_keep_heads_of_its_own() -> None:
    replica = MachineReplica(Notes())
    first = replica.write(A, b"one")
    replica.write(B, b"two")
    with replica.engine.read() as txn:
        heads = HeadReader(replica.state.reader(txn))
        assert heads.get_with_conflict(b"note") == (b"two", True)
        assert first.hash in heads.heads(b"note")
