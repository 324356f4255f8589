"""Gallery: a machine whose operations name values of the lattice, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from datalattice.protobuf import Field, Message
from datalattice.weaver import (
    Dag,
    Machine,
    Op,
    Proposal,
    StateReader,
    StateWriter,
    Written,
    command,
)


class Photos(Message, name="test.gallery.Photos"):
    """Values that are added, by hash."""

    hashes: Annotated[tuple[bytes, ...], Field(1)] = ()


class Gallery(Machine):
    """Keeps what was added, by operation."""

    kind = "test:gallery"

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        state.put(op.hash, op.payload)
        return ()

    @command
    def add(self, request: Photos, state: StateReader, dag: Dag) -> Proposal[Written]:
        return Proposal(request.encode())

    def references(self, payload: bytes) -> Iterable[bytes]:
        return Photos.decode(payload).hashes
