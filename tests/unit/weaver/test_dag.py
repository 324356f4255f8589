"""DAG queries, over small graphs and over a log."""

from __future__ import annotations

from functools import partial

import pytest

from datalattice.clock import Hlc
from datalattice.engine import section
from datalattice.errors import LimitExceeded, UsageError
from datalattice.testing.log_kit import Author, LogFixture
from datalattice.weaver import (
    ZERO_HASH,
    Branch,
    DagNode,
    NoCommonAncestor,
    branches,
    dag,
    find_lca,
    is_ancestor,
    path,
)


class Graph:
    """Nodes named by one letter: "B:A" is B that depends on A; seqs in the order given."""

    def __init__(self, text: str, stamps: dict[str, int] | None = None) -> None:
        self.nodes: dict[bytes, DagNode] = {}
        for seq, each in enumerate(text.split(), 1):
            name, _, deps = each.partition(":")
            stamp = Hlc((stamps or {}).get(name, seq), 0)
            parents = tuple(d.encode() for d in deps.split(",") if d)
            self.nodes[name.encode()] = DagNode(name.encode(), parents, stamp, seq)

    def lca(self, a: str, b: str) -> str:
        return find_lca(self.nodes.get, a.encode(), b.encode()).decode()

    def path(self, start: str, to: str) -> str:
        return b"".join(path(self.nodes.get, start.encode(), to.encode())).decode()

    def is_ancestor(self, a: str, d: str) -> bool:
        return is_ancestor(self.nodes.get, a.encode(), d.encode())


DIAMOND = "A B:A C:A D:B,C"
DOUBLE = DIAMOND + " E:D F:D G:E,F"
CROSS = "R X:R Y:R P:X,Y Q:X,Y"


def test_chain() -> None:
    graph = Graph("A B:A C:B D:C")
    assert (graph.lca("A", "D"), graph.lca("D", "B"), graph.lca("C", "C")) == ("A", "B", "C")
    assert (graph.path("A", "D"), graph.path("B", "C"), graph.path("D", "A")) == ("BCD", "C", "")
    assert graph.path("A", "A") == ""


def test_diamond() -> None:
    graph = Graph(DIAMOND)
    assert graph.lca("B", "C") == "A"
    assert (graph.lca("B", "D"), graph.lca("A", "D")) == ("B", "A")
    assert graph.path("A", "D") == "BCD"
    assert graph.path("B", "D") == "D"


def test_double_diamond() -> None:
    graph = Graph(DOUBLE)
    assert (graph.lca("E", "F"), graph.lca("E", "C"), graph.lca("B", "G")) == ("D", "C", "B")
    assert graph.path("A", "G") == "BCDEFG"


def test_asymmetric_depths() -> None:
    graph = Graph("A B:A C:B D:C E:D F:A")
    assert (graph.lca("E", "F"), graph.lca("F", "E")) == ("A", "A")
    assert graph.path("A", "F") == "F"


def test_of_several_lowest_ancestors_the_greatest_stamp_counts() -> None:
    for stamps, wanted in (({"X": 5, "Y": 4}, "X"), ({"X": 4, "Y": 5}, "Y"), ({}, "Y")):
        graph = Graph(CROSS, stamps)
        assert graph.lca("P", "Q") == graph.lca("Q", "P") == wanted
    # On equal stamps the greater hash.
    assert Graph(CROSS, {"X": 9, "Y": 9}).lca("P", "Q") == "Y"


def test_an_ancestor_above_a_common_one_is_not_the_lowest() -> None:
    """A is a common ancestor of both ends, with a later stamp than the lower B."""
    graph = Graph("A B:A C:A,B D:A,B", {"A": 100})
    assert graph.lca("C", "D") == "B"


def test_the_lowest_is_not_left_early() -> None:
    """One side reaches the top in one step, the other in many."""
    graph = Graph("A B:A C:B D:C E:D,A F:A,C")
    assert graph.lca("E", "F") == "C"


