"""Commands `lattice store`, `kv`, `log` and `weave` on weaver stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.testing.stores_kit import envelopes_of
from datalattice.weaver import NullMachine


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def notes(lattice: Any) -> str:
    for key, value in (("title", "Shopping"), ("title", "Groceries"), ("tea", "3")):
        assert lattice("kv", "put", "notes", key, value).code == 0
    return "notes"


# --- store ----------------------------------------------------------------------------------------


def test_stores_are_made_and_listed_as_a_tree(lattice: Any) -> None:
    made = lattice("store", "create", "team", "--json").document
    assert (made["name"], made["kind"], made["parent"]) == ("team", "core:kvstore", None)
    assert lattice("store", "create", "diary", "--kind", "log", "--parent", "team").code == 0
    rows = lattice("store", "list", "--json").document
    assert [(row["name"], row["kind"], row["depth"]) for row in rows] == [
        ("team", "core:kvstore", 0),
        ("diary", "core:logstore", 1),
    ]
    assert rows[1]["parent"] == made["id"]
    assert "\n  diary\tcore:logstore\t" in lattice("store", "list").out


def test_a_first_write_makes_no_root_beside_a_child_of_its_name(lattice: Any) -> None:
    lattice("store", "create", "team")
    lattice("store", "create", "diary", "--kind", "log", "--parent", "team")
    for words in (("append", "diary", "rain"), ("read", "diary")):
        ran = lattice("log", *words)
        assert (ran.code, "by its id: team/diary" in ran.line()) == (1, True)
    assert len(lattice("store", "list", "--json").document) == 2
    assert lattice("log", "append", "team/diary", "rain").code == 0
    assert lattice("store", "create", "diary", "--kind", "log").code == 0  # `create` is no guess
    assert lattice("log", "append", "diary", "sun").code == 0


def test_a_name_is_made_once_and_a_kind_must_be_known(lattice: Any) -> None:
    assert lattice("store", "create", "team").code == 0
    ran = lattice("store", "create", "team", "--kind", "log")
    assert ran.code == 2
    assert "'team' already" in ran.line()
    assert "core:logstore" in lattice("store", "create", "other", "--kind", "x").line()


@pytest.mark.usefixtures("owner")
def test_without_a_store_the_list_is_empty(lattice: Any) -> None:
    ran = lattice("store", "list", "--json")
    assert ran.document == []
    assert lattice("store", "open", "notes").code == 1


@pytest.mark.usefixtures("notes")
def test_open_shows_what_a_store_is(lattice: Any) -> None:
    found = lattice("store", "open", "notes", "--json").document
    assert (found["name"], found["kind"], found["intentions"], found["stalled"]) == (
        "notes",
        "core:kvstore",
        5,
        False,
    )
    assert [peer["status"] for peer in found["peers"]] == ["active"]
    assert "intentions  5" in lattice("store", "open", found["id"]).out
    assert lattice("store", "open", found["id"][:6]).code == 0


def test_archive_and_restore(lattice: Any) -> None:
    lattice("store", "create", "team")
    lattice("store", "create", "diary", "--kind", "log", "--parent", "team")
    assert lattice("store", "archive", "team", "diary").code == 0
    assert [row["archived"] for row in lattice("store", "list", "--json").document] == [False, True]
    assert "archived" in lattice("store", "list").out
    assert lattice("store", "archive", "team", "diary", "--restore", "--json").document == {
        "parent": "team",
        "child": "diary",
        "state": "active",
    }
    assert lattice("store", "archive", "team", "nothing").code == 1


@pytest.mark.usefixtures("notes")
@pytest.mark.parametrize("level", ["1", "2", "3"])
def test_fsck_of_a_sound_log(lattice: Any, level: str) -> None:
    ran = lattice("store", "fsck", "notes", "--level", level, "--json")
    assert (ran.code, ran.document["faults"], ran.document["intentions"]) == (0, [], 5)
    assert lattice("store", "fsck", "notes").out == "5 intentions, no fault\n"
    assert lattice("store", "fsck", "notes", "--level", "4").code == 2


@pytest.mark.usefixtures("notes")
def test_fsck_of_a_damaged_log_says_where_and_ends_with_1(lattice: Any, home: Path) -> None:
    from datalattice.engine import open_engine
    from datalattice.weaver import STORE_TABLES

    engine = open_engine(home / "weaver", STORE_TABLES)
    with engine.write() as txn:
        (key, row), *_ = list(txn.scan("witness"))[2:]
        txn.put("witness", key, row[:-1] + bytes([row[-1] ^ 1]))
    engine.close()
    ran = lattice("store", "fsck", "notes", "--level", "2", "--json")
    assert ran.code == 1
    assert ran.document["faults"]


# --- kv -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("notes")
def test_keys_are_written_and_read(lattice: Any) -> None:
    assert lattice("kv", "get", "notes", "title").out == "Groceries\n"
    assert lattice("kv", "get", "notes", "tea", "--json").document == {
        "key": "tea",
        "value": "3",
        "conflicted": False,
    }
    rows = lattice("kv", "list", "notes", "--json").document
    assert [(row["key"], row["value"]) for row in rows] == [("tea", "3"), ("title", "Groceries")]
    assert lattice("kv", "list", "notes", "ti").out == "title\tGroceries\t\n"
    assert len(lattice("kv", "delete", "notes", "tea", "--json").document["hash"]) == 64
    assert lattice("kv", "get", "notes", "tea").code == 1
    assert lattice("kv", "delete", "notes", "tea").code == 1


@pytest.mark.usefixtures("notes")
def test_bytes_are_given_and_shown_as_hex(lattice: Any) -> None:
    assert lattice("kv", "put", "notes", "raw", "ff00", "--in", "hex").code == 0
    assert lattice("kv", "get", "notes", "raw").out == "0xff00\n"
    assert lattice("kv", "get", "notes", "raw", "--json").document["hex"] == "ff00"
    for command in (["kv", "put", "new", "raw"], ["log", "append", "lines", "aa"]):
        wrong = lattice(*command, "xyz", "--in", "hex")
        assert (wrong.code, wrong.line()) == (2, "a hex value is pairs of hex digits, got 'xyz'")
    made = [row["name"] for row in lattice("store", "list", "--json").document]
    assert made == ["notes"], "a value that cannot be read makes no store"
    assert lattice("kv", "put", "notes", "raw", "1", "--in", "json").code == 2


@pytest.mark.usefixtures("notes")
def test_the_history_of_a_key(lattice: Any) -> None:
    rows = lattice("kv", "history", "notes", "title", "--json").document
    assert [row["value"] for row in rows] == ["Groceries", "Shopping"]
    assert len({row["author"] for row in rows}) == 1
    assert lattice("kv", "history", "notes", "title").out.count("\n") == 2


@pytest.mark.usefixtures("notes")
def test_conflicts_are_said_listed_and_resolved(lattice: Any, home: Path, tmp_path: Path) -> None:
    with datalattice.open(home) as anna, datalattice.open(tmp_path / "bert") as bert:
        ours = anna.store("notes", kind="kv").store
        theirs = bert.weaver.adopt(ours.id, ours.kind)
        theirs.ingest(envelopes_of(ours))
        bert.store(anna.store("notes").id)["tea"] = "bert"
        anna.store("notes")["tea"] = "anna"
        ours.ingest(envelopes_of(theirs))
    ran = lattice("kv", "get", "notes", "tea")
    assert "2 concurrent writes" in ran.err
    assert lattice("kv", "conflicts", "notes").out == "tea\n"
    rows = lattice("kv", "conflicts", "notes", "tea", "--json").document
    assert {row["value"] for row in rows} == {"anna", "bert"}
    assert lattice("kv", "list", "notes", "te").out.endswith("\tconflict\n")
    assert lattice("weave", "graph", "notes").out.count("⊙") >= 2
    lattice("kv", "put", "notes", "tea", "both")
    assert lattice("kv", "conflicts", "notes", "--json").document == []
    heads = [row["hash"] for row in rows]
    branch = lattice("weave", "branch", "notes", *heads, "--json").document
    assert [len(one["path"]) for one in branch["branches"]] == [1, 1]
    assert lattice("weave", "branch", "notes", *heads).out.startswith("common ancestor")


@pytest.mark.usefixtures("notes")
def test_a_watch_ends_after_its_time(lattice: Any) -> None:
    ran = lattice("kv", "watch", "notes", "--for", "50ms")
    assert (ran.code, ran.out) == (0, "")


# --- log ------------------------------------------------------------------------------------------


def test_logs_are_appended_to_and_read(lattice: Any) -> None:
    assert len(lattice("log", "append", "diary", "rain", "sun", "fog").out.split()) == 3
    assert lattice("log", "read", "diary").out == "rain\nsun\nfog\n"
    assert lattice("log", "tail", "diary", "-n", "2", "--json").document == [
        {"value": "sun"},
        {"value": "fog"},
    ]
    followed = lattice("log", "tail", "diary", "-n", "1", "-f", "--for", "50ms")
    assert (followed.code, followed.out) == (0, "fog\n")


def test_a_store_of_another_kind_is_an_error_that_names_both(lattice: Any) -> None:
    lattice("log", "append", "diary", "rain")
    ran = lattice("kv", "get", "diary", "x")
    assert ran.code == 2
    assert "core:logstore, not core:kvstore" in ran.line()
    assert lattice("kv", "get", "nothing", "x").code == 1
    assert lattice("log", "append", "diary/child", "x").code == 1


# --- weave ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("notes")
def test_history_lists_the_operations(lattice: Any) -> None:
    rows = lattice("weave", "history", "notes", "--json").document
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0]["operation"] == '(genesis "core:kvstore")'
    assert rows[3]["operation"] == '(data (put "title" "Groceries"))'
    assert rows[3]["deps"] == [rows[2]["hash"]]
    assert lattice("weave", "history", "notes", "-n", "2").out.count("\n") == 2


@pytest.mark.usefixtures("notes")
def test_inspect_shows_one_operation(lattice: Any) -> None:
    row = lattice("weave", "history", "notes", "--json").document[-1]
    found = lattice("weave", "inspect", "notes", row["hash"][:7], "--json").document
    assert (found["hash"], found["seq"], found["author"]) == (row["hash"], 5, row["author"])
    assert "operation  (data (put" in lattice("weave", "inspect", "notes", row["hash"]).out
    assert lattice("weave", "inspect", "notes", "xyz").code == 2
    assert lattice("weave", "inspect", "notes", "0").code == 2
    assert lattice("weave", "branch", "notes", row["hash"]).code == 2


@pytest.mark.usefixtures("notes")
def test_the_graph_draws_what_followed_on_what(lattice: Any) -> None:
    lines = lattice("weave", "graph", "notes").out.splitlines()
    assert len(lines) == 5
    assert [line.strip()[0] for line in lines] == ["⊙", "⊙", "⊙", "●", "⊙"]
    assert lines[3].endswith('(data (put "title" "Groceries"))')
    chained = lattice("weave", "graph", "notes", "--chains").out.splitlines()
    assert sum("⊙" in line for line in chained) == 1
    assert len(lattice("weave", "graph", "notes", "-n", "2", "--json").document) == 2


def test_a_store_of_a_kind_that_the_command_does_not_know_is_shown_as_bytes(
    lattice: Any, home: Path
) -> None:
    class Private(NullMachine):
        kind = "test:private"

    with datalattice.open(home) as node:
        node.store("mine", kind=Private).write(data=b"\xff\x00")
    assert lattice("store", "open", "mine", "--json").document["kind"] == "test:private"
    rows = lattice("weave", "history", "mine", "--json").document
    assert rows[-1]["operation"] == "(data ff00)"
    assert lattice("store", "fsck", "mine", "--level", "3").code == 0
    assert lattice("weave", "graph", "mine").code == 0
