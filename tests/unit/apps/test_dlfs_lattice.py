"""The merge of nodes: the examples of the rule, what strangers send, and what is reported."""

from __future__ import annotations

import itertools
import time

import pytest

from datalattice.apps.dlfs import (
    DRIVE_DEPTH_MAX,
    NODE_FIELDS_MAX,
    DLFSLattice,
    Drive,
    make_directory,
    make_file,
    make_tombstone,
)
from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Keyword,
    Value,
    Vector,
    decode_message,
    encode_message,
    same,
    to_text,
    value_hash,
)
from datalattice.lattice import (
    EntryDropped,
    MergeContext,
    MergeNotice,
    WriteSuperseded,
    root_lattice,
)
from datalattice.store import MemoryStore

LATTICE = DLFSLattice()


def folder(utime: int, /, base: int = -1, metadata: Value = None, **entries: Value) -> Vector:
    return make_directory(Index.of(entries), utime, base=base, metadata=metadata)


def file(utime: int, data: bytes = b"x") -> Vector:
    return make_file(data, utime)


def gone(utime: int) -> Vector:
    return make_tombstone(utime)


def joined(*values: Value) -> Value:
    """Join in every order, from either side; the results must agree."""
    results = []
    for order in itertools.permutations(values):
        forwards = backwards = order[0]
        for value in order[1:]:
            forwards, backwards = LATTICE.merge(forwards, value), LATTICE.merge(value, backwards)
        results += [forwards, backwards]
    for result in results:
        assert same(result, results[0]), f"{to_text(result)} {to_text(results[0])}"
    return results[0]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([folder(5, a=file(5)), gone(6), folder(7, b=file(7))], folder(7, 6, b=file(7))),
        (
            [folder(10, a=file(5)), gone(11), folder(20, a=file(5), b=file(20))],
            folder(20, 11, b=file(20)),
        ),
        ([folder(10, a=file(5)), gone(11), folder(10, a=file(5), b=file(5))], gone(11)),
        ([folder(6), gone(6)], gone(6)),
        ([folder(6), file(6)], file(6)),
        ([folder(3, 1, a=file(3)), folder(4, 2, b=file(4))], folder(4, 2, a=file(3), b=file(4))),
        (
            [folder(9, 5, a=file(9)), folder(8, b=file(5), c=file(6))],
            folder(9, 5, a=file(9), c=file(6)),
        ),
        # Inside a cut: a base that the outer one covers goes, a later one stays.
        (
            [gone(5), folder(9, d=folder(9, 3, x=file(9), y=file(4)))],
            folder(9, 5, d=folder(9, x=file(9))),
        ),
        ([gone(5), folder(9, d=folder(9, 7, x=file(9)))], folder(9, 5, d=folder(9, 7, x=file(9)))),
        # What stays only for something newer inside is not itself newer.
        (
            [gone(5), folder(9, d=folder(2, metadata="m", x=file(9)))],
            folder(9, 5, d=folder(5, x=file(9))),
        ),
        ([folder(5, metadata="m"), folder(4, metadata="n")], folder(5, metadata="m")),
        ([folder(5), folder(5, metadata="n")], folder(5, metadata="n")),
    ],
)
def test_the_rule_by_example(values: list[Value], wanted: Value) -> None:
    result = joined(*values)
    assert same(result, wanted), to_text(result)


def test_deletions_of_the_other_layout_become_tombstones() -> None:
    other = Vector.of([Index.of({"b": file(4)}), None, None, 9, Index.of({"a": 6, "b": 3, "": 2})])
    assert LATTICE.check_foreign(other)
    result = joined(folder(5, a=file(5), c=file(1)), other)
    assert same(result, folder(9, 2, a=gone(6), b=file(4))), to_text(result)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        Vector.of([]),
        Vector.of([None, None, None]),
        Vector.of([None, None, None, None]),
        Vector.of([None, None, None, -1]),
        Vector.of([None, None, None, 1 << 63]),
        Vector.of([None, None, None, True]),
        Vector.of([None, None, None, 1.0]),
        Vector.of([None, "text", None, 1]),
        Vector.of([{}, None, None, 1]),
        Vector.of([EMPTY_INDEX, b"", None, 1]),
        Vector.of([EMPTY_INDEX, None, None, 1, None]),
        Vector.of([EMPTY_INDEX, None, None, 1, EMPTY_INDEX]),
        Vector.of([EMPTY_INDEX, None, None, 1, 5]),
        Vector.of([EMPTY_INDEX, None, None, 1, Index.of({"": -1})]),
        Vector.of([EMPTY_INDEX, None, None, 1, Index.of({"": 1})]),
        Vector.of([EMPTY_INDEX, None, None, 1, Index.of({"": None})]),
        Vector.of([EMPTY_INDEX, None, None, 1, Index.of({b"": 0})]),
        Vector.of([None, None, None, 1, *range(NODE_FIELDS_MAX - 3)]),
    ],
)
def test_what_is_no_node_is_refused(value: Value) -> None:
    assert not LATTICE.check_foreign(value)
    own = folder(1)
    assert LATTICE.merge(own, value) is own


