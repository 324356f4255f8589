"""Unsound cells on their way in: they are not stored, and claims above them complete with holes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    Index,
    KnownFacts,
    Map,
    Value,
    Vector,
    encode,
    learn_cell,
    learn_cells,
    references,
    validate,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, Corruption, MissingData
from datalattice.sync.lattice import incomplete
from datalattice.sync.lattice.incomplete import Completion, IncompleteCells
from datalattice.testing.dice import Dice
from datalattice.testing.malformed import Below, cells_of, mutated, value_from_cells, with_cell

LONG = "x" * 150


class Home:
    """Where stored cells are; some of them may be damaged."""

    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}
        self.damaged: set[bytes] = set()

    def lengths(self, hashes: Iterable[bytes]) -> dict[bytes, int]:
        return {hash: len(self.cells[hash]) for hash in hashes if hash in self.cells}

    def get_encoding(self, hash: bytes) -> bytes | None:
        if hash in self.damaged:
            del self.cells[hash]
            self.damaged.remove(hash)
            raise Corruption("damaged")
        return self.cells.get(hash)

    def keep(self, progress: Completion) -> Completion:
        self.cells.update(progress.stored)
        return progress


def index(mark: str, count: int = 60) -> Index:
    return Index.of([(f"k{n:02}", f"{mark}{n}".ljust(150)) for n in range(count)])


def unsound() -> tuple[bytes, Below]:
    """Return (hash, cells) of an index whose first child is a blob; the top is the unsound cell."""
    top, below = cells_of(index("m"))
    blob = encode(b"b" * 200)
    below[value_hash(b"b" * 200)] = blob
    top, below = with_cell(top, below, references(top)[0], blob)
    hash = sha3_256(top)
    return hash, {**below, hash: top}


def above(hash: bytes, cells: Below, levels: int, mark: str = "") -> tuple[bytes, Below]:
    """Return (hash, cells) of vectors in one another around a cell."""
    found = dict(cells)
    for level in range(levels):
        beside = encode(f"{mark}{level}".ljust(150))
        encoding = b"\x80\x02\x20" + hash + b"\x20" + sha3_256(beside)
        # A third element makes it long enough to be a cell of its own.
        encoding = b"\x80\x03" + encoding[2:] + b"\x31\x64" + bytes(100)
        hash = sha3_256(encoding)
        found |= {hash: encoding, sha3_256(beside): beside}
    return hash, found


def all_at_once(home: Home, top: bytes, cells: Below) -> Completion:
    return home.keep(IncompleteCells(home).claim("claim", [top], cells))


def in_portions(home: Home, top: bytes, cells: Below, dice: random.Random) -> Completion:
    """Let cells come in any order, a few at a time; return all that happened."""
    waiting = IncompleteCells(home)
    whole = home.keep(waiting.claim("claim", [top], {}))
    wanted = list(whole.missing)
    while wanted:
        dice.shuffle(wanted)
        portion, wanted = wanted[:3], wanted[3:]
        progress = home.keep(waiting.add({hash: cells[hash] for hash in portion}))
        whole.stored += progress.stored
        whole.complete += progress.complete
        whole.unsound += progress.unsound
        whole.holes.update(progress.holes)
        wanted += [hash for hash in progress.missing if hash not in wanted]
    assert len(waiting) == 0
    assert waiting.size_bytes == 0
    return whole


@given(st.randoms(use_true_random=False), st.booleans())
def test_a_claim_above_an_unsound_cell_completes_and_neither_it_nor_a_cell_above_is_stored(
    dice: random.Random, at_once: bool
) -> None:
    bad, cells = unsound()
    top, cells = above(bad, cells, 3)
    home = Home()
    progress = all_at_once(home, top, cells) if at_once else in_portions(home, top, cells, dice)
    assert progress.complete == ["claim"]
    holes = progress.holes["claim"]
    assert holes.bad.keys() == {bad}
    assert [hash for hash, *_ in progress.unsound] == [bad]
    assert top in holes.tainted
    assert len(holes.tainted) == 3
    assert home.cells.keys() == cells.keys() - holes.tainted.keys() - {bad}
    for hash, encoding in holes.tainted.items():
        assert encoding == cells[hash]


def test_an_unsound_cell_is_remembered_and_not_asked_for_again() -> None:
    bad, cells = unsound()
    home = Home()
    waiting = IncompleteCells(home)
    first, more = above(bad, cells, 1)
    home.keep(waiting.claim("first", [first], more))
    second, others = above(bad, {}, 2, "other")
    progress = waiting.claim("second", [second], others)
    assert progress.missing == []
    assert progress.complete == ["second"]
    assert progress.unsound == []
    assert progress.holes["second"].bad.keys() == {bad}
    assert progress.holes["second"].tainted.keys() >= {second}
    again = waiting.claim("again", [bad], cells)
    assert again.holes["again"].bad.keys() == {bad}
    assert again.stored == []


def test_the_oldest_of_the_remembered_go() -> None:
    waiting = IncompleteCells(Home(), bad_max=2)
    tops = []
    for n in range(3):
        good = encode(Map.of([(1, 2), (3, 4)]))
        unordered = b"\x82\x02" + good[6:] + good[2:6]
        cell = b"\x80\x02" + unordered + b"\x31\x81\x00" + bytes([n]) * 128
        tops.append(sha3_256(cell))
        progress = waiting.claim(n, [tops[-1]], {tops[-1]: cell})
        assert [hash for hash, *_ in progress.unsound] == [tops[-1]]
    assert waiting.claim("first", [tops[0]], {}).missing == [tops[0]]
    assert waiting.claim("last", [tops[2]], {}).missing == []


def test_a_tainted_cell_serves_every_claim_that_needs_it_and_then_goes() -> None:
    bad, cells = unsound()
    shared, cells = above(bad, cells, 1)
    one, ones = above(shared, cells, 1, "one")
    two, twos = above(shared, {}, 1, "two")
    home = Home()
    waiting = IncompleteCells(home)
    assert waiting.claim("two", [two], twos).missing == [shared]
    progress = home.keep(waiting.claim("one", [one], ones))
    assert sorted(map(str, progress.complete)) == ["one", "two"]
    for name, top in (("one", one), ("two", two)):
        assert progress.holes[name].tainted.keys() == {top, shared}
    assert waiting.size_bytes == 0
    third, thirds = above(shared, {}, 1, "three")
    assert waiting.claim("three", [third], thirds).missing == [shared]


@pytest.mark.parametrize("give_up", ["drop", "release"])
def test_a_claim_that_is_given_up_leaves_nothing_tainted_behind(give_up: str) -> None:
    bad, cells = unsound()
    shared, cells = above(bad, cells, 1)
    gap = sha3_256(encode("gap".ljust(150)))
    home = Home()
    waiting = IncompleteCells(home)
    keeps = home.keep(waiting.claim("keeps", [shared, gap], cells))
    assert keeps.complete == []
    waiting.claim("goes", [shared, gap], {})
    if give_up == "drop":
        waiting.drop(["goes"])
    else:
        waiting.release("goes")
    progress = waiting.add({gap: encode("gap".ljust(150))})
    assert progress.complete == ["keeps"]
    assert progress.holes["keeps"].tainted.keys() == {shared}
    assert waiting.size_bytes == 0


def test_a_claim_with_too_much_above_its_holes_is_refused_as_one() -> None:
    bad, cells = unsound()
    top, cells = above(bad, cells, 10)
    size = sum(len(cells[hash]) for hash in cells if len(references(cells[hash])) == 2)
    for bound, is_refused in ((size, False), (size - 1, True), (size + 1, False)):
        progress = IncompleteCells(Home(), tainted_bytes_max=bound).claim("claim", [top], cells)
        assert progress.complete == ["claim"]
        assert ("claim" in progress.refused) is is_refused


def test_a_reference_to_a_short_cell_is_unsound_wherever_the_short_cell_is() -> None:
    short = encode("short")
    parent = b"\x80\x02\x20" + value_hash("short") + b"\x31\x81\x00" + bytes(128)
    top, names = sha3_256(parent), {value_hash("short"): short}
    together = IncompleteCells(Home()).claim("claim", [top], {top: parent, **names})
    assert together.holes["claim"].bad.keys() == {top}
    later = IncompleteCells(Home())
    assert later.claim("claim", [top], {top: parent}).missing == [value_hash("short")]
    assert later.add(names).holes["claim"].bad.keys() == {top}
    home = Home()
    home.cells.update(names)
    stored = IncompleteCells(home).claim("claim", [top], {top: parent})
    assert stored.holes["claim"].bad.keys() == {top}
    gap = encode("gap".ljust(150))
    waits = b"\x80\x02\x20" + value_hash("short") + b"\x20" + sha3_256(gap)
    waits = b"\x80\x03" + waits[2:] + b"\x31\x64" + bytes(100)
    waiting = IncompleteCells(home)
    waiting.claim("claim", [sha3_256(waits)], {sha3_256(waits): waits})
    assert waiting.add({sha3_256(gap): gap}).holes["claim"].bad.keys() == {sha3_256(waits)}


def test_the_top_of_a_claim_may_be_short() -> None:
    short = encode(Vector.of([1]))
    home = Home()
    progress = home.keep(
        IncompleteCells(home).claim("claim", [sha3_256(short)], {sha3_256(short): short})
    )
    assert progress.holes == {}
    assert home.cells == {sha3_256(short): short}


def test_a_top_without_a_cell_of_its_own_is_checked_too() -> None:
    good = encode(Map.of([(1, 2), (3, 4)]))
    bad = b"\x82\x02" + good[6:] + good[2:6]
    assert IncompleteCells(Home()).claim("good", [], {}, good).refused == {}
    refused = IncompleteCells(Home()).claim("bad", [], {}, bad)
    assert "order" in refused.refused["bad"]
    assert refused.complete == ["bad"]


def test_a_stored_child_that_cannot_be_read_is_missing_and_makes_nothing_unsound() -> None:
    top, below = cells_of(Vector.of(range(700)))
    whole = {**below, sha3_256(top): top}
    child = references(top)[-1]
    for is_alone in (True, False):
        home = Home()
        home.cells.update(below)
        home.damaged.add(child)
        waiting = IncompleteCells(home)
        names = [sha3_256(top)]
        if not is_alone:
            names.append(sha3_256(encode(LONG)))
        progress = home.keep(waiting.claim("claim", names, {sha3_256(top): top}))
        assert progress.missing == [*names[1:], child]
        if not is_alone:
            assert home.keep(waiting.add({value_hash(LONG): encode(LONG)})).complete == []
        assert progress.complete == []
        assert progress.unsound == []
        progress = home.keep(waiting.add({child: below[child]}))
        assert progress.complete == ["claim"]
        assert progress.holes == {}
        assert waiting.size_bytes == 0
        assert home.cells.items() >= whole.items()


# --- each cell is checked once --------------------------------------------------------------------


class Counted:
    """Counts the checks of single cells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def learn(hash: bytes, encoding: bytes, facts: KnownFacts) -> None:
            self.count += 1
            learn_cell(hash, encoding, facts)

        def learn_all(cells: list[tuple[bytes, bytes]], facts: KnownFacts) -> int:
            self.count += len(cells)
            return learn_cells(cells, facts)

        monkeypatch.setattr(incomplete, "learn_cell", learn)
        monkeypatch.setattr(incomplete, "learn_cells", learn_all)

    def during(self, action: Callable[[], object]) -> int:
        before = self.count
        action()
        return self.count - before


