"""The example of an application: what its users do, alone, apart, and on two nodes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import Index, Map, Value, same
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import NoSigningKey, UsageError
from datalattice.lattice import MergeContext, regions, root_lattice

FILE = Path(__file__).resolve().parents[2] / "examples" / "social.py"
ANN, BOB = KeyPair(b"\x01" * 32), KeyPair(b"\x02" * 32)


class Ticks:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time_ms = 1_000

    def now_ms(self) -> int:
        return self.time_ms


@pytest.fixture(scope="module")
def social() -> Iterator[Any]:
    """Import the example; afterwards the root has its section no more."""
    before = dict(regions._SECTIONS)
    spec = importlib.util.spec_from_file_location("example_social", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_social"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["example_social"]
    regions._SECTIONS.clear()
    regions._SECTIONS.update(before)
    root_lattice.cache_clear()


def root_of(key_pair: KeyPair | None, value: Value = None) -> RootLattice:
    return RootLattice(root_lattice(), value, MergeContext(key_pair=key_pair))


def test_it_runs_and_two_nodes_come_to_one_root() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(FILE)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "Bob: Hello back (a reply)"
    assert sorted(lines[1:3]) == ["Ann: Hello from Ann", "Bob: Hello from Bob"]
    assert lines[3].endswith(": True")
    assert FILE.read_text(encoding="utf-8").count("\n") < 200


def test_posts_come_back_latest_first_and_never_share_a_key(social: Any) -> None:
    clock = Ticks()
    mine = social.Social.at(root_of(ANN), ANN.public_key, clock)
    keys = [mine.post(text) for text in ("a", "b", "c")]
    assert keys == [social.post_key(1_000 + at) for at in range(3)]
    assert [post.text for post in mine.posts()] == ["c", "b", "a"]
    assert [post.author for post in mine.posts()] == [ANN.public_key] * 3
    key = mine.post("re", reply_to=mine.posts()[0])
    assert mine.posts()[0].reply_to == keys[2]
    assert mine.posts()[0].key == key


def test_what_was_taken_back_stays_so_and_what_was_not_there_is_named(social: Any) -> None:
    clock = Ticks()
    root = root_of(ANN)
    mine = social.Social.at(root, ANN.public_key, clock)
    key = mine.post("oops")
    before = root.get()
    mine.delete(key)
    assert mine.posts() == []
    root.merge(before)
    assert mine.posts() == []
    with pytest.raises(UsageError, match="no post 0x00"):
        mine.delete(bytes(8))


def test_the_later_follow_wins_even_if_the_clock_stands_still(social: Any) -> None:
    clock = Ticks()
    root = root_of(ANN)
    mine = social.Social.at(root, ANN.public_key, clock)
    mine.follow(BOB.public_key)
    followed = root.get()
    mine.unfollow(BOB.public_key)
    root.merge(followed)
    assert mine.following() == set()
    mine.follow(BOB.public_key)
    assert mine.following() == {BOB.public_key}
    mine.set_profile(name="Ann", place="here")
    mine.set_profile(name="Anna")
    assert (mine.profile("name"), mine.profile("place")) == ("Anna", None)


def test_nobody_writes_for_another_and_forgeries_are_dropped(social: Any) -> None:
    honest = root_of(BOB)
    social.Social.at(honest, BOB.public_key, Ticks()).post("I am Bob")
    with pytest.raises(NoSigningKey):
        social.Social.at(root_of(None), BOB.public_key, Ticks()).post("unsigned")
    with pytest.raises(NoSigningKey):
        social.Social.at(root_of(ANN), BOB.public_key, Ticks()).post("I am Bob, too")
    forger = RootLattice(root_lattice(), None, MergeContext(key_pair=ANN), strict=False)
    social.Social.at(forger, BOB.public_key, Ticks()).post("I am Bob, too")
    honest.merge(forger.get())
    assert [post.text for post in social.Social.at(honest, BOB.public_key).posts()] == ["I am Bob"]


def test_a_timeline_has_the_posts_of_those_who_are_followed(social: Any) -> None:
    root, other, clock = root_of(ANN), root_of(BOB), Ticks()
    mine = social.Social.at(root, ANN.public_key, clock)
    theirs = social.Social.at(other, BOB.public_key, clock)
    mine.post("a")
    clock.time_ms += 1
    theirs.post("b")
    root.merge(other.get())
    assert [post.text for post in social.timeline(root, ANN.public_key)] == ["a"]
    mine.follow(BOB.public_key)
    assert [post.text for post in social.timeline(root, ANN.public_key)] == ["b", "a"]
    assert len(social.timeline(root, ANN.public_key, limit=1)) == 1


def test_data_of_any_shape_below_a_user_does_no_harm(social: Any) -> None:
    root = root_of(ANN)
    root.path(social.SOCIAL, ANN.public_key, "value").set(
        Index.of(
            {social.FEED: Index.of({b"x": 5, b"y": Map.of({})}), social.FOLLOWS: Map.of({1: 2})}
        )
    )
    mine = social.Social.at(root, ANN.public_key)
    assert mine.posts() == []
    assert mine.following() == set()


EDITS = st.lists(
    st.tuples(st.sampled_from(("post", "delete", "follow", "unfollow", "name")), st.integers(0, 3)),
    max_size=8,
)


@given(EDITS, EDITS)
def test_two_devices_of_one_user_agree_in_either_order(
    social: Any, here: list[tuple[str, int]], there: list[tuple[str, int]]
) -> None:
    values = [edited(social, edits, at).get() for at, edits in enumerate((here, there))]
    merged = []
    for order in (values, values[::-1]):
        root = root_of(ANN)
        for value in order:
            root.merge(value)
        merged.append(root.get())
        root.merge(values[0])
        assert same(root.get(), merged[-1])
    assert same(merged[0], merged[1])


def edited(social: Any, edits: list[tuple[str, int]], device: int) -> RootLattice:
    root, clock = root_of(ANN), Ticks()
    mine = social.Social.at(root, ANN.public_key, clock)
    for kind, number in edits:
        clock.time_ms += number
        if kind == "post":
            mine.post(f"{device} {number}")
        elif kind == "delete" and mine.posts():
            mine.delete(mine.posts()[-1].key)
        elif kind == "follow":
            mine.follow(bytes([number]) * 32)
        elif kind == "unfollow":
            mine.unfollow(bytes([number]) * 32)
        elif kind == "name":
            mine.set_profile(name=f"{device} {number}")
    return root