def test_no_common_ancestor() -> None:
    graph = Graph("A B C:A D:B")
    with pytest.raises(NoCommonAncestor):
        graph.lca("C", "D")
    with pytest.raises(NoCommonAncestor):
        branches(graph.nodes.get, [b"C", b"D"])


def test_missing_hashes() -> None:
    graph = Graph("A B:A,Z")
    for call in (
        lambda: graph.lca("A", "Q"),
        lambda: graph.lca("Q", "A"),
        lambda: graph.lca("Q", "Q"),
        lambda: graph.path("A", "Q"),
        lambda: graph.path("Q", "A"),
        lambda: graph.is_ancestor("Q", "A"),
        lambda: graph.is_ancestor("A", "Q"),
        lambda: graph.path("A", "B"),
        lambda: branches(graph.nodes.get, [b"Q"]),
    ):
        with pytest.raises(UsageError, match="no witnessed intention"):
            call()


def test_is_ancestor() -> None:
    graph = Graph(DOUBLE)
    assert graph.is_ancestor("A", "A")
    assert graph.is_ancestor("A", "G")
    assert graph.is_ancestor("B", "E")
    assert not graph.is_ancestor("G", "A")
    assert not graph.is_ancestor("B", "C")
    assert is_ancestor(graph.nodes.get, ZERO_HASH, b"A")


def test_branch_inspection_over_heads() -> None:
    graph = Graph("A B:A C:B D:B E:D F:A")
    look = graph.nodes.get
    assert branches(look, []) == []
    assert branches(look, [b"D"]) == [Branch(b"D", (b"D",))]
    assert branches(look, [b"C", b"E"]) == [
        Branch(b"C", (b"B", b"C")),
        Branch(b"E", (b"B", b"D", b"E")),
    ]
    assert branches(look, [b"C", b"E", b"F"]) == [
        Branch(b"C", (b"A", b"B", b"C")),
        Branch(b"E", (b"A", b"B", b"D", b"E")),
        Branch(b"F", (b"A", b"F")),
    ]


def test_a_path_visits_a_bounded_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dag.PATH_NODES_MAX == 100_000
    graph = Graph("A B:A C:B D:C E:D")
    monkeypatch.setattr(dag, "PATH_NODES_MAX", 4)
    assert graph.path("A", "E") == "BCDE"
    monkeypatch.setattr(dag, "PATH_NODES_MAX", 3)
    with pytest.raises(LimitExceeded, match="3"):
        graph.path("A", "E")


def test_a_long_chain_needs_no_recursion() -> None:
    nodes = {b"0": DagNode(b"0", (), Hlc(0, 0), 1)}
    for n in range(1, 5000):
        name = b"%d" % n
        nodes[name] = DagNode(name, (b"%d" % (n - 1),), Hlc(n, 0), n + 1)
    assert len(path(nodes.get, b"0", b"4999")) == 4999
    assert is_ancestor(nodes.get, b"0", b"4999")
    assert find_lca(nodes.get, b"0", b"4999") == b"0"


def test_over_a_log() -> None:
    """Chains of one author are not followed, only dependencies."""
    store = LogFixture()
    a, b = Author(1), Author(2)
    root = a.write(b"root")
    left = a.write(b"left", [root.hash])
    right = b.write(b"right", [root.hash])
    beside = a.write(b"beside")
    join = b.write(b"join", [left.hash, right.hash])
    floating = b.write(b"", [a.write(prev=ZERO_HASH).hash])
    store.ingest(root, left, right, beside, join, floating)
    with store.engine.read() as txn:
        look = partial(store.log.node, section(txn, store.prefix))
        assert find_lca(look, left.hash, right.hash) == root.hash
        assert set(path(look, root.hash, join.hash)) == {left.hash, right.hash, join.hash}
        assert not is_ancestor(look, left.hash, beside.hash)
        assert look(floating.hash) is None