@pytest.mark.parametrize("entries", [1_000, 30_000])
def test_each_cell_is_checked_once_and_a_change_costs_its_path(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    value = Map.of([(n, f"value {n}".ljust(20)) for n in range(entries)])
    changed = value.put(5, "another value of it")
    top, below = cells_of(value)
    home = Home()
    waiting = IncompleteCells(home)
    first = {**below, sha3_256(top): top}
    assert counted.during(lambda: home.keep(waiting.claim("first", [sha3_256(top)], first))) == len(
        first
    )
    assert home.cells == first
    new_top, new_below = cells_of(changed)
    fresh = {hash: cell for hash, cell in new_below.items() if hash not in below}
    fresh[sha3_256(new_top)] = new_top
    assert len(fresh) <= 5
    # By a patch: all at once. By a data request: a level at a time. After a restart: no memory.
    again = Home()
    again.cells.update(home.cells)
    for bag, taken in ((home, waiting), (again, IncompleteCells(again))):
        before = counted.count
        bag.keep(taken.claim("patch", [sha3_256(new_top)], fresh))
        assert counted.count - before == len(fresh)
        for hash in fresh:
            del bag.cells[hash]
    fetched = IncompleteCells(again)
    checks = 0
    progress = fetched.claim("asked", [sha3_256(new_top)], {})
    while progress.missing:
        wanted = {hash: fresh[hash] for hash in progress.missing}
        before = counted.count
        progress = again.keep(fetched.add(wanted))
        checks += counted.count - before
    assert checks == len(fresh)
    assert progress.complete == ["asked"]


def test_what_is_stored_already_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    top, below = cells_of(index("s"))
    home = Home()
    home.cells.update({**below, sha3_256(top): top})
    waiting = IncompleteCells(home)
    assert counted.during(lambda: waiting.claim("again", [sha3_256(top)], dict(home.cells))) == 0


def test_a_foreign_value_is_sound_or_has_holes_and_nothing_else_is_stored() -> None:
    """Whatever bytes come, every cell that is stored is sound."""
    dice = Dice(5)
    kinds = [Index.of([(f"k{n:03}", n) for n in range(300)]), Map.of([(n, n) for n in range(300)])]
    seen = 0
    for _ in range(60):
        value = mutated(Vector.of(kinds), dice, {})
        try:
            top, below = cells_of(value)
        except MissingData:
            continue
        home = Home()
        progress = all_at_once(home, sha3_256(top), {**below, sha3_256(top): top})
        assert progress.complete == ["claim"]
        for encoding in home.cells.values():
            assert not _is_unsound(value_from_cells(encoding, home.cells))
        seen += "claim" in progress.holes
    assert seen > 5


def _is_unsound(value: Value) -> bool:
    try:
        validate(value)
    except BadFormat:
        return True
    return False
