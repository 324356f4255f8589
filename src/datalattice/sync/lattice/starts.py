"""Starts: a peer of two nodes with one identity tells each of them about the other.

A node draws a number when it starts, and signs it with its identity in the greeting. A peer with
two connections of one identity and two numbers sends the older one the newer start. When that is
answered, so that both are alive, it sends the newer one the older start:

    [:PING id :PEER :LP S]   S: the dialler's start, in the greeting
    {:LP true :START S}      the other's, in the info of the answer
    [:PING id :TWIN S]       another node with your identity has sent me this start
    {:START S}               the receiver's, in the info of the answer to that

To an end that has proved our own key, a node sends its own start in a `:TWIN` and nothing else.

S is [:START number time], signed. Its second element is an Integer, so it cannot serve as an answer
to a challenge, and no section of the root takes a Vector for data of an owner. A forwarded start is
signed by the receiver's own key, so strangers cannot invent a twin; the receiver knows a former
start of its own by the number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import Keyword, Signed, Value, Vector
from datalattice.crypto import KeyPair
from datalattice.errors import MissingData

START_TAG: Final = Keyword("START")
TWIN_TAG: Final = Keyword("TWIN")


@dataclass(frozen=True, slots=True)
class NodeStart:
    """A start of a node, signed with its identity.

    number:  tells it from other starts of the same identity.
    time_ms: Unix milliseconds, by the node's clock.
    """

    public_key: bytes
    number: int
    time_ms: int = field(compare=False)
    signed: Signed = field(compare=False)


def sign_start(identity: KeyPair, number: int, time_ms: int) -> NodeStart:
    """Return the start of a node with this number, signed."""
    signed = Signed.sign(identity, Vector.of((START_TAG, number, time_ms)))
    return NodeStart(identity.public_key, number, time_ms, signed)


def read_start(value: Value) -> NodeStart | None:
    """Return a start that a peer sent, None if it is malformed or its signature is not valid."""
    try:
        said = value.value if isinstance(value, Signed) else None
        fields = tuple(said) if isinstance(said, Vector) and len(said) == 3 else ()
    except MissingData:
        return None  # a cell of it did not come along
    if not isinstance(value, Signed) or not fields or fields[0] != START_TAG:
        return None
    number, time_ms = fields[1:]
    # `type`, not `isinstance`: True is an int in Python and another value in a cell.
    if type(number) is not int or type(time_ms) is not int or not value.verify():
        return None
    return NodeStart(value.public_key, number, time_ms, value)
