"""Sketches: two sides learn what they lack, failed attempts end, a hostile peer is bounded."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings, strategies as st
from nacl import bindings

from datalattice.errors import BadFormat, ProtocolViolation
from datalattice.sync.reconcile import (
    FIRST_CELLS_MIN,
    SKETCH_LIMITS,
    SketchCells,
    SketchedSet,
    SketchEstimate,
    SketchKey,
    SketchLimits,
    SketchMessage,
    SketchOpening,
    SketchReceiver,
    SketchResult,
    SketchSender,
    SketchStep,
    SortedHashes,
    sketchset,
)
from datalattice.sync.reconcile.sketchcells import (
    PLACE_MAX,
    PlaceWalk,
    SketchAborted,
    SketchDecoder,
    check_of,
    mix,
)

NONCES = (b"a" * 16, b"b" * 16)
KEY = SketchKey.derive(NONCES, 0)
SALTS = (KEY.checks, KEY.places)
ANY_SIZE = SKETCH_LIMITS._replace(items_min=0)


def name(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def names(numbers: Iterable[int]) -> set[bytes]:
    return {name(number) for number in numbers}


class Session:
    """What a session between two sets came to. `lose` changes a message on its way."""

    def __init__(
        self,
        a: set[bytes],
        b: set[bytes],
        limits: SketchLimits = ANY_SIZE,
        lose: Callable[[SketchMessage], SketchMessage] = lambda message: message,
    ) -> None:
        sender = SketchSender(SortedHashes(a), NONCES[0], limits)
        opening = sender.start().opening
        assert opening is not None
        receiver = SketchReceiver(SortedHashes(b), opening, NONCES[1], limits)
        self.said = [sender.start(), receiver.start()]
        self.needs: list[set[bytes]] = [set(), set()]
        self.done = [False, False]
        self.by_ranges = False
        waiting = [(0, self.said[1])]
        while waiting:
            to, message = waiting.pop(0)
            step: SketchStep = (sender, receiver)[to].receive(lose(message))
            self.said += step.say
            waiting += [(1 - to, each) for each in step.say]
            self.needs[to] |= set(step.needs)
            self.done[to] = self.done[to] or step.is_done
            self.by_ranges = self.by_ranges or step.by_ranges

    def kinds(self) -> list[str]:
        return [kind for one in self.said for kind, value in vars(one).items() if value is not None]

    @property
    def bytes(self) -> int:
        return sum(len(one.encode()) for one in self.said)


def cells_of(session: Session) -> list[SketchCells]:
    return [one.cells for one in session.said if one.cells is not None]


# --- arithmetic -----------------------------------------------------------------------------------


def test_ids_are_siphash_2_4_of_the_hash() -> None:
    # The first vector of its authors: key 00 to 0f, no input.
    assert bindings.crypto_shorthash_siphash24(b"", bytes(range(16))).hex() == "310e0edd47db6f72"
    id = int.from_bytes(bindings.crypto_shorthash_siphash24(name(1), KEY.key), "little")
    assert KEY.id_of(name(1)) % 2**64 == id


def test_an_id_of_zero_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketchset, "siphash", lambda *_: bytes(8))
    assert KEY.id_of(name(1)) == 1


def test_mix_is_the_finaliser_of_splitmix64() -> None:
    # The first output of splitmix64 with seed 0 is the finaliser of its increment.
    assert mix(0x9E3779B97F4A7C15 - 2**64) % 2**64 == 0xE220A8397B1DCDAF
    assert mix(0) == 0


def test_places_ascend_and_end_before_they_overflow() -> None:
    walk = PlaceWalk()
    walk.start(5, 7)
    places = []
    while walk.place < PLACE_MAX:
        places.append(walk.place)
        walk.advance()
    assert places[0] == 0
    assert places == sorted(set(places))
    assert walk.place == PLACE_MAX


def test_places_follow_the_formula_in_exact_integers_and_doubles() -> None:
    for id in range(50):
        walk = PlaceWalk()
        walk.start(id, KEY.places)
        p, place = mix(id ^ KEY.places) % 2**64 | 1, 0
        for _ in range(12):
            assert walk.place == place
            p = p * 0xDA942042E4DD58B5 % 2**64
            place += ceil((place + 1.5) * (2**32 / (float(p) + 1) ** 0.5 - 1))
            walk.advance()


def test_keys_of_two_attempts_or_nonces_differ() -> None:
    keys = [
        SketchKey.derive(NONCES, 0),
        SketchKey.derive(NONCES, 1),
        SketchKey.derive(NONCES[::-1], 0),
    ]
    for column in zip(*keys, strict=True):
        assert len(set(column)) == 3


@pytest.mark.parametrize("count", [1_999, 2_000, 2_500])
def test_with_and_without_numpy_a_set_is_the_same(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    hashes = sorted(names(range(count)))
    with_arrays = SketchedSet(KEY, hashes)
    found = with_arrays.cells(0, 300)
    monkeypatch.setattr(sketchset, "_arrays", lambda: None)
    alone = SketchedSet(KEY, hashes)
    assert alone.ids == with_arrays.ids
    assert alone.sums == with_arrays.sums
    assert alone.cells(0, 300) == found
    assert alone.cells(0, 400) == with_arrays.cells(0, 400)


def test_a_set_is_kept_up_to_date_as_hashes_come_and_go() -> None:
    kept = SketchedSet(KEY, sorted(names(range(60))))
    kept.cells(0, 40)
    kept.add(sorted(names(range(60, 90))))
    kept.cells(0, 50)
    kept.remove(sorted(names(range(20, 75))))
    made = SketchedSet(KEY, sorted(names([*range(20), *range(75, 90)])))
    assert kept.sums == made.sums
    assert kept.cells(0, 70) == made.cells(0, 70)
    assert sorted(kept.ids) == sorted(made.ids)
    assert len(kept) == 35
    assert kept.find(made.ids) == made.find(kept.ids)
    with pytest.raises(KeyError):
        kept.remove([name(20)])


# --- sessions -------------------------------------------------------------------------------------

sets = st.sets(st.integers(0, 300)).map(names)


@settings(deadline=None)
@given(sets, sets, st.sampled_from([0, 1 << 62]))
def test_both_sides_learn_exactly_what_they_lack(
    a: set[bytes], b: set[bytes], regions_from: int
) -> None:
    found = Session(a, b, ANY_SIZE._replace(regions_from=regions_from))
    assert found.needs == [b - a, a - b]
    assert found.done == [True, True]


@settings(deadline=None)
@given(sets, sets, st.randoms(use_true_random=False), st.integers(1, 12))
def test_whatever_changes_on_the_way_nothing_wrong_is_learned(
    a: set[bytes], b: set[bytes], chance: Random, one_in: int
) -> None:
    def changed(message: SketchMessage) -> SketchMessage:
        data = bytearray(message.encode())
        if chance.randrange(one_in) == 0:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            return SketchMessage.decode(bytes(data))
        except BadFormat as error:
            raise ProtocolViolation(str(error)) from error

    try:
        found = Session(a, b, lose=changed)
    except ProtocolViolation:
        return
    for needs, lacking, is_done in zip(found.needs, (b - a, a - b), found.done, strict=True):
        assert needs == (lacking if is_done else set())


def sized(same: int, different: int) -> tuple[set[bytes], set[bytes]]:
    """Return two sets with a common part, and half of the difference each."""
    common = names(range(same))
    half = different // 2
    return (
        common | names(range(10**6, 10**6 + half)),
        common | names(range(2 * 10**6, 2 * 10**6 + different - half)),
    )


@pytest.mark.parametrize(("same", "different"), [(1_000, 10), (3_000, 300)])
def test_what_is_sent_grows_with_the_difference_alone(same: int, different: int) -> None:
    a, b = sized(same, different)
    found = Session(a, b)
    assert found.needs == [b - a, a - b]
    assert set(found.kinds()) <= {"opening", "estimate", "cells", "more", "result", "hashes"}
    assert found.bytes < 700 + different * 75


def test_windows_grow_by_an_eighth_and_stream_one_ahead() -> None:
    a, b = sized(2_000, 400)
    found = Session(a, b, lose=shrunk)
    assert found.needs == [b - a, a - b]
    sizes = [len(window.cells) // 12 for window in cells_of(found)]
    assert sizes[0] == FIRST_CELLS_MIN
    for number, size in enumerate(sizes[1:], 1):
        assert size == ceil(sum(sizes[:number]) / 8)
    # The last window was on its way when the cells became enough.
    assert len(sizes) == found.kinds().count("more") + 2


def shrunk(message: SketchMessage) -> SketchMessage:
    """Return an estimate as if the receiver had the sums of the sender, and what else comes."""
    if message.estimate is None or not message.estimate.sums:
        return message
    sender = SketchedSet(SketchKey.derive(NONCES, message.estimate.attempt), sorted(SENDER[0]))
    return SketchMessage(
        estimate=replace(message.estimate, sums=sketchset.pack_integers(sender.sums))
    )


SENDER = [sized(2_000, 400)[0]]


def test_an_attempt_that_comes_to_nothing_is_followed_by_one_with_new_keys_then_by_the_list() -> (
    None
):
    a, b = sized(2_000, 400)
    found = Session(a, b, ANY_SIZE._replace(windows=2), lose=shrunk)
    assert found.needs == [b - a, a - b]
    attempts = [window.attempt for window in cells_of(found)]
    assert sorted(set(attempts)) == [0, 1]
    assert found.kinds().count("estimate") == 3
    assert found.kinds().count("ids") == 1
    assert found.done == [True, True]


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_attempts_are_bounded(attempts: int) -> None:
    a, b = sized(2_000, 400)
    found = Session(a, b, ANY_SIZE._replace(windows=2, attempts=attempts), lose=shrunk)
    assert found.needs == [b - a, a - b]
    assert {window.attempt for window in cells_of(found)} == set(range(attempts))
    assert found.kinds().count("ids") == 1


@pytest.mark.parametrize("faults", [1, 2])
def test_a_result_that_does_not_hold_is_retried(faults: int) -> None:
    a, b = sized(1_000, 20)
    left = [faults]

    def without_one(message: SketchMessage) -> SketchMessage:
        if message.result is None or not left[0]:
            return message
        left[0] -= 1
        return SketchMessage(result=replace(message.result, given=message.result.given[32:]))

    found = Session(a, b, lose=without_one)
    assert found.needs == [b - a, a - b]
    assert found.kinds().count("retry") == faults
    assert found.kinds().count("ids") == (faults == 2)


def test_few_items_for_many_differences_are_listed() -> None:
    a, b = names(range(100)), names(range(100, 200))
    found = Session(a, b)
    assert found.kinds() == ["opening", "estimate", "ids", "result", "hashes"]
    assert found.needs == [b, a]


@pytest.mark.parametrize(("listed", "by_ranges"), [(99, True), (100, False), (101, False)])
def test_lists_are_bounded(listed: int, by_ranges: bool) -> None:
    found = Session(names(range(100)), names(range(50)), ANY_SIZE._replace(listed=listed))
    assert found.by_ranges == by_ranges
    assert found.done == [not by_ranges] * 2


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_cells_are_bounded(more: int) -> None:
    a, b = sized(1_000, 100)
    (window, *_) = cells_of(Session(a, b))
    cells = len(window.cells) // 12
    found = Session(a, b, ANY_SIZE._replace(cells=cells + more))
    assert ("ids" in found.kinds()) == (more < 0)
    assert found.needs == [b - a, a - b]


@pytest.mark.parametrize("has_numpy", [True, False])
def test_sets_of_some_sizes_are_sketched(has_numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketchset, "_arrays", lambda: object() if has_numpy else None)
    limits = SketchLimits(items_min=5, items=9, items_alone=7)
    accepted = [size for size in range(12) if SketchReceiver.accepts(size, limits)]
    assert accepted == ([5, 6, 7, 8, 9] if has_numpy else [5, 6, 7])


def test_numpy_is_loaded_only_where_the_size_of_the_sets_depends_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(sketchset, "_arrays", lambda: asked.append(True))
    limits = SketchLimits(items_min=5, items=9, items_alone=7)
    for size in (0, 4, 5, 7, 10):
        SketchReceiver.accepts(size, limits)
    assert not asked
    SketchReceiver.accepts(8, limits)
    assert asked


def test_the_regions_that_differ_are_sketched_alone() -> None:
    a, b = sized(3_000, 6)
    found = Session(a, b, ANY_SIZE._replace(regions_from=3_003))
    assert found.needs == [b - a, a - b]
    (window,) = cells_of(found)
    bits = int.from_bytes(window.regions, "little")
    assert {region for region in range(256) if bits >> region & 1} == {each[0] for each in a ^ b}
    assert "estimate" in found.kinds()
    assert not cells_of(Session(a, b, ANY_SIZE._replace(regions_from=3_004)))[0].regions


def test_where_most_regions_differ_sums_follow() -> None:
    a, b = sized(2_000, 600)
    found = Session(a, b, ANY_SIZE._replace(regions_from=0))
    assert found.needs == [b - a, a - b]
    assert found.kinds()[:4] == ["opening", "estimate", "retry", "estimate"]


@pytest.mark.parametrize("regions", [127, 128, 129])
def test_up_to_half_of_the_regions_are_sketched_alone(regions: int) -> None:
    different = {bytes([region]) + name(region)[1:] for region in range(regions)}
    found = Session(OWN | different, OWN, ANY_SIZE._replace(regions_from=0))
    assert found.needs == [set(), different]
    assert ("retry" in found.kinds()) == (regions == 129)


# --- the decoder ----------------------------------------------------------------------------------


def spread(ids: Sequence[int], cells: int) -> tuple[array[int], array[int]]:
    """Return the cells of ids, item by item."""
    found = array("q", bytes(8 * cells)), array("q", bytes(8 * cells))
    walk = PlaceWalk()
    for id in ids:
        walk.start(id, KEY.places)
        while walk.place < cells:
            found[0][walk.place] ^= id
            found[1][walk.place] ^= check_of(id, KEY.checks)
            walk.advance()
    return found


def test_a_difference_is_recovered_as_cells_come() -> None:
    ids = [KEY.id_of(name(number)) for number in range(50)]
    cells, checks = spread(ids, 120)
    decoder = SketchDecoder(SALTS, 64)
    for at in range(0, 120, 10):
        decoder.add(cells[at : at + 10], checks[at : at + 10])
    assert decoder.is_complete
    assert sorted(decoder.ids) == sorted(ids)


def test_a_pure_cell_counts_only_where_its_id_maps_to() -> None:
    id = KEY.id_of(name(1))
    cells, checks = array("q", bytes(8 * 20)), array("q", bytes(8 * 20))
    places = {place for place in range(20) if spread([id], 20)[0][place]}
    (foreign, *_) = [place for place in range(20) if place not in places]
    cells[foreign], checks[foreign] = id, check_of(id, KEY.checks)
    decoder = SketchDecoder(SALTS, 64)
    decoder.add(cells, checks)
    assert not decoder.ids
    assert not decoder.is_complete


def test_a_cell_with_another_check_is_not_pure() -> None:
    cells, checks = spread([KEY.id_of(name(1))], 20)
    for place in range(20):
        checks[place] ^= 1
    decoder = SketchDecoder(SALTS, 64)
    decoder.add(cells, checks)
    assert not decoder.ids


def test_checks_that_are_left_over_are_not_complete() -> None:
    decoder = SketchDecoder(SALTS, 64)
    decoder.add(array("q", [0]), array("q", [1]))
    assert not decoder.is_complete


def test_an_id_that_comes_twice_ends_the_attempt() -> None:
    id = KEY.id_of(name(1))
    walk = PlaceWalk()
    walk.start(id, KEY.places)
    walk.advance()
    cells, checks = spread([id], walk.place + 1)
    # Put back where the decoder has taken it away: the last cell has it, the first gets it again.
    cells[0], checks[0] = 0, 0
    decoder = SketchDecoder(SALTS, 64)
    with pytest.raises(SketchAborted, match="twice"):
        decoder.add(cells, checks)


def test_more_ids_than_cells_end_the_attempt() -> None:
    decoder = SketchDecoder(SALTS, 64)
    # A cell that the recovered id leaves behind is the next one's.
    one, other = KEY.id_of(name(1)), KEY.id_of(name(2))
    decoder.add(*spread([one], 1))
    decoder._cells[0], decoder._checks[0] = other, check_of(other, KEY.checks)
    with pytest.raises(SketchAborted, match="more ids than cells"):
        decoder._look_at(0, PlaceWalk(), [])


def test_the_steps_for_each_cell_are_bounded() -> None:
    ids = [KEY.id_of(name(number)) for number in range(50)]
    steps = SketchDecoder(SALTS, 64)
    steps.add(*spread(ids, 120))
    most = -(-steps._steps // 120)
    SketchDecoder(SALTS, most).add(*spread(ids, 120))
    with pytest.raises(SketchAborted, match="steps a cell"):
        SketchDecoder(SALTS, most - 1).add(*spread(ids, 120))


# --- hostile peers --------------------------------------------------------------------------------

OWN = names(range(300))


def receiver(limits: SketchLimits = ANY_SIZE, count: int = 300) -> SketchReceiver:
    opened = SketchOpening(NONCES[0], count, bytes(32))
    side = SketchReceiver(SortedHashes(OWN), opened, NONCES[1], limits)
    side.start()
    return side


def window(start: int, size: int, attempt: int = 0) -> SketchMessage:
    return SketchMessage(cells=SketchCells(attempt, start, b"\x05" * 12 * size))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([window(1, 30)], "360 bytes of cells from 1"),
        ([window(0, 23)], "276 bytes of cells"),
        ([SketchMessage(cells=SketchCells(0, 0, bytes(300 + 1)))], "301 bytes of cells"),
        ([window(0, 30, attempt=1)], "in attempt 1"),
        ([window(0, 24), window(24, 2)], "after 24 cells"),
        ([window(0, 24), window(24, 4)], "after 24 cells"),
        ([window(0, SKETCH_LIMITS.cells + 1)], "after 0 cells"),
        ([SketchMessage(ids=bytes(8 * 299))], "300 ids were announced"),
        ([SketchMessage(hashes=b"")], "not those of the wanted ids"),
        ([SketchMessage(retry=True)], "before a result"),
        ([SketchMessage(more=True)], "the sender sends"),
        ([SketchMessage()], "without a kind"),
    ],
)
def test_a_message_that_does_not_follow_ends_the_session(
    messages: list[SketchMessage], reason: str
) -> None:
    side = receiver()
    for message in messages[:-1]:
        side.receive(message)
    with pytest.raises(ProtocolViolation, match=reason):
        side.receive(messages[-1])


def test_impure_cells_end_in_the_next_attempt_and_then_in_no_more() -> None:
    side = receiver(ANY_SIZE._replace(windows=1))
    for attempt in (0, 1):
        (said,) = side.receive(window(0, 24, attempt)).say
        assert said.estimate is not None
        assert said.estimate.attempt == attempt + 1
        assert bool(said.estimate.sums) == (attempt == 0)
    with pytest.raises(ProtocolViolation, match="in attempt 2"):
        side.receive(window(0, 24, 2))


def test_windows_without_end_are_bounded() -> None:
    side = receiver(ANY_SIZE._replace(windows=5))
    have = 0
    for number in range(5):
        size = -(-have // 8) or 24
        (said,) = side.receive(window(have, size)).say
        have += size
        assert (said.more is not None) == (number < 4)
    assert said.estimate is not None
    # What was on its way is passed over, however often it comes.
    assert side.receive(window(have, -(-have // 8))) == SketchStep()


@pytest.mark.parametrize("count", [3, 4, 5])
def test_messages_are_bounded(count: int) -> None:
    side = receiver(ANY_SIZE._replace(messages=4, windows=1))
    side.receive(window(0, 24))
    for _ in range(min(count, 4) - 1):
        side.receive(window(0, 24))
    if count > 4:
        with pytest.raises(ProtocolViolation, match="more than 4 messages"):
            side.receive(window(0, 24))


def at_result() -> tuple[SketchReceiver, list[bytes]]:
    """Return a receiver that has said its result, and the hashes it wants."""
    a = OWN | names(range(1_000, 1_004))
    sender = SketchSender(SortedHashes(a), NONCES[0], ANY_SIZE)
    opened = sender.start().opening
    assert opened is not None
    side = SketchReceiver(SortedHashes(OWN), opened, NONCES[1], ANY_SIZE)
    (cells,) = sender.receive(side.start()).say
    (said,) = side.receive(cells).say
    (hashes,) = sender.receive(said).say
    assert hashes.hashes is not None
    return side, [hashes.hashes[at : at + 32] for at in range(0, 128, 32)]


@pytest.mark.parametrize(
    "change",
    [
        lambda hashes: hashes[:-1],
        lambda hashes: [*hashes[:-1], name(5_000)],
        lambda hashes: hashes[::-1],
        lambda hashes: [hashes[0], *hashes],
        lambda hashes: [*hashes[:-1], hashes[-1][:-1]],
    ],
    ids=["fewer", "another", "turned", "twice", "short"],
)
def test_every_hash_is_checked_against_the_id_it_was_asked_by(
    change: Callable[[list[bytes]], list[bytes]],
) -> None:
    side, hashes = at_result()
    with pytest.raises(ProtocolViolation, match=r"wanted ids|comes twice|bytes of hashes"):
        side.receive(SketchMessage(hashes=b"".join(change(hashes))))
    assert side.receive(SketchMessage(hashes=b"".join(hashes))).needs == tuple(hashes)
    with pytest.raises(ProtocolViolation, match="after the hashes"):
        side.receive(SketchMessage(hashes=b"".join(hashes)))


def test_sets_that_stay_unequal_are_not_done() -> None:
    side = receiver(count=301)
    key = SketchKey.derive(NONCES, 0)
    ours = SketchedSet(key, sorted(OWN | {name(900)}))
    cells, checks = ours.cells(0, 30)
    message = SketchMessage(cells=SketchCells(0, 0, sketchset.pack_cells(cells, checks)))
    assert side.receive(message).say[0].result is not None
    # The opening named another XOR than that of the hashes.
    with pytest.raises(ProtocolViolation, match="is not equal"):
        side.receive(SketchMessage(hashes=name(900)))


def estimated(attempt: int = 0, sums: bytes = bytes(256)) -> SketchMessage:
    return SketchMessage(estimate=SketchEstimate(NONCES[1], 300, bytes(32), attempt, sums))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([SketchMessage(more=True)], "an estimate comes first"),
        ([estimated(1)], "attempt 1 after attempt 0"),
        ([estimated(), estimated()], "attempt 0 after attempt 0"),
        ([estimated(), estimated(1), estimated(2, b""), estimated(3)], "more than 2 attempts"),
        ([estimated(sums=bytes(255))], "255 bytes of sums; 256 are accepted"),
        ([SketchMessage(estimate=SketchEstimate(b"short", 1, bytes(32)))], "a nonce has 16 bytes"),
        ([SketchMessage(estimate=SketchEstimate(NONCES[1], 1, b""))], "the XOR of hashes 32"),
        (
            [SketchMessage(estimate=SketchEstimate(NONCES[1], 1, bytes(32), regions=b"x"))],
            "1 bytes of regions",
        ),
        ([estimated(), SketchMessage(result=SketchResult(b"x"))], "1 bytes of ids"),
        ([estimated(), SketchMessage(result=SketchResult(bytes(16)))], "an id comes twice"),
        ([estimated(), SketchMessage(result=SketchResult(b"", b"x"))], "1 bytes of hashes"),
        ([estimated(), SketchMessage(ids=b"")], "the receiver sends"),
    ],
)
def test_an_answer_that_does_not_follow_ends_the_session(
    messages: list[SketchMessage], reason: str
) -> None:
    side = SketchSender(SortedHashes(OWN), NONCES[0], ANY_SIZE)
    for message in messages[:-1]:
        side.receive(message)
    with pytest.raises(ProtocolViolation, match=reason):
        side.receive(messages[-1])


def test_a_result_has_at_most_as_many_ids_as_cells() -> None:
    own = SortedHashes(OWN)
    sums = sketchset.pack_integers(SketchedSet(KEY, sorted(OWN)).sums)

    def result(count: int) -> SketchStep:
        side = SketchSender(own, NONCES[0], ANY_SIZE)
        (cells,) = side.receive(estimated(sums=sums)).say
        assert cells.cells is not None
        assert len(cells.cells.cells) == 12 * FIRST_CELLS_MIN
        ids = array("q", range(count))
        return side.receive(SketchMessage(result=SketchResult(sketchset.pack_integers(ids))))

    for count in (FIRST_CELLS_MIN - 1, FIRST_CELLS_MIN):
        assert result(count).say[0].retry
    with pytest.raises(ProtocolViolation, match="more than 24 differences"):
        result(FIRST_CELLS_MIN + 1)


def test_more_cells_than_allowed_are_never_sent() -> None:
    side = SketchSender(SortedHashes(OWN), NONCES[0], ANY_SIZE._replace(windows=4))
    sums = sketchset.pack_integers(SketchedSet(KEY, sorted(OWN)).sums)
    windows = len(side.receive(estimated(sums=sums)).say)
    for _ in range(4):
        windows += len(side.receive(SketchMessage(more=True)).say)
    assert windows == 4
    with pytest.raises(ProtocolViolation, match="that were not sent"):
        side.receive(SketchMessage(more=True))
