"""Protobuf: canonical bytes, strict reading, descriptors that Google's library understands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import FrozenInstanceError
from enum import IntEnum
from typing import Annotated, Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, strategies as st

from datalattice.actions import ACTIONS, LOCAL_ACTIONS, Action
from datalattice.actions.access import IssuedToken
from datalattice.errors import BadFormat, UsageError
from datalattice.protobuf import (
    MESSAGE_DEPTH_MAX,
    Field,
    Message,
    descriptor_set,
    read_varint,
    varint,
)


class Level(IntEnum):
    NONE = 0
    SOME = 1
    ALL = 7


class Inner(Message, name="demo.Inner"):
    text: Annotated[str, Field(1)] = ""
    more: Annotated[Inner | None, Field(2)] = None


class Outer(Message, name="demo.Outer"):
    big: Annotated[int, Field(300, "uint64")] = 0
    data: Annotated[bytes, Field(1)] = b""
    small: Annotated[int, Field(2, "int32")] = 0
    flag: Annotated[bool, Field(3)] = False
    share: Annotated[float, Field(4)] = 0.0
    level: Annotated[Level, Field(5)] = Level.NONE
    left: Annotated[bytes | None, Field(6, oneof="side")] = None
    right: Annotated[Inner | None, Field(7, oneof="side")] = None
    many: Annotated[tuple[Inner, ...], Field(8)] = ()
    names: Annotated[tuple[str, ...], Field(9)] = ()
    perhaps: Annotated[int | None, Field(10, "uint32")] = None
    inner: Annotated[Inner | None, Field(11)] = None
    long: Annotated[int, Field(12, "int64")] = 0


def google(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(Outer)).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


inners = st.recursive(
    st.builds(Inner, text=st.text()),
    lambda deeper: st.builds(Inner, text=st.text(), more=st.none() | deeper),
    max_leaves=4,
)
outers = st.builds(
    Outer,
    big=st.integers(0, 2**64 - 1),
    data=st.binary(),
    small=st.integers(-(2**31), 2**31 - 1),
    flag=st.booleans(),
    share=st.floats(allow_nan=False),
    level=st.sampled_from(Level),
    left=st.none() | st.binary(),
    many=st.lists(inners, max_size=3).map(tuple),
    names=st.lists(st.text(), max_size=3).map(tuple),
    perhaps=st.none() | st.integers(0, 2**32 - 1),
    inner=st.none() | inners,
    long=st.integers(-(2**63), 2**63 - 1),
)


@given(outers)
def test_bytes_are_those_of_the_reference_library(message: Outer) -> None:
    theirs = google("demo.Outer").FromString(message.encode())
    assert theirs.SerializeToString(deterministic=True) == message.encode()
    assert theirs.big == message.big
    assert theirs.HasField("perhaps") == (message.perhaps is not None)
    assert Outer.decode(message.encode()) == message


@given(st.binary(max_size=64))
def test_any_bytes_decode_as_in_the_reference_library_or_are_refused(data: bytes) -> None:
    try:
        ours = Outer.decode(data)
    except BadFormat:
        return
    theirs = google("demo.Outer").FromString(data)
    assert (ours.big, ours.small, ours.flag) == (theirs.big, theirs.small, theirs.flag)


def test_scalar_defaults_are_left_out_and_chosen_members_written_even_when_empty() -> None:
    assert Outer().encode() == b""
    assert Outer(left=b"").encode() == b"\x32\x00"
    assert Outer(right=Inner()).encode() == b"\x3a\x00"
    assert Outer(perhaps=0).encode() == b"\x50\x00"
    assert Outer(share=-0.0).encode() != b""


def test_the_last_member_of_a_oneof_counts_and_messages_given_twice_are_merged() -> None:
    both = Outer(left=b"x").encode() + Outer(right=Inner(text="y")).encode()
    assert Outer.decode(both) == Outer(right=Inner(text="y"))
    halves = Outer(inner=Inner(text="a")).encode() + Outer(inner=Inner(more=Inner())).encode()
    assert Outer.decode(halves) == Outer(inner=Inner(text="a", more=Inner()))


def test_unknown_fields_are_skipped_and_unknown_enum_numbers_kept() -> None:
    strange = varint(99 << 3) + varint(5) + varint(98 << 3 | 5) + b"four" + b"\x28\x63"
    assert Outer.decode(strange).level == 99


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\x05abc", "longer than the message"),
        (b"\x80", "has no end"),
        (b"\x80" * 10 + b"\x01", "has no end"),
        (b"\x00\x00", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x08\x01", "demo.Outer.data: wire type 0"),
        (b"\x4a\x01\xff", "demo.Outer.names: the string is not UTF-8"),
        (b"\x21\x01", "longer than the message"),
    ],
)
def test_bytes_that_are_no_message_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BadFormat, match=reason):
        Outer.decode(data)


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        data = b""
        for _ in range(depth):
            data = b"\x12" + varint(len(data)) + data
        return data

    Inner.decode(nested(MESSAGE_DEPTH_MAX - 1))
    Inner.decode(nested(MESSAGE_DEPTH_MAX))
    with pytest.raises(BadFormat, match="nested deeper than 100"):
        Inner.decode(nested(MESSAGE_DEPTH_MAX + 1))


@pytest.mark.parametrize(
    "message",
    [
        Outer(data="text"),  # type: ignore[arg-type]
        Outer(big=-1),
        Outer(big=2**64),
        Outer(small=2**31),
        Outer(names=(b"x",)),  # type: ignore[arg-type]
        Outer(inner=Outer()),  # type: ignore[arg-type]
        Outer(perhaps="1"),  # type: ignore[arg-type]
        Outer(data=None),  # type: ignore[arg-type]
        Outer(share="x"),  # type: ignore[arg-type]
    ],
)
def test_values_that_do_not_fit_are_refused_by_the_name_of_the_field(message: Outer) -> None:
    with pytest.raises(UsageError, match=r"demo\.Outer\.\w+: .* is not a value of kind"):
        message.encode()


def test_two_members_of_a_oneof_are_refused() -> None:
    with pytest.raises(UsageError, match="set one member of the oneof side, got left and right"):
        Outer(left=b"", right=Inner()).encode()


class Early(Message, name="demo.Early"):
    """One of which nothing was made yet."""

    text: Annotated[str, Field(1)] = ""


class Base(Message, name="demo.Base"):
    """One that another is derived from."""

    text: Annotated[str, Field(1)] = ""


class Derived(Base, name="demo.Derived"):
    """One with the fields of another message."""

    more: Annotated[str, Field(2)] = ""


class Copied(Message, name="demo.Copied"):
    """One whose first message comes from another process."""

    text: Annotated[str, Field(1)] = ""


class Shared(Message, name="demo.Shared"):
    """One whose first messages several threads make at once."""

    text: Annotated[str, Field(1)] = ""


class Guarded(Message, name="demo.Guarded"):
    """One that shows itself in its own way."""

    text: Annotated[str, Field(1)] = ""

    def __repr__(self) -> str:
        return "Guarded()"


class Fieldless(Message, name="demo.Fieldless"):
    """One without fields."""


def test_a_message_keeps_its_own_methods_and_no_repr_shows_a_token() -> None:
    assert repr(Guarded("a")) == "Guarded()"
    assert "a secret" not in repr(IssuedToken(token="a secret"))


def test_a_message_takes_no_attribute_that_it_does_not_declare() -> None:
    name = "note"
    for message in (Guarded("a"), Guarded.__new__(Guarded)):
        with pytest.raises(FrozenInstanceError, match="'note'"):
            setattr(message, name, "b")
        with pytest.raises(FrozenInstanceError, match="'note'"):
            delattr(message, name)


def test_a_message_without_fields_is_like_any_other_also_as_a_copy() -> None:
    made = copy(Fieldless.__new__(Fieldless))
    assert (made, hash(made), repr(made)) == (Fieldless(), hash(Fieldless()), "Fieldless()")


def test_a_message_is_a_frozen_dataclass_from_the_first_on() -> None:
    assert "__dataclass_params__" not in vars(Early), "a command imports hundreds and makes a few"
    first, other = Early("a"), Early(text="a")
    assert (first, hash(first), repr(first)) == (other, hash(other), "Early(text='a')")
    with pytest.raises(FrozenInstanceError):
        first.text = "b"  # type: ignore[misc]
    assert Derived("a", "b").encode() == Base("a").encode() + b"\x12\x01b"
    with pytest.raises(TypeError, match="unexpected keyword argument 'none'"):
        Early(none="")  # type: ignore[call-arg]


def test_a_message_that_is_the_first_when_it_is_copied_is_like_any_other() -> None:
    made = copy(Copied.__new__(Copied))
    made.__setstate__({"text": "a"})
    assert made == Copied("a")


def test_threads_that_make_the_first_messages_of_a_class_have_each_its_own() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(Shared, map(str, range(64))))
    assert [one.text for one in made] == [str(number) for number in range(64)]


@pytest.mark.parametrize(
    "action", [*ACTIONS.values(), *LOCAL_ACTIONS.values()], ids=lambda one: one.name
)
def test_requests_and_results_of_actions_are_declared_rightly(action: Action) -> None:
    for message in (action.request, action.result):
        fields = {field.name for field in message.declared()}
        assert fields == set(message.__annotations__), "an action is checked by these names"


class Bare(Message, name="demo.Bare"):
    number: Annotated[int, Field(1)] = 0


class Twice(Message, name="demo.Twice"):
    one: Annotated[bytes, Field(1)] = b""
    two: Annotated[bytes, Field(1)] = b""


class Ints(Message, name="demo.Ints"):
    many: Annotated[tuple[int, ...], Field(1, "uint32")] = ()


class Reserved(Message, name="demo.Reserved"):
    decode: Annotated[bytes, Field(1)] = b""  # type: ignore[assignment]


class Member(Message, name="demo.Member"):
    chosen: Annotated[bytes, Field(1, oneof="x")] = b""


class NoNumber(Message, name="demo.NoNumber"):
    field: Annotated[bytes, 1] = b""


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (Bare, "demo.Bare.number: the type <class 'int'> is not"),
        (Twice, "two fields have the same number"),
        (Ints, "only bytes, str and messages can be repeated"),
        (Reserved, "every message has a method `decode`; use another name"),
        (Member, "declare a message or a member of a oneof as"),
        (NoNumber, "annotate it with Field"),
    ],
)
def test_wrong_declarations_are_refused_at_first_use(declared: type[Message], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        declared.declared()


@given(st.integers(0, 2**64 - 1))
def test_varints_read_back(value: int) -> None:
    assert read_varint(varint(value), 0) == (value, len(varint(value)))
