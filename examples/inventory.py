"""A shared inventory in one file: stock and reservations on a state machine of its own.

`python examples/inventory.py` runs two warehouses that sell from one stock: neither sells more than
it knows of, pieces that both sold while apart show as oversold, and one of them settles it.
docs/start/inventory.md builds this file step by step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import datalattice
from datalattice.errors import UsageError
from datalattice.protobuf import Field, Message
from datalattice.weaver import (
    Dag,
    HeadReader,
    HeadTable,
    Machine,
    MachineStore,
    Op,
    Proposal,
    StateReader,
    StateWriter,
    Written,
    command,
    query,
    stream,
)

# --- messages -------------------------------------------------------------------------------------


class Stock(Message, name="example.inventory.Stock"):
    """The number of pieces of an item that were counted."""

    item: Annotated[str, Field(1)] = ""
    count: Annotated[int, Field(2, "uint32")] = 0


class Reservation(Message, name="example.inventory.Reservation"):
    """A number of pieces of an item that are held for a customer."""

    item: Annotated[str, Field(1)] = ""
    count: Annotated[int, Field(2, "uint32")] = 0
    customer: Annotated[str, Field(3)] = ""


class Release(Message, name="example.inventory.Release"):
    """Reservations of an item that are given up."""

    item: Annotated[str, Field(1)] = ""
    reservations: Annotated[tuple[bytes, ...], Field(2)] = ()


class Payload(Message, name="example.inventory.Payload"):
    """The signed payload: one of the three."""

    stock: Annotated[Stock | None, Field(1, oneof="op")] = None
    reserve: Annotated[Reservation | None, Field(2, oneof="op")] = None
    release: Annotated[Release | None, Field(3, oneof="op")] = None


class Item(Message, name="example.inventory.Item"):
    """The name of an item."""

    item: Annotated[str, Field(1)] = ""


class Held(Message, name="example.inventory.Held"):
    """A reservation and its hash."""

    hash: Annotated[bytes, Field(1)] = b""
    count: Annotated[int, Field(2, "uint32")] = 0
    customer: Annotated[str, Field(3)] = ""


class Level(Message, name="example.inventory.Level"):
    """The stock of an item. free: negative if more was reserved than counted.

    counts: several if warehouses counted at the same time; the first one is used.
    """

    item: Annotated[str, Field(1)] = ""
    counts: Annotated[tuple[Stock, ...], Field(2)] = ()
    held: Annotated[tuple[Held, ...], Field(3)] = ()
    free: Annotated[int, Field(4, "int32")] = 0


class Levels(Message, name="example.inventory.Levels"):
    """Several items."""

    items: Annotated[tuple[Level, ...], Field(1)] = ()


# --- the machine ----------------------------------------------------------------------------------

STOCK: Final = b"stock/"  # then the item: a row of heads, whose value is the count
HELD: Final = b"held/"  # then the item, 0, and the hash of the reservation


def held_prefix(item: str) -> bytes:
    """Return the beginning of the keys of an item's reservations."""
    return HELD + item.encode() + b"\0"


