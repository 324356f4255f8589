"""Database commands: what they print, what they refuse, what they leave as it was."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from datalattice.apps.kv import Database
from datalattice.cli import db as commands
from datalattice.client import edit, folder_of


@pytest.mark.usefixtures("owner")
def test_values_are_set_read_and_deleted(lattice: Any) -> None:
    assert lattice("db", "set", "d", "a", "one").out == ""
    assert lattice("db", "set", "d", "b", '{"x": [1]}', "--in", "json").code == 0
    assert lattice("db", "get", "d", "a").out == "one\n"
    assert lattice("db", "get", "d", "b", "--json").document == {
        "key": "b",
        "type": "value",
        "value": {"x": [1]},
        "ttl_ms": None,
    }
    assert lattice("db", "keys", "d").out == "a\nb\n"
    assert lattice("db", "keys", "d", "b").out == "b\n"
    assert lattice("db", "del", "d", "a", "zz").out == "1\n"
    assert lattice("db", "keys", "d").out == "b\n"
    assert lattice("db", "type", "d", "a").out == "none\n"
    assert lattice("db", "gc", "d").out == "0\n"
    assert lattice("db", "gc", "d", "--min-age", 0, "--json").document["forgotten"] == 1


@pytest.mark.usefixtures("owner")
def test_structures(lattice: Any) -> None:
    assert lattice("db", "hset", "d", "h", "f", "1", "g", "2").out == "2\n"
    assert lattice("db", "hget", "d", "h", "g").out == "2\n"
    assert lattice("db", "hdel", "d", "h", "g").out == "1\n"
    assert lattice("db", "get", "d", "h").out == "f\t1\n"
    assert lattice("db", "sadd", "d", "s", "x", "y", "x").out == "2\n"
    assert lattice("db", "srem", "d", "s", "y").out == "1\n"
    assert lattice("db", "get", "d", "s", "--json").document["value"] == ["x"]
    assert lattice("db", "zadd", "d", "z", "2.5", "m").out == "1\n"
    assert lattice("db", "zadd", "d", "z", "1", "n").out == "1\n"
    assert lattice("db", "get", "d", "z").out == "1.0\tn\n2.5\tm\n"
    assert lattice("db", "zrem", "d", "z", "n").out == "1\n"
    assert lattice("db", "push", "d", "l", "1", "2").out == "2\n"
    assert lattice("db", "push", "d", "l", "0", "--left").out == "3\n"
    assert lattice("db", "get", "d", "l").out == "0\n1\n2\n"
    assert lattice("db", "pop", "d", "l").out == "2\n"
    assert lattice("db", "pop", "d", "l", "--left", "--json").document["value"] == "0"
    assert lattice("db", "incr", "d", "c").out == "1\n"
    assert lattice("db", "incr", "d", "c", "--", "-5").out == "-4\n"
    assert lattice("db", "get", "d", "c").out == "-4\n"
    listed = lattice("db", "keys", "d", "--long").out
    for kind in ("hash", "set", "zset", "list", "counter"):
        assert kind in listed


@pytest.mark.usefixtures("owner")
def test_expiry(lattice: Any) -> None:
    lattice("db", "set", "d", "k", "v", "--ttl", "1h")
    left = lattice("db", "ttl", "d", "k", "--json").document["ttl_ms"]
    assert 3_500_000 < left <= 3_600_000
    assert lattice("db", "ttl", "d", "k").out in ("60m\n", "59.9m\n", "59.8m\n")
    assert lattice("db", "persist", "d", "k").out == "true\n"
    assert lattice("db", "ttl", "d", "k").out == "never\n"
    assert lattice("db", "ttl", "d", "k", "--json").document == {"key": "k", "ttl_ms": None}
    assert lattice("db", "keys", "d", "--long").out == "k\tvalue\tnever\n"
    assert lattice("db", "expire", "d", "k", "1h", "--json").document["done"]
    assert lattice("db", "expire", "d", "none", 5).out == "false\n"
    absent = lattice("db", "ttl", "d", "none")
    assert (absent.code, "has no key 'none'" in absent.line()) == (1, True)


def test_databases_and_owners(lattice: Any, owner: str) -> None:
    lattice("db", "set", "d", "k", "v")
    lattice("db", "set", "e", "k", "v")
    listed = lattice("db", "list", "--json").document
    assert [(one["owner"], one["database"], one["keys"]) for one in listed] == [
        (owner, "d", 1),
        (owner, "e", 1),
    ]
    assert owner[:16] in lattice("db", "list").out
    assert lattice("db", "get", "d", "k", "--owner", owner).out == "v\n"
    for arguments, words in (
        (["get", "d", "k", "-o", "00" * 32], "has no database 'd' here"),
        (["get", "nope", "k"], "there is no database 'nope' here"),
        (["get", "d", "nope"], "has no key 'nope'"),
        (["hget", "d", "k", "f"], "WRONGTYPE Operation HGET"),
        (["pop", "d", "none"], "has no elements"),
        (["hset", "d", "h", "f"], "a value after each field"),
        (["set", "d", "k" * 4097, "v"], "at most 4096 bytes"),
        (["set", "d", "k", "v", "--ttl", "0"], "a key expires after 1ms"),
        (["watch", "d", "--count", "0"], "1 or more"),
    ):
        ran = lattice("db", *arguments)
        assert ran.code == (1 if words.startswith(("has no", "there is no")) else 2)
        assert words in ran.line()


@pytest.mark.usefixtures("owner")
def test_watch_tells_what_others_write(lattice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lattice("db", "set", "d", "k", "v")
    assert lattice("db", "watch", "d", "--for", 0).out == ""

    def write(_pause_s: float) -> None:
        edit(
            folder_of(),
            lambda cursor, keys: Database.at(cursor, keys.public_key, "d").update({"k": 1, "n": 2}),
        )

    # Another process writes while the command waits for its next look.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=write)
    monkeypatch.setattr(commands, "time", clock)
    ran = lattice("db", "watch", "d", "--count", 2, "--for", 20)
    assert ran.out == "k\tvalue\t1\nn\tvalue\t2\n"


@pytest.mark.usefixtures("owner")
def test_numbers_below_zero_and_what_json_has_no_number_for(lattice: Any) -> None:
    assert lattice("db", "incr", "d", "n", "-5").out == "-5\n"
    assert lattice("db", "zadd", "d", "z", "-1.5", "low").out == "1\n"
    assert lattice("db", "zadd", "d", "z", "-inf", "none").code == 0
    held = lattice("db", "get", "d", "z", "--json")
    assert "Infinity," not in held.out.replace('"-Infinity"', "")
    assert [one["score"] for one in held.document["value"]] == ["-Infinity", -1.5]
    ran = lattice("db", "set", "d", "v", "-5", "--in", "json")
    assert (ran.code, "No such option: -5; a value that begins with -" in ran.line()) == (2, True)
    assert lattice("db", "set", "d", "v", "--in", "json", "--", "-5").code == 0
    assert lattice("db", "get", "d", "v", "--json").document["value"] == -5
    assert "integer" in lattice("db", "incr", "d", "n", "--nope").line()


@pytest.mark.usefixtures("owner")
def test_null_is_a_value_and_no_expiry_is_null(lattice: Any) -> None:
    assert lattice("db", "set", "d", "k", "null", "--in", "json").code == 0
    assert lattice("db", "get", "d", "k").out == "nil\n"
    assert lattice("db", "keys", "d", "--json").document == [
        {"key": "k", "type": "value", "ttl_ms": None}
    ]