def test_what_is_a_node_is_taken() -> None:
    for value in [
        Vector.of([None, None, None, 0]),
        Vector.of([None, None, None, (1 << 63) - 1]),
        Vector.of([None, b"x", "meta", 1, None, "more"]),
        Vector.of([EMPTY_INDEX, None, None, 1, None, "more"]),
        Vector.of([EMPTY_INDEX, None, None, 1, Index.of({"": 0})]),
        folder(1, 5, a=file(6)),
        Vector.of([None, None, None, 1, *range(NODE_FIELDS_MAX - 5)]),
        Vector.of([None, None, None, 1, *range(NODE_FIELDS_MAX - 4)]),
    ]:
        assert LATTICE.check_foreign(value)
        assert LATTICE.merge(None, value) is value


def test_bad_entries_are_dropped_one_by_one_and_reported() -> None:
    reports: list[MergeNotice] = []
    context = MergeContext(path=("here",), report=reports.append)
    bad = Index.of(
        [
            ("ok", file(3)),
            ("broken", 7),
            (b"bytes", file(3)),
            (Keyword("word"), file(3)),
            ("a/b", file(3)),
            ("", file(3)),
            ("d", folder(3, x=file(3), y=None)),
        ]
    )
    deletions = Index.of([("ok", 1), ("late", "never"), (b"z", 5)])
    other = Vector.of([bad, None, None, 3, deletions])
    own = folder(2, mine=file(2), broken=file(1), bytes=file(1))
    merged = LATTICE.merge(own, other, context)
    wanted = folder(
        3, mine=file(2), broken=file(1), bytes=file(1), ok=file(3), d=folder(3, x=file(3))
    )
    assert same(merged, wanted), to_text(merged)
    dropped = [report.path for report in reports if isinstance(report, EntryDropped)]
    assert len(dropped) == len(reports) == 8
    assert ("here", 0, "d", 0, "y") in dropped
    assert ("here", 0, b"bytes") in dropped
    fresh = LATTICE.merge(None, other, MergeContext(report=reports.append))
    assert LATTICE.check_foreign(fresh)
    assert LATTICE.merge(None, 7) is not None


def test_deep_trees_are_cut_where_the_bound_is() -> None:
    tree: Value = file(1)
    for _ in range(DRIVE_DEPTH_MAX):
        tree = folder(1, d=tree)
    assert LATTICE.merge(None, tree) is tree
    reports: list[MergeNotice] = []
    context = MergeContext(report=reports.append)
    cut = LATTICE.merge(None, folder(1, d=tree, e=file(1)), context)
    assert [len(report.path) for report in reports] == [2 * (DRIVE_DEPTH_MAX + 1)]
    assert same(LATTICE.merge(cut, folder(1, e=file(1))), cut)
    for _ in range(50_000):
        tree = folder(1, d=tree)
    far = decode_message(encode_message(tree))
    assert LATTICE.check_foreign(far)
    LATTICE.merge(folder(2, e=file(1)), far)
    LATTICE.merge(gone(0), far)


def test_trees_that_use_one_directory_many_times_over_are_merged_once() -> None:
    def bomb(leaf: Value, utime: int) -> Value:
        tree = leaf
        for _ in range(60):
            tree = folder(utime, a=tree, b=tree)
        return tree

    start = time.thread_time()
    a, b = bomb(file(5, b"1"), 5), bomb(file(6, b"2"), 6)
    assert LATTICE.merge(None, a) is a
    assert LATTICE.merge(a, b) is b
    assert same(LATTICE.merge(a, gone(4)), LATTICE.merge(gone(4), a))
    assert LATTICE.merge(a, gone(5)) is not a
    assert time.thread_time() - start < 20


