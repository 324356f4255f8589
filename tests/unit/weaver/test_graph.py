"""The drawing of a history: order, lanes, crossings, labels."""

from __future__ import annotations

import random

from datalattice.clock import Hlc
from datalattice.weaver.graph import COLOURS, GraphNode, author_colour, draw_graph, row_order

ANNA = bytes.fromhex("01020304") + bytes(28)


def history(*rows: tuple[str, str]) -> dict[bytes, GraphNode]:
    """Return operations named by their labels, each with the names that it depends on."""
    hashes = {name: bytes([at]) * 32 for at, (name, _) in enumerate(rows)}
    return {
        hashes[name]: GraphNode(name, ANNA, Hlc(at, 0), tuple(hashes[dep] for dep in deps))
        for at, (name, deps) in enumerate(rows)
    }


def drawn(*rows: tuple[str, str]) -> list[str]:
    return list(draw_graph(history(*rows)))


def test_nothing_is_said_in_words() -> None:
    assert list(draw_graph({})) == ["(no history found)"]


def test_a_chain_is_one_column() -> None:
    assert drawn(("a", ""), ("b", "a"), ("c", "b")) == ["⊙  a", "●  b", "●  c"]


def test_a_fork_and_its_merge() -> None:
    assert drawn(("a", ""), ("b", "a"), ("c", "a"), ("d", "bc")) == [
        "⊙─╮  a",
        "│ ●  b",
        "● │  c",
        "○⟨╯  d",
    ]


def test_lines_that_cross_and_meet() -> None:
    rows = [("a", ""), ("b", ""), ("c", "a"), ("d", "b"), ("e", "ab"), ("f", "cd"), ("g", "ef")]
    assert drawn(*rows, ("h", "a"), ("i", "gh"), ("j", "i")) == [
        "⊙─┬─╮      a",
        "│ │ │ ⊙─╮  b",
        "│ ● │ │ │  c",
        "│ │ │ │ ●  d",
        "│ │ ○⟨╯ │  e",
        "│ ○⟨┼───╯  f",
        "│ ○⟨╯      g",
        "● │        h",
        "○⟨╯        i",
        "●          j",
    ]


def test_a_column_is_used_again_after_a_gap_of_one_row() -> None:
    assert drawn(("a", ""), ("b", ""), ("c", "")) == ["⊙    a", "  ⊙  b", "⊙    c"]


def test_equal_clocks_are_ordered_by_hash_and_dependencies_come_first() -> None:
    nodes = {
        bytes([at]) * 32: GraphNode(str(at), ANNA, Hlc(5, 0), (bytes([9]) * 32,) * (at == 1))
        for at in (9, 4, 1)
    }
    assert [nodes[hash].label for hash in row_order(nodes)] == ["4", "9", "1"]


def test_dependencies_outside_the_drawing_are_not_drawn_but_make_a_merge() -> None:
    elsewhere = b"\xff" * 32
    root, other = b"\1" * 32, b"\2" * 32
    nodes = {
        root: GraphNode("root", ANNA, Hlc(1, 0), (elsewhere,)),
        other: GraphNode("merge", ANNA, Hlc(2, 0), (root, elsewhere)),
    }
    assert list(draw_graph(nodes)) == ["⊙  root", "○  merge"]


def test_a_long_label_goes_on_below_beside_the_lines() -> None:
    nodes = history(("a", ""), ("b", "a"), ("c", "a"))
    long = GraphNode("(put k v)", ANNA, Hlc(0, 0), (), ("(put", "  k", "  v)"))
    nodes[bytes(32)] = long
    assert list(draw_graph(nodes, width=12))[:3] == ["⊙─╮  (put", "│ │    k", "│ │    v)"]
    assert next(iter(draw_graph(nodes, width=80))) == "⊙─╮  (put k v)"


def test_authors_have_one_of_twelve_colours() -> None:
    assert author_colour(ANNA) == COLOURS[(1 ^ 2 ^ 3 ^ 4) % 12]
    (line,) = draw_graph({ANNA: GraphNode("a", ANNA, Hlc(0, 0))}, colour=True)
    assert line == f"\x1b[{author_colour(ANNA)}m⊙\x1b[0m  a"


def test_the_edges_can_be_read_back_from_the_drawing() -> None:
    dice = random.Random(7)
    for _ in range(100):
        names = [chr(0x4E00 + at) for at in range(dice.randrange(1, 40))]
        rows = []
        for at, name in enumerate(names):
            known = names[max(0, at - 9) : at]
            rows.append((name, "".join(dice.sample(known, min(len(known), dice.randrange(4))))))
        lines = drawn(*rows)
        assert [line[-1] for line in lines] == names  # oldest on top: stamps follow the rows
        for at, (_, deps) in enumerate(rows):
            assert sorted(names[parent] for parent in parents_read(lines, at)) == sorted(deps)


def parents_read(lines: list[str], row: int) -> list[int]:
    """Return the rows from which lines lead to the node of a row, as an eye follows them."""
    ends = [column for column, sign in enumerate(lines[row]) if sign in "╯╰┴"]
    own = next(column for column, sign in enumerate(lines[row]) if sign in "●○⊙")
    if row and lines[row][own] != "⊙" and lines[row - 1][own] in "●○⊙│╮╭┬┼┤├":
        ends.append(own)
    return [start_of(lines, row - 1, column) for column in ends]


def start_of(lines: list[str], row: int, column: int) -> int:
    """Return the row in which the line that leaves this cell downwards begins."""
    while lines[row][column] in "│┼":
        row -= 1
    return row