class Inventory(Machine):
    """Stock is a register with conflicts; reservations are a set: their order does not matter."""

    kind = "example:inventory"
    payload = Payload

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        """Change the state by one operation; the event is the item's level."""
        done = Payload.decode(op.payload)
        if done.stock is not None:
            item = done.stock.item
            HeadTable(state, dag.intention, counts_in).apply(
                STOCK + item.encode(), op, str(done.stock.count).encode()
            )
        elif done.reserve is not None:
            item = done.reserve.item
            state.put(held_prefix(item) + op.hash, done.reserve.encode())
        elif done.release is not None:
            # A release depends on its reservations, so they were applied before it.
            item = done.release.item
            for hash in done.release.reservations:
                state.delete(held_prefix(item) + hash)
        else:
            return ()
        return (level_of(item, state, dag),)

    @command
    def count(self, request: Stock, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Set how many pieces there are. It resolves counts that contradict each other."""
        check_item(request.item)
        heads = HeadReader(state).heads(STOCK + request.item.encode())
        return Proposal(Payload(stock=request).encode(), heads)

    @command
    def reserve(self, request: Reservation, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Hold pieces for a customer, if this node knows of enough free ones."""
        check_item(request.item)
        free = level_of(request.item, state, dag).free
        if not 0 < request.count <= free:
            raise UsageError(
                f"{request.count} of {request.item!r} cannot be reserved: {max(free, 0)} are free"
            )
        return Proposal(Payload(reserve=request).encode())

    @command
    def release(self, request: Release, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Give reservations up."""
        prefix = held_prefix(request.item)
        known = [hash for hash in request.reservations if state.get(prefix + hash) is not None]
        if not known or len(known) < len(request.reservations):
            raise UsageError(f"{request.item!r} has no such reservation")
        return Proposal(Payload(release=request).encode(), known)

    @command
    def settle(self, request: Item, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Give up the latest reservations of an oversold item until the others fit."""
        level = level_of(request.item, state, dag)
        missing, given_up = -level.free, []
        for held in reversed(level.held):
            if missing <= 0:
                break
            given_up.append(held.hash)
            missing -= held.count
        if not given_up:
            raise UsageError(f"{request.item!r} is not oversold")
        release = Release(request.item, tuple(given_up))
        return Proposal(Payload(release=release).encode(), given_up)

    @query
    def level(self, request: Item, state: StateReader, dag: Dag) -> Level:
        """Return the stock of an item and its reservations."""
        return level_of(request.item, state, dag)

    @query
    def oversold(self, request: Item, state: StateReader, dag: Dag) -> Levels:
        """Return the items of which more was reserved than counted."""
        names = [key[len(STOCK) :].decode() for key, _ in state.scan(STOCK, b"stock0")]
        levels = [level_of(name, state, dag) for name in names]
        return Levels(tuple(level for level in levels if level.free < 0))

    @stream
    def levels(self, params: Item) -> Callable[[Message], Level | None]:
        """Yield the level of an item, or of all, after each change."""

        def wanted(event: Message) -> Level | None:
            is_wanted = isinstance(event, Level) and params.item in ("", event.item)
            return event if isinstance(event, Level) and is_wanted else None

        return wanted


def check_item(item: str) -> None:
    """Raise UsageError for a name that no item can have."""
    if not item or "\0" in item:
        raise UsageError(f"an item's name is a text of 1 character or more without NUL: {item!r}")


def counts_in(payload: bytes) -> dict[bytes, bytes | None]:
    """Return what a payload wrote to the rows of counts."""
    stock = Payload.decode(payload).stock
    return {} if stock is None else {STOCK + stock.item.encode(): str(stock.count).encode()}


def level_of(item: str, state: StateReader, dag: Dag) -> Level:
    """Return the level of an item; reservations are in the order in which they were made."""
    heads = HeadReader(state).heads(STOCK + item.encode())
    counts = [Payload.decode(dag.intention(hash).payload).stock or Stock() for hash in heads]
    held = sorted(
        reservations(item, state), key=lambda one: (dag.intention(one.hash).stamp, one.hash)
    )
    free = (counts[0].count if counts else 0) - sum(one.count for one in held)
    return Level(item, tuple(counts), tuple(held), free)


def reservations(item: str, state: StateReader) -> Iterator[Held]:
    """Yield the reservations of an item."""
    prefix = held_prefix(item)
    for key, row in state.scan(prefix, prefix[:-1] + b"\1"):
        found = Reservation.decode(row)
        yield Held(key[len(prefix) :], found.count, found.customer)


# --- two warehouses -------------------------------------------------------------------------------


def carry(source: MachineStore, target: MachineStore) -> None:
    """Copy one warehouse's intentions to the other, as a connection or a memory stick would."""
    with source.store.read() as view:
        target.store.ingest([entry.signed.encode() for entry in view.entries()])


def show(title: str, level: Level) -> None:
    """Print a level."""
    held = ", ".join(f"{one.count} for {one.customer}" for one in level.held) or "nothing"
    counts = " or ".join(str(count.count) for count in level.counts)
    print(f"{title:<28} counted {counts}, held {held}, free {level.free}")


def main() -> None:
    """Sell from one stock in two places, together and apart."""
    with (
        tempfile.TemporaryDirectory() as folder,
        datalattice.open(Path(folder, "north")) as north,
        datalattice.open(Path(folder, "south")) as south,
    ):
        ours = north.store("stock", kind=Inventory)
        theirs = south.store(ours.id, kind=Inventory)
        ours.count(item="kettle", count=5)
        ours.reserve(item="kettle", count=3, customer="Ann")
        carry(ours, theirs)
        show("south, after a visit", theirs.level(item="kettle"))
        try:
            theirs.reserve(item="kettle", count=3, customer="Bob")
        except UsageError as error:
            print(f"south refuses: {error}")

        # Apart, each sells the last two.
        theirs.reserve(item="kettle", count=2, customer="Bob")
        ours.reserve(item="kettle", count=2, customer="Cid")
        carry(ours, theirs)
        carry(theirs, ours)
        for level in ours.oversold().items:
            show("north, oversold", level)
        ours.settle(item="kettle")
        carry(ours, theirs)
        show("south, settled", theirs.level(item="kettle"))

        # Both count at the same time: the counts are a conflict until the next count.
        ours.count(item="kettle", count=4)
        theirs.count(item="kettle", count=6)
        carry(ours, theirs)
        carry(theirs, ours)
        show("north, two counts", ours.level(item="kettle"))
        ours.count(item="kettle", count=5)
        carry(ours, theirs)
        show("south, counted again", theirs.level(item="kettle"))


if __name__ == "__main__":
    main()
