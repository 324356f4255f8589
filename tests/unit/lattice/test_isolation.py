"""One bad part of a foreign value costs that part: an entry, a slot, a section."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import datalattice.apps  # noqa: F401 - registers its sections
from datalattice.cells import (
    EMPTY_INDEX,
    Hole,
    Holes,
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    Work,
    decode,
    encode,
    references,
    same,
    validate,
    value_hash,
)
from datalattice.crypto import KeyPair, KeyRing, sha3_256
from datalattice.errors import BadFormat, Corruption, MissingData, TypeMismatch, WorkExceeded
from datalattice.lattice import (
    EMPTY_CONTEXT,
    MALFORMED,
    MISMATCHED,
    TOO_COSTLY,
    CASLattice,
    DataLattice,
    DIDOwnerLattice,
    EntryDropped,
    KeyedLattice,
    Lattice,
    LWWLattice,
    MapLattice,
    MergeContext,
    MergeNotice,
    OwnerLattice,
    OwnMalformed,
    SectionDropped,
    did_of,
    isolated,
    root_lattice,
    verify_did,
)
from datalattice.limits import WORK_LIMITS, WorkLimits
from datalattice.testing.cells_kit import CellDict
from datalattice.testing.malformed import cells_of, value_from_cells, with_cell

LONG = "x" * 150
KV = Keyword("kv")
KEYS = [KeyPair(bytes([n]) * 32) for n in range(50)]


def entries(mark: str, count: int = 60) -> Index:
    return Index.of(
        [(f"k{n:02}", Vector.of((mark * 90 + str(n), 0, 5, None))) for n in range(count)]
    )


def malformed(value: Value) -> Value:
    """Return a value whose first child is a Blob."""
    top, below = cells_of(value)
    blob = b"b" * 200
    below[value_hash(blob)] = encode(blob)
    changed, cells = with_cell(top, below, references(top)[0], encode(blob))
    made = value_from_cells(changed, cells)
    with pytest.raises(BadFormat):
        validate(made)
    return made


def slot(key: KeyPair, value: Value) -> Signed:
    return Signed.sign(key, Map.of([("db", value)]))


class Received:
    """A foreign value as the intake hands it on: what is sound is stored, the rest is holes."""

    def __init__(self, value: Value, unsound: Value) -> None:
        top, below = cells_of(value)
        below[sha3_256(top)] = top
        bad = {value_hash(unsound): "it is not sound"}
        tainted: dict[bytes, bytes] = {}
        found = True
        while found:
            found = False
            for hash, encoding in below.items():
                if hash not in tainted and hash not in bad:
                    names = references(encoding)
                    if any(name in bad or name in tainted for name in names):
                        tainted[hash] = encoding
                        found = True
        stored = CellDict({h: e for h, e in below.items() if h not in bad and h not in tainted})
        self.holes = Holes(bad, tainted)
        self.value = decode(top, self.holes.loader(stored))


def merged(lattice: Lattice, own: Value, received: Received) -> tuple[Value, list[MergeNotice]]:
    reports: list[MergeNotice] = []
    context = MergeContext(verifier=verify_did).for_foreign(reports.append, Work(), received.holes)
    made = lattice.merge(own, received.value, context)
    assert not received.holes.is_planted(made)
    return made, reports


def test_a_malformed_slot_among_fifty_costs_that_slot() -> None:
    lattice = OwnerLattice(MapLattice(LWWLattice()))
    bad = slot(KEYS[7], malformed(entries("m")))
    slots = [(key.public_key, slot(key, entries("g"))) for key in KEYS]
    slots[7] = (KEYS[7].public_key, bad)
    received = Received(Map.of(slots), child_of(bad))
    for own in (None, Map.of([(KEYS[7].public_key, slot(KEYS[7], entries("o")))])):
        made, reports = merged(lattice, own, received)
        assert isinstance(made, Map)
        kept = None if own is None else own.get(KEYS[7].public_key)
        assert same(made.get(KEYS[7].public_key), kept)
        assert len(made) == (49 if own is None else 50)
        assert [(one.path, one.kind) for one in reports] == [((KEYS[7].public_key,), MALFORMED)]


def child_of(value: Value) -> Value:
    """Return the unsound cell: the index of the database in a slot."""
    assert isinstance(value, Signed)
    databases = value.value
    assert isinstance(databases, Map)
    return databases.get("db")


def test_a_slot_whose_own_cell_is_unsound_costs_that_slot() -> None:
    lattice = OwnerLattice(MapLattice(LWWLattice()))
    good, bad = (Signed.sign(key, Map.of([(LONG, LONG)])) for key in KEYS[:2])
    both = Map.of([(KEYS[0].public_key, good), (KEYS[1].public_key, bad)])
    made, reports = merged(lattice, None, Received(both, bad))
    assert same(made, Map.of([(KEYS[0].public_key, good)]))
    assert reports == [EntryDropped((KEYS[1].public_key,))]


def test_a_slot_of_a_did_owner_is_isolated_like_any_other() -> None:
    lattice = DIDOwnerLattice(MapLattice(LWWLattice()))
    bad = Signed.sign(KEYS[1], Map.of([(LONG, malformed(entries("m")))]))
    good = Signed.sign(KEYS[0], Map.of([(LONG, LONG)]))
    names = [did_of(key.public_key) for key in KEYS[:2]]
    signed_value = bad.value
    assert isinstance(signed_value, Map)
    received = Received(Index.of([(names[0], good), (names[1], bad)]), signed_value.get(LONG))
    made, reports = merged(lattice, EMPTY_INDEX, received)
    assert same(made, Index.of([(names[0], good)]))
    assert reports == [EntryDropped((names[1],))]


def test_a_malformed_section_costs_that_section() -> None:
    lattice = root_lattice()
    owners = Map.of([(key.public_key, slot(key, 1)) for key in KEYS])
    bad = malformed(owners)
    data = Index.of([(value_hash(LONG), LONG)])
    root = Index.of([(KV, bad), (Keyword("data"), data)])
    made, reports = merged(lattice, None, Received(root, bad))
    assert same(made, Index.of([(Keyword("data"), data)]))
    assert reports == [SectionDropped((KV,), MALFORMED)]


def test_a_section_of_values_that_are_taken_as_one_is_not_taken_with_a_hole() -> None:
    """A register hands on what it is given; a result with a hole is no result."""
    names = [Keyword("first"), Keyword("second")]
    lattice = KeyedLattice({names[0]: MapLattice(LWWLattice()), names[1]: LWWLattice()})
    bad = malformed(entries("m"))
    for section, value in (
        (names[0], Map.of([(1, Vector.of([bad]))])),
        (names[1], Vector.of([bad])),
    ):
        other = Index.of([(names[0], Map.of([(2, LONG)])), (names[1], 1), (section, value)])
        made, reports = merged(lattice, None, Received(other, bad))
        assert same(made, other.remove(section))
        assert reports == [SectionDropped((section,), MALFORMED)]


@pytest.mark.parametrize("lattice", [DataLattice(), CASLattice()], ids=repr)
@pytest.mark.parametrize(
    "own", [None, Index.of([(value_hash(b"own" * 90), b"own" * 90)])], ids=repr
)
def test_a_malformed_value_of_a_content_store_costs_that_entry(
    lattice: Lattice, own: Value
) -> None:
    bad = malformed(entries("m"))
    good = [Vector.of([LONG, n]) for n in range(30)]
    spoiled = [bad, Vector.of([bad, LONG]), Vector.of([Vector.of([bad])])]
    other = Index.of([(value_hash(value), value) for value in [*good, *spoiled]])
    made, reports = merged(lattice, own, Received(other, bad))
    wanted = Index.of([(value_hash(value), value) for value in good])
    if isinstance(own, Index):
        wanted = wanted.put_many(own.entries())
    assert same(made, wanted)
    dropped = sorted((value_hash(value),) for value in spoiled)
    assert sorted(one.path for one in reports) == dropped
    assert {one.kind for one in reports} == {MALFORMED}


def test_what_is_inside_a_signed_value_is_taken_with_it_or_not_at_all() -> None:
    """An inner section that fails is no reason to take the rest of what was signed together."""

    class Fails(Lattice):
        def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
            raise TypeMismatch("it has another kind inside")

        def check_foreign(self, value: Value) -> bool:
            return True

    inner = KeyedLattice({"a": LWWLattice(), "b": Fails()})
    lattice = OwnerLattice(inner)
    owner = KEYS[0].public_key
    own = Map.of([(owner, Signed.sign(KEYS[0], Index.of([(Keyword("a"), 1), (Keyword("b"), 1)])))])
    other = Map.of(
        [(owner, Signed.sign(KEYS[0], Index.of([(Keyword("a"), 2), (Keyword("b"), 2)])))]
    )
    reports: list[MergeNotice] = []
    assert lattice.merge(own, other, MergeContext(report=reports.append)) is own
    assert [(one.path, one.kind) for one in reports] == [((owner,), MISMATCHED)]


def raising(error: Exception) -> Callable[[], Value]:
    def merge() -> Value:
        raise error

    return merge


@pytest.mark.parametrize("error", [MissingData([bytes(32)]), Corruption("a bad disk")], ids=repr)
def test_an_error_of_the_own_disk_passes_through(error: Exception) -> None:
    with pytest.raises(type(error)):
        isolated(MergeContext(path=(KV,)), 1, 2, raising(error))


def test_a_part_that_costs_too_much_is_left_out_and_the_rest_has_more_to_spend() -> None:
    work = Work(WorkLimits(start=0))
    reports: list[MergeNotice] = []
    context = MergeContext(path=(KV,)).for_foreign(reports.append, work)

    def costly() -> Value:
        work.spend(3_000)
        return "never"

    for turn in range(1, WORK_LIMITS.grants_max + 3):
        assert isolated(context, 1, 2, costly) == 1
        assert reports.pop() == SectionDropped((KV,), TOO_COSTLY)
        assert work.grants == min(turn, WORK_LIMITS.grants_max)
    assert work.left < 0
    with pytest.raises(WorkExceeded):
        work.spend(1)


def test_own_poison_gives_way_to_a_sound_value_that_the_owner_signed() -> None:
    lattice = root_lattice()
    owner = KEYS[0].public_key
    good, bad = slot(KEYS[0], entries("g")), slot(KEYS[0], malformed(entries("m")))
    data = (Keyword("data"), Index.of([(value_hash(LONG), LONG)]))
    own = Index.of([(KV, Map.of([(owner, bad)]))])
    other = Index.of([(KV, Map.of([(owner, good)])), data])
    reports: list[MergeNotice] = []
    made = lattice.merge(own, other, MergeContext(report=reports.append))
    assert same(made, other)
    assert [type(one) for one in reports] == [OwnMalformed]
    assert reports[0].path == (KV, owner)


def test_own_poison_in_a_section_stays_and_the_others_merge() -> None:
    lattice = root_lattice()
    slots = Map.of([(key.public_key, slot(key, 1)) for key in KEYS])
    own = Index.of([(KV, malformed(slots))])
    data = (Keyword("data"), Index.of([(value_hash(LONG), LONG)]))
    other = Index.of([(KV, Map.of([(key.public_key, slot(key, 2)) for key in KEYS])), data])
    reports: list[MergeNotice] = []
    made = lattice.merge(own, other, MergeContext(report=reports.append))
    assert isinstance(made, Index)
    assert same(made.get(KV), own.get(KV))
    assert same(made.get(data[0]), data[1])
    assert [type(one) for one in reports] == [OwnMalformed]


def test_a_hole_has_a_hash_and_is_no_part_of_any_value() -> None:
    hole = Hole(bytes(32), "its keys are not in order")
    assert value_hash(hole) == bytes(32)
    for value in (hole, Vector.of([hole])):
        with pytest.raises(BadFormat, match="not in order"):
            encode(value)
    assert not Holes().spoils(hole)
    assert Holes({bytes(32): "bad"}).spoils(hole)
    assert Holes({bytes(32): "bad"}).is_planted(Map.of([(1, hole)]))
    appended = Vector.of([0] * 256)
    for _ in range(16):
        appended = appended.append(hole)
    assert Holes({bytes(32): "bad"}).is_planted(appended)


def test_every_derived_context_knows_all_that_the_first_one_knew() -> None:
    work, holes = Work(), Holes({bytes(32): "bad"})
    first = MergeContext(
        1,
        KEYS[0],
        verify_did,
        path=("a",),
        report=lambda _: None,
        owner=b"o",
        prefer="own",
        keys=KeyRing(KEYS[1]),
        work=work,
        holes=holes,
    )
    derived = {
        "path": first.at(("b",), b"o"),
        "prefer": first.preferring("other"),
        "verifier": first.verified_by(lambda _o, _s: True),
    }
    if hasattr(first, "reporting"):
        derived["report"] = first.reporting(lambda _: None)
    kind = type(first)
    fields = [n for n in dir(first) if n[0] != "_" and not callable(getattr(kind, n, None))]
    assert {"timestamp", "keys", "work", "holes"} <= set(fields)
    for changed, context in derived.items():
        for field in fields:
            if field != changed:
                assert getattr(context, field) is getattr(first, field), (changed, field)
