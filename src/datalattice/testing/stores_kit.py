"""Stores kit: weaver nodes in memory that exchange all their intentions, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import Engine, GroupCommit, MemoryEngine
from datalattice.testing.clocks import TickingClock
from datalattice.weaver import CORE_MACHINES, STORE_TABLES, Machine, StoreInfo, Stores, WeaverStore


class WeaverNode:
    """A node: its key, its engine and its stores."""

    def __init__(
        self,
        number: int,
        engine: Engine | None = None,
        machines: Iterable[type[Machine]] = CORE_MACHINES,
    ) -> None:
        self.number = number
        self.key = KeyPair(bytes([number]) * 32)
        self.engine = engine or MemoryEngine(STORE_TABLES)
        self.clock = TickingClock(1_000_000 + number)
        self.warnings: list[str] = []
        self.commits = GroupCommit(self.engine)
        self.stores = Stores(
            self.commits,
            self.key,
            self.clock,
            SeededEntropy(number),
            machines=machines,
        )
        self.stores.on_warning.add(self.warnings.append)

    def restarted(self) -> WeaverNode:
        """Return the node as it is after a restart, with nothing open."""
        self.stores.close_all()
        return WeaverNode(self.number, self.engine)

    def join(self, info: StoreInfo | WeaverStore) -> WeaverStore:
        """Take a store of another node, empty."""
        return self.stores.adopt(info.id, info.kind)


def envelopes_of(store: WeaverStore) -> list[bytes]:
    """Return all intentions of a store in the order of its log."""
    with store.read() as view:
        return [entry.signed.encode() for entry in view.entries()]


def exchange(*replicas: WeaverStore) -> None:
    """Bring every intention to every replica."""
    sent = [envelopes_of(replica) for replica in replicas]
    for replica in replicas:
        for envelopes in sent:
            replica.ingest(envelopes)


def state_of(store: WeaverStore) -> list[tuple[bytes, bytes]]:
    """Return the rows of the machine's table."""
    with store.read() as view:
        return list(view.data.scan())
