"""What may be typed next, and how often the node is asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.service.cases import World

from datalattice.actions import ActionRequest
from datalattice.cli.repl.completing import FRESH_MS, Candidates
from datalattice.cli.repl.evaluator import Evaluator
from datalattice.errors import PeerUnavailable
from datalattice.service import LocalClient
from datalattice.testing.clocks import StoppedClock


class Counting(LocalClient):
    """Counts what is asked; `is_gone`: it does not answer."""

    calls = 0
    is_gone = False

    def call(self, request: ActionRequest[Any], *, request_id: str | None = None) -> Any:
        self.calls += 1
        if self.is_gone:
            raise PeerUnavailable("no service answers")
        return super().call(request, request_id=request_id)


class Typing:
    """A person at the prompt."""

    def __init__(self, world: World) -> None:
        self.client = Counting(world.service)
        self.clock = StoppedClock(0)
        self.evaluator = Evaluator(LocalClient(world.service), lambda _error, _where: 2)
        self.candidates = Candidates(
            self.evaluator, self.client, lambda: ["own", "north"], self.clock
        )

    def __call__(self, text: str) -> list[str]:
        before = self.client.calls
        found = [one.text for one in self.candidates.of(text)[1]]
        assert self.client.calls <= before + 1, text
        return found


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def typing(world: World) -> Typing:
    return Typing(world)


def test_names_of_commands_come_first(typing: Typing) -> None:
    assert typing("que") == [
        "queue.topics",
        "queue.create",
        "queue.offer",
        "queue.range",
        "queue.follow",
        "queue.truncate",
    ]
    assert typing("(queue.off") == ["queue.offer"]
    assert "help" in typing("")
    assert typing("take 3 queue.fo") == ["queue.follow"]
    assert typing("help pins.p") == ["pins.put"]
    assert typing("queue.offer ") != typing("")
    about = dict(typing.candidates.of("queue.of")[1])
    assert about["queue.offer"].startswith("Append records")


def test_fields_are_offered_once_each(typing: Typing) -> None:
    assert typing("queue.range log st") == ["start="]
    assert typing("queue.range log start=1 ") == ["partition=", "count=", "owner="]
    assert typing("(queue.range :topic log :co") == [":count"]
    assert typing("queue.range topic=log topic") == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("queue.range ", ["log", "topic=", "partition=", "start=", "count=", "owner="]),
        ("queue.range topic=", ["topic=log"]),
        ("take 2 queue.follow l", ["log"]),
        ("queue range l", ["log"]),
        ("kv.get s", ["shop"]),
        ("kv.get shop t", ["tea"]),
        ("kv.get database=shop key=", ["key=set", "key=tea"]),
        ("drive.stat f", ["files"]),
        ("drive.stat files /", ["/a.txt", "/full/"]),
        ("drive.stat files /full/", ["/full/b.txt"]),
        ("pins.delete ", ["kept", "label="]),
        ("queue.range log owner=n", ["owner=north"]),
        ("as n", ["north"]),
        ("use n", ["notes"]),
        ("stores.create store_type=core:kv", ["store_type=core:kvstore"]),
        ("graph chains=", ["chains=true", "chains=false"]),
        ("kv.write shop ((operation=inc", []),
    ],
)
def test_things_of_the_node_are_offered(typing: Typing, text: str, found: list[str]) -> None:
    assert typing(text) == found


def test_stores_are_offered_by_their_ids_and_names(typing: Typing, world: World) -> None:
    digits = world.store.hex()
    assert typing(f"stores.get {digits[:4]}") == [digits]
    assert typing("stores.get id=no") == ["id=notes"]
    typing.evaluator.run("use notes")
    assert typing("pu") == ["put"]
    assert typing("put ") == ["key=", "value="]
    assert typing("stores.get ") == []


def test_every_key_asks_once_at_most_and_an_answer_is_taken_again(
    typing: Typing, world: World
) -> None:
    line = "(kv.write :database shop :writes ((key=tea operation=set))) "
    for end in range(len(line)):
        typing(line[:end])
    for text in ("stores.get note", "use notes/bel", "drive.read files /full/b", "queue.range log"):
        for end in range(len(text)):
            typing(text[:end])
    before = typing.client.calls
    world.node.queue("new").offer("x")
    assert typing("queue.range ")[:1] == ["log"]
    assert typing.client.calls == before
    typing.clock.now += FRESH_MS
    assert typing("queue.range ")[:2] == ["log", "new"]
    assert typing.client.calls == before + 1


def test_a_node_that_does_not_answer_holds_nothing_up(typing: Typing) -> None:
    typing.client.is_gone = True
    assert typing("queue.range ") == []
    assert typing("queue.ran") == ["queue.range"]


@pytest.mark.parametrize(
    "text",
    ["nothing ", 'queue.offer "lo', "queue.offer ) ", "take ", "queue.offer [", "))"],
)
def test_what_is_no_command_has_nothing(typing: Typing, text: str) -> None:
    assert typing(text) == []
