"""Row of a table of heads as a message: `heads` reads and writes the same bytes by hand.

It is a module of its own because `heads` is compiled, and mypyc takes no class with parameters.

Source: docs/design/weaver.md "Heads".
"""

from __future__ import annotations

from typing import Annotated

from datalattice.protobuf import Field, Message


class HeadValue(Message, name="lattice.kvtable.Value"):
    """The winner's value or a tombstone, and the heads, the winner first."""

    value: Annotated[bytes | None, Field(1, oneof="kind")] = None
    tombstone: Annotated[bool | None, Field(2, oneof="kind")] = None
    heads: Annotated[tuple[bytes, ...], Field(3)] = ()
