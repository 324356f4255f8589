"""Useless messages are forgiven when something useful comes, and bounded in a row."""

from __future__ import annotations

import pytest

from datalattice.cells import Keyword, Map, Signed, Vector, encode_message
from datalattice.crypto import KeyPair
from datalattice.lattice import OwnerLattice, SetLattice
from datalattice.store import MemoryStore
from datalattice.sync import LatticeProtocol, LatticeReplica, Replicator
from datalattice.sync.conduct import (
    IGNORED,
    IGNORED_MAX,
    MALFORMED_FRAME,
    MALFORMED_MAX,
    REFUSED,
    REFUSED_MAX,
    UNASKED,
    UNASKED_MAX,
    Conduct,
)
from datalattice.testing.clocks import StoppedClock
from datalattice.wire import Result, encode_result

KEY = KeyPair(b"k" * 32)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        (MALFORMED_FRAME, MALFORMED_MAX),
        (UNASKED, UNASKED_MAX),
        (IGNORED, IGNORED_MAX),
        (REFUSED, REFUSED_MAX),
    ],
)
def test_each_kind_is_bounded_in_a_row(kind: str, limit: int) -> None:
    conduct = Conduct()
    assert [conduct.charge(kind) for _ in range(limit - 1)] == [None] * (limit - 1)
    reason = conduct.charge(kind)
    assert reason is not None
    assert str(limit) in reason
    assert conduct.charge(kind) is not None


def test_use_forgives_all_but_what_is_no_message() -> None:
    conduct = Conduct()
    for kind, limit in ((MALFORMED_FRAME, MALFORMED_MAX), (UNASKED, UNASKED_MAX)):
        for _ in range(limit - 1):
            conduct.charge(kind)
    conduct.forgive()
    assert conduct.charge(UNASKED) is None
    assert conduct.charge(MALFORMED_FRAME) is not None


def node() -> Replicator:
    replica = LatticeReplica(MemoryStore(), OwnerLattice(SetLattice()))
    made = Replicator(replica, LatticeProtocol(StoppedClock(1_800_000_000_000)))
    made.open("p", 0, outbound=False)
    return made


def test_a_flood_of_answers_nobody_asked_for_ends_the_connection() -> None:
    one = node()
    answer = encode_result(Result(1, None))
    for _ in range(UNASKED_MAX - 1):
        one.receive("p", answer, 0)
    effects = one.take_effects()
    assert (effects.closes, {note.kind for note in effects.notes}) == ([], {"unasked"})
    one.receive("p", answer, 0)
    effects = one.take_effects()
    assert [note.kind for note in effects.notes] == ["unasked", "closed-unasked"]
    assert [id for id, _ in effects.closes] == ["p"]


def test_values_that_are_not_taken_are_bounded_and_forgiven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datalattice.sync.conduct._LIMITS", {REFUSED: (3, "x")})
    lv = Keyword("LV")
    bad = encode_message(Vector.of((lv, Vector.of(()), 5)))
    good = encode_message(
        Vector.of(
            (lv, Vector.of(()), Map.of({KEY.public_key: Signed.sign(KEY, SetLattice().zero())}))
        )
    )
    one = node()
    for payload in (bad, bad, good, bad, bad):
        one.receive("p", payload, 0)
    effects = one.take_effects()
    assert effects.closes == []
    assert [note.kind for note in effects.notes] == ["value-refused"] * 4
    one.receive("p", bad, 0)
    assert [note.kind for note in one.take_effects().notes] == ["value-refused", "closed-refused"]


def test_what_a_merge_drops_is_counted_by_its_kind() -> None:
    one = node()
    forged = Signed(KEY.public_key, bytes(64), SetLattice().zero())
    entries = {
        KEY.public_key: forged,
        b"a" * 32: Signed.sign(KEY, SetLattice().zero()),
        b"b" * 32: Signed.sign(KEY, SetLattice().zero()),
        b"c" * 32: 5,
    }
    one.receive("p", encode_message(Vector.of((Keyword("LV"), Vector.of(()), Map.of(entries)))), 0)
    counts = {note.kind: note.count for note in one.take_effects().notes}
    assert counts == {"bad-signature": 1, "not-owner": 2, "entry-dropped": 1}
