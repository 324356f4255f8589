"""Views: which databases differ between two roots, found without a look at those that do not."""

from __future__ import annotations

import pytest

from datalattice.apps.kv import KV_SECTION
from datalattice.cells import Index, Keyword, Map, Signed, Value
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat
from datalattice.pipeline.kv.options import parse_options
from datalattice.pipeline.kv.view import differing_databases
from datalattice.testing.cells_kit import CellDict

ALICE = KeyPair(bytes([1]) * 32)
OPTIONS = parse_options({"store": "s"})


class Roots(CellDict):
    """Roots as they are read from a store."""

    def root(self, databases: list[tuple[Value, Value]]) -> Value:
        signed = Signed.sign(ALICE, Map.of(databases))
        return self.kept(Index.of([(KV_SECTION, Map.of([(ALICE.public_key, signed)]))]))


def database(text: str) -> Index:
    return Index.of([("key", text * 200)])


def names(before: Value, after: Value) -> list[tuple[str, bool, bool]]:
    return [
        (pair.name.database, pair.before is not None, pair.after is not None)
        for pair in differing_databases(before, after, OPTIONS)
    ]


def test_of_many_databases_only_those_that_changed_are_looked_at() -> None:
    cells = Roots()
    many: list[tuple[Value, Value]] = [(f"d{i:04}", database(f"{i}")) for i in range(2_000)]
    before = cells.root(many)
    after = cells.root([*many[:5], ("d0005", database("x")), *many[6:-1], ("new", database("y"))])
    cells.loads = 0
    found = [("d0005", True, True), ("d1999", True, False), ("new", False, True)]
    assert names(before, after) == found
    assert cells.loads < 60


def test_a_name_that_took_the_place_of_one_that_reads_the_same_is_one_database() -> None:
    cells = Roots()
    before = cells.root([("5", database("a")), ("same", database("b"))])
    after = cells.root([(5, database("c")), ("same", database("b"))])
    assert names(before, after) == [("5", True, True)]
    for old in (None, after):
        with pytest.raises(BadFormat, match="read the same: 5"):
            names(old, cells.root([("5", database("d")), (5, database("e"))]))
    assert names(None, before) == [("5", False, True), ("same", False, True)]


def test_what_is_not_a_database_is_passed_over() -> None:
    cells = Roots()
    odd = cells.root([("a", database("a")), ("b", Keyword("b")), ("c", Map.of(()))])
    assert names(None, odd) == [("a", False, True)]
    assert names(odd, None) == [("a", True, False)]
