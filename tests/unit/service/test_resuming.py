"""Tokens of streams: a reader goes on behind each item, on each way to a service; stale ones."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.service.cases import Backend, World
from tests.unit.service.test_suite import BACKENDS

from datalattice import actions as a
from datalattice.actions import (
    ACTIONS,
    RESUME_NUMBER,
    ActionKind,
    ActionRequest,
    KeyOperation,
    KeyWrite,
    with_resume,
)
from datalattice.cells import Vector, decode_message, encode_message, value_hash
from datalattice.errors import LimitExceeded, StaleToken, UsageError
from datalattice.service import OPERATOR
from datalattice.weaver import EVENTS_MAX
from datalattice.weaver.kv import WatchParams


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, world: World) -> Iterator[Backend]:
    with BACKENDS[request.param](world) as made:
        yield made


def watched(world: World) -> a.SubscribeStream:
    params = WatchParams(prefix=b"").encode()
    return a.SubscribeStream(store_id=world.store, stream_name="watch", params=params)


def put_keys(world: World) -> None:
    for number in range(3):
        world.node.store("notes", "kv")[f"k{number}"] = "v"


def write_keys(world: World) -> None:
    with world.node.database("shop").batch() as batch:
        for number in range(5):
            batch.set(f"k{number}", number)


LOGS: dict[
    str, tuple[Callable[[World], ActionRequest[Any]], Callable[[World], object], int, str]
] = {
    "queue.follow": (
        lambda _: a.FollowTopic(topic="log"),
        lambda w: w.node.queue("log").offer_many(["c", "d", "e"]),
        5,
        "offset",
    ),
    "stores.follow": (lambda w: a.FollowStore(id=w.store), put_keys, 6, "seq"),
    "stores.subscribe": (watched, put_keys, 3, "payload"),
    "kv.watch": (lambda _: a.WatchKeys(database="shop", prefix="k"), write_keys, 5, "key"),
}
"""Streams of which each item is wanted: (request, what makes items, how many, what tells them)."""


PASSING = {"node.audit", "tasks.watch"}
"""Streams of what happens meanwhile, which a reader that was cut off has missed, and of states: the
first one is the present one."""


def test_the_position_has_one_name_and_number_in_each_stream() -> None:
    for action in ACTIONS.values():
        if action.kind is ActionKind.STREAM and action.name not in PASSING:
            for message in (action.request, action.result):
                fields = {field.name: (field.number, field.kind) for field in message.declared()}
                assert fields.get("resume") == (RESUME_NUMBER, "string"), message


@pytest.mark.parametrize("name", list(LOGS))
def test_a_stream_goes_on_behind_each_of_its_items(
    name: str, backend: Backend, world: World
) -> None:
    make, act, count, mark = LOGS[name]
    request = make(world)
    items = backend.take(request, count, lambda: act(world))
    marks = [getattr(item, mark) for item in items]
    assert len(set(map(repr, marks))) == count
    for number, item in enumerate(items[:-1]):
        rest = backend.take(with_resume(request, item.resume), count - number - 1, lambda: None)
        assert [getattr(one, mark) for one in rest] == marks[number + 1 :], number
    # Behind the last one come new items alone, each with a token of its own.
    world.node.queue("log").offer("last")
    world.node.database("shop").set("k9", 9)
    world.node.store("notes", "kv")["k9"] = "v"
    (last,) = backend.take(with_resume(request, items[-1].resume), 1, lambda: None)
    assert getattr(last, mark) not in marks
    assert last.resume not in {item.resume for item in items}


def test_a_root_that_was_taken_does_not_come_again(backend: Backend, world: World) -> None:
    (root,) = backend.take(a.WatchRoot(), 1, lambda: None)
    request = a.WatchRoot(resume=root.resume)
    (found,) = backend.take(request, 1, lambda: world.node.queue("log").offer("c"))
    assert found.hash == value_hash(world.node.cursor().get()) != root.hash
    # "State streams skip intermediate states": the newest one comes.
    world.node.queue("log").offer("d")
    (newest,) = backend.take(request, 1, lambda: None)
    assert newest.hash == value_hash(world.node.cursor().get())


def test_within_the_changes_of_one_look_newer_values_come_again(world: World) -> None:
    request = a.WatchKeys(database="shop", prefix="k")
    with world.service.stream(request, OPERATOR) as stream:
        write_keys(world)
        items = stream.take()
    world.node.database("shop").set("k0", "new")
    with world.service.stream(with_resume(request, items[2].resume), OPERATOR) as stream:
        found = {item.key: item.value for item in stream.take()}
    assert found == {"k0": "new", "k1": 1, "k2": 2, "k3": 3, "k4": 4}
    with world.service.stream(with_resume(request, items[-1].resume), OPERATOR) as stream:
        assert [(item.key, item.value) for item in stream.take()] == [("k0", "new")]


def test_partitions_go_on_each_at_its_own_position(world: World) -> None:
    world.service.call(a.CreateTopic(topic="many", partitions=3), OPERATOR)
    for number in range(9):
        request = a.OfferRecords(topic="many", values=(number,), partition=number % 3)
        world.service.call(request, OPERATOR)
    follow = a.FollowTopic(topic="many")
    with world.service.stream(follow, OPERATOR) as stream:
        items = stream.take()
    assert {item.value for item in items} == set(range(9))
    for number, item in enumerate(items):
        with world.service.stream(with_resume(follow, item.resume), OPERATOR) as stream:
            assert {one.value for one in stream.take()} == {
                one.value for one in items[number + 1 :]
            }
    # "end" is a position, too: what comes while nobody is connected is not lost.
    with world.service.stream(a.FollowTopic(topic="many", start="end"), OPERATOR) as stream:
        token = stream.resume
    world.service.call(a.OfferRecords(topic="many", values=("new",), partition=1), OPERATOR)
    with world.service.stream(with_resume(follow, token), OPERATOR) as stream:
        assert [one.value for one in stream.take()] == ["new"]


def test_a_quiet_stream_has_the_newest_position(world: World) -> None:
    with world.service.stream(a.WatchKeys(database="shop", prefix="t"), OPERATOR) as stream:
        before = stream.resume
        world.node.database("shop").set("other", 1)
        assert stream.take() == []
        assert stream.resume != before


def test_records_that_were_cut_off_are_told_with_a_fresh_start(
    backend: Backend, world: World
) -> None:
    world.node.queue("log").offer_many(["c", "d", "e"])
    items = backend.take(a.FollowTopic(topic="log"), 2, lambda: None)
    world.node.queue("log").truncate(4)
    with pytest.raises(StaleToken, match=r"a fresh start begins at offset 4 of partition 0"):
        backend.take(a.FollowTopic(topic="log", resume=items[1].resume), 1, lambda: None)
    begun = backend.take(a.FollowTopic(topic="log", start="4"), 1, lambda: None)
    assert [one.value for one in begun] == ["e"]


def test_records_that_are_cut_off_in_front_of_a_slow_reader_are_told(world: World) -> None:
    world.node.queue("log").offer_many(range(2_000))
    with world.service.stream(a.FollowTopic(topic="log"), OPERATOR) as stream:
        stream.take()
        world.node.queue("log").truncate(1_999)
        with pytest.raises(StaleToken):
            list(stream)


def test_a_token_of_a_log_that_is_shorter_or_gone_is_stale(world: World) -> None:
    with world.service.stream(a.FollowTopic(topic="log"), OPERATOR) as stream:
        token = stream.take()[-1].resume
    other = World()
    try:
        owner = did(world)
        with pytest.raises(StaleToken, match="another stream"):
            other.service.stream(a.FollowTopic(topic="log", owner="own", resume=token), OPERATOR)
        with pytest.raises(StaleToken, match="has forked"):
            other.service.stream(a.FollowTopic(topic="log", owner=owner, resume=token), OPERATOR)
    finally:
        other.close()


def did(world: World) -> str:
    from datalattice.lattice import did_of

    return did_of(world.owner)


def test_events_that_are_gone_are_told(world: World) -> None:
    request = watched(world)
    with world.service.stream(request, OPERATOR) as stream:
        put_keys(world)
        first = stream.take()[0].resume
    store = world.node.store("notes", "kv")
    store.update({f"many{number}": "v" for number in range(EVENTS_MAX)})
    with pytest.raises(StaleToken, match="no longer keeps event"):
        world.service.stream(with_resume(request, first), OPERATOR)


def test_a_root_that_is_not_kept_is_told(world: World) -> None:
    request = a.WatchKeys(database="shop")
    with world.service.stream(request, OPERATOR) as stream:
        token = base64.urlsafe_b64decode(stream.resume + "==")
    hash = value_hash(world.node.cursor().get())
    assert hash in token
    forged = base64.urlsafe_b64encode(token.replace(hash, b"\x07" * 32)).decode().rstrip("=")
    with pytest.raises(StaleToken, match=r"no longer keeps the root .*; a fresh start begins"):
        world.service.stream(with_resume(request, forged), OPERATOR)


STREAMS: dict[str, Callable[[World], ActionRequest[Any]]] = {
    **{name: found[0] for name, found in LOGS.items()},
    "lattice.watch": lambda _: a.WatchRoot(),
}


@pytest.mark.parametrize("name", list(STREAMS))
def test_a_token_that_is_none_of_this_stream_is_refused(
    name: str, backend: Backend, world: World
) -> None:
    request = STREAMS[name](world)
    other = "queue.follow" if name != "queue.follow" else "lattice.watch"
    with world.service.stream(STREAMS[other](world), OPERATOR) as stream:
        foreign = stream.resume
    with world.service.stream(request, OPERATOR) as stream:
        own = base64.urlsafe_b64decode(stream.resume + "==")
    name_of = own[own.index(b"\x31\x08") :][:10]  # a blob of eight bytes
    for token, error in (
        (foreign, StaleToken),
        ("no token", UsageError),
        ("é", UsageError),
        ("AAAA", UsageError),
        (text(encode_message(Vector.of([1, 2, 3]))), UsageError),
        (text(encode_message(Vector.of([name_of[2:], "x"]))), UsageError),
        (text(encode_message(Vector.of([name_of[2:], Vector.of([-1, -1])]))), UsageError),
        (
            text(encode_message(Vector.of([name_of[2:], Vector.of([Vector.of([0, -1, 5])])]))),
            UsageError,
        ),
        ("A" * 40_000, LimitExceeded),
    ):
        with pytest.raises(error):
            backend.take(with_resume(request, token), 1, lambda: None)


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize("at", [-1, -(2**70)])
def test_a_token_of_a_file_with_a_negative_byte_is_refused(world: World, at: int) -> None:
    world.node.drive("plans").write("/a.txt", b"hello")
    request = a.GetFile(drive="plans", path="a.txt")
    with world.service.stream(request, OPERATOR) as stream:
        own = decode_message(base64.urlsafe_b64decode(stream.resume + "=="))
    assert isinstance(own, Vector)
    assert isinstance(own[1], Vector)
    forged = text(encode_message(Vector.of([own[0], Vector.of([own[1][0], at])])))
    with pytest.raises(UsageError, match="holds no position of this stream"):
        world.service.stream(with_resume(request, forged), OPERATOR)


def test_a_deleted_key_comes_behind_a_token(world: World) -> None:
    request = a.WatchKeys(database="shop")
    with world.service.stream(request, OPERATOR) as stream:
        token = stream.resume
    write = KeyWrite(key="tea", operation=KeyOperation.DELETE)
    world.service.call(a.WriteKeys(database="shop", writes=(write,)), OPERATOR)
    with world.service.stream(with_resume(request, token), OPERATOR) as stream:
        assert [(item.key, item.type) for item in stream.take()] == [("tea", "")]