def test_what_a_signer_made_too_deep_and_nobody_could_put_right_breaks_no_merge() -> None:
    """A first signed value is taken as it is; the next one may raise a base above it."""
    for levels, late in (
        (DRIVE_DEPTH_MAX - 1, 9),
        (DRIVE_DEPTH_MAX + 40, 9),
        (DRIVE_DEPTH_MAX + 40, 1),
        (5_000, 9),
    ):
        plain: Value = file(late)
        other_layout: Value = file(late)
        for _ in range(levels):
            plain = folder(1, d=plain)
            index = Index.of([("d", other_layout)])
            other_layout = Vector.of([index, None, None, 9, Index.of([("d", 3)])])
        for _ in range(DRIVE_DEPTH_MAX - 1):
            other_layout = folder(9, d=other_layout)
        for own in (plain, other_layout):
            news: Value = folder(12, base=2)
            assert LATTICE.check_foreign(LATTICE.merge(own, news))
            for _ in range(DRIVE_DEPTH_MAX - 1):
                news = folder(12, d=news)
            assert LATTICE.check_foreign(LATTICE.merge(own, news))
            assert LATTICE.check_foreign(LATTICE.merge(own, gone(2)))
            assert LATTICE.check_foreign(LATTICE.merge(folder(5, d=gone(2)), own))


def test_lost_writes_are_reported() -> None:
    def told(own: Value, other: Value) -> list[tuple[Value, str]]:
        reports: list[MergeNotice] = []
        LATTICE.merge(own, other, MergeContext(report=reports.append))
        assert all(isinstance(report, WriteSuperseded) for report in reports)
        return sorted(
            ("/".join(map(str, report.path)), report.lost)
            for report in reports
            if isinstance(report, WriteSuperseded)
        )

    own = folder(
        5, a=file(1, b"1"), b=file(5, b"1"), c=gone(3), d=file(2), e=folder(2), f=folder(3)
    )
    other = folder(5, a=file(2, b"2"), b=file(4, b"2"), c=file(2), d=gone(4), e=file(3), f=file(1))
    assert told(own, other) == [
        ("0/a", "own"),
        ("0/b", "other"),
        ("0/c", "other"),
        ("0/d", "own"),
        ("0/e", "own"),
        ("0/f", "other"),
    ]
    assert told(folder(1, a=file(1, b"1")), folder(2, a=file(2, b"1"))) == []
    assert told(gone(5), folder(9, a=file(3), b=file(6), t=gone(2))) == [("0/a", "other")]
    assert told(folder(9, a=file(3), d=folder(4, x=file(4))), gone(5)) == [
        ("0/a", "own"),
        ("0/d", "own"),
    ]


def test_of_plain_names_alike_in_32_bytes_one_stays_with_what_it_names() -> None:
    one, two, short = "n" * 32 + "1", "n" * 32 + "2", "n" * 32
    a, b, c = (
        make_directory(Index.of([(name, file(time))]), 1)
        for name, time in ((one, 1), (two, 2), (short, 0))
    )
    kept = a if value_hash(one) > value_hash(two) else b
    for merged in (LATTICE.merge(a, b), LATTICE.merge(b, a)):
        assert same(merged, kept)
    for merged in (LATTICE.merge(a, c), LATTICE.merge(c, a)):
        assert same(merged, c)


def test_a_merge_loads_what_differs() -> None:
    loaded: list[bytes] = []

    class Counting(MemoryStore):
        def load(self, hash: bytes) -> Value:
            loaded.append(hash)
            return super().load(hash)

    store = Counting()
    drive = Drive.create()
    for number in range(60):
        drive.makedirs(f"/d{number}")
        for name in "abcdef":
            drive.write(f"/d{number}/{name}", b"x" * 200)
    clone = drive.clone()
    clone.write("/d7/c", b"y")
    values = drive.cursor.get(), clone.cursor.get()
    for value in values:
        store.commit(value)
    own, other = (store.load(value_hash(value)) for value in values)
    loaded.clear()
    assert LATTICE.merge(own, other) is other
    assert LATTICE.merge(other, own) is other
    assert len(loaded) < 60


def test_paths_below_the_root_resolve() -> None:
    root = root_lattice()
    keys = ["fs", "ab" * 32, "value", "home", "0", "dir", 0, "file"]
    resolved = root.resolve_path(keys)
    assert resolved == [Keyword("fs"), b"\xab" * 32, Keyword("value"), "home", 0, "dir", 0, "file"]
    assert isinstance(root.path(*resolved), DLFSLattice)
    assert LATTICE.child(1) is None
    assert LATTICE.child(False) is None
    for key, wanted in [
        ("x", None),
        ("-1", -1),
        (5, 5),
        (b"0", None),
        ("9" * 30, None),
        ("9" * 19, None),
    ]:
        assert LATTICE.resolve_key(key) == wanted
