"""Starts: two nodes with one identity are told of each other by whoever is connected to both.

A node draws a number when it starts, and signs it with its identity in the greeting. A peer with
two connections of one identity and two numbers sends the older one what the newer has signed, and
when that is answered, so both are alive, the newer one what the older has signed:

    [:PING id :PEER :LP S]   S: the dialler's start, in the greeting
    {:LP true :START S}      the other's, in the info of the answer
    [:PING id :TWIN S]       another node with your identity has told me this
    {:START S}               the receiver's, in the info of the answer to that

Where the other end has our own key, a node says its own start so, and nothing else.

S is [:START number time], signed. Its second element is an Integer, so it is no answer to a
challenge, and no section of the root takes a Vector for data of an owner. What is sent on is signed
by the receiver's own key, so a stranger cannot invent a twin; a former start of the receiver itself
is told apart by its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import Keyword, Signed, Value, Vector
from datalattice.crypto import KeyPair
from datalattice.errors import MissingData

START: Final = Keyword("START")
TWIN: Final = Keyword("TWIN")


@dataclass(frozen=True, slots=True)
class Start:
    """A start of a node, as it signed it; its number tells it from others of the same identity.

    time_ms: Unix milliseconds, by its clock.
    """

    public_key: bytes
    number: int
    time_ms: int = field(compare=False)
    signed: Signed = field(compare=False)


def sign_start(identity: KeyPair, number: int, time_ms: int) -> Start:
    """Return the start of a node with this number, signed."""
    signed = Signed.sign(identity, Vector.of((START, number, time_ms)))
    return Start(identity.public_key, number, time_ms, signed)


def read_start(value: Value) -> Start | None:
    """Return what a peer says of a start, None when it is none, or its signature does not hold."""
    try:
        said = value.value if isinstance(value, Signed) else None
        fields = tuple(said) if isinstance(said, Vector) and len(said) == 3 else ()
    except MissingData:
        return None  # a cell of it did not come along
    if not isinstance(value, Signed) or not fields or fields[0] != START:
        return None
    number, time_ms = fields[1:]
    if type(number) is not int or type(time_ms) is not int or not value.verify():
        return None
    return Start(value.public_key, number, time_ms, value)
