"""Null machine, `core:nullstore`: keeps no state, so that replication can be run alone.

Source: docs/design/weaver.md "Shipped machines".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from datalattice.protobuf import Field, Message
from datalattice.weaver.machine import (
    Dag,
    Machine,
    Proposal,
    StateReader,
    StateWriter,
    Written,
    command,
)
from datalattice.weaver.op import Op


class WriteRequest(Message, name="lattice.nullstore.WriteRequest"):
    """Write an operation that no state shows."""

    data: Annotated[bytes, Field(1)] = b""


class NullMachine(Machine):
    """Ignores every payload."""

    kind = "core:nullstore"
    service = "lattice.nullstore.NullStore"

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        """Change nothing."""
        return ()

    @command
    def write(self, request: WriteRequest, state: StateReader, dag: Dag) -> Proposal[Written]:
        """Write an operation."""
        return Proposal(request.data)
