"""Messages of stores' methods as plain values: bytes as texts, blobs, nesting, what is refused."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from datalattice.cells import Map, Vector
from datalattice.errors import UsageError
from datalattice.protobuf import Field, Message
from datalattice.service.handlers.plain import message_of, value_of


class Inner(Message, name="test.plain.Inner"):
    """Bytes, once and many times."""

    key: Annotated[bytes, Field(1)] = b""
    more: Annotated[tuple[bytes, ...], Field(2)] = ()


class Outer(Message, name="test.plain.Outer"):
    """Messages with bytes, and a number."""

    one: Annotated[Inner | None, Field(1)] = None
    many: Annotated[tuple[Inner, ...], Field(2)] = ()
    number: Annotated[int, Field(3, "uint32")] = 0


def test_bytes_are_texts_where_they_can_be_printed_and_blobs_elsewhere() -> None:
    message = Outer(
        one=Inner(key="grün".encode(), more=(b"a", b"\x00", b"\xff")), many=(Inner(key=b"a\nb"),)
    )
    value = Map.of(
        {
            "one": Map.of({"key": "grün", "more": Vector.of(["a", b"\x00", b"\xff"])}),
            "many": Vector.of([Map.of({"key": b"a\nb", "more": Vector.of([])})]),
            "number": 0,
        }
    )
    assert value_of(message) == value
    assert message_of(Outer, value) == message


def test_nothing_is_a_message_with_defaults() -> None:
    assert message_of(Outer, None) == Outer()
    assert message_of(Outer, Map.of({})) == Outer()


@pytest.mark.parametrize(
    "value",
    [
        7,
        "key",
        Map.of({"none": 1}),
        Map.of({"number": -1}),
        Map.of({"number": "1"}),
        Map.of({"one": 7}),
        Map.of({"one": Map.of({"key": 7})}),
        Map.of({"one": Map.of({"more": "ab"})}),
        Map.of({"many": Map.of({"key": "a"})}),
        Map.of({1: 2}),
    ],
)
def test_what_is_no_message_is_refused_with_the_field(value: Any) -> None:
    with pytest.raises(UsageError):
        message_of(Outer, value)
