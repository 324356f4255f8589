"""Mistakes: what users get wrong ends in one line that names it, and in an exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Lattice

from datalattice.cli import missing_package

TABLE: list[tuple[str, str]] = [
    # a command and its arguments
    ("nothing", "No such command 'nothing'"),
    ("--bogus", "No such option: --bogus"),
    ("db gett d", "Did you mean 'get'"),
    ("db get d", "Missing argument 'key'"),
    ("db get d a b c", r"unexpected extra argument\(s\) \(b c\)"),
    ("db get d a --bogus", "No such option: --bogus"),
    ("db set d a", "Missing argument 'value'"),
    ("db set d a 1 -o own", "No such option: -o; .* writes use the folder's own key"),
    ("db expire d a 0", "a key expires after 1ms or more, such as 90s; got '0'"),
    ("db set d a 1 --ttl 0.4ms", "a key expires after 1ms or more, such as 90s; got '0.4ms'"),
    ("db expire d a -5", "No such option: -5; a value that begins with - comes last, after --"),
    ("db incr d c x", "'amount': Input should be a valid integer"),
    ("checkout HEAD", "Missing option '--into'"),
    # folders
    ("db get d a --dir {none}", "none is not a node's folder: it has no store; name another"),
    ("db get d a --dir {file}", "file is not a folder; name a node's folder"),
    ("db get d a --dir {photos}", "photos is not a node's folder: it has no store"),
    ("db set d a 1 --dir {badkey}", "not a key file: expected ed25519-seed: and 64 hex digits"),
    ("key new", "there is a key at .*identity.key already; it was not replaced"),
    ("key new a/b", "a key's name is up to 64 letters.*; got 'a/b'"),
    ("key show other", "no key at .*other.key"),
    ("init {file}", "file is not a folder"),
    # databases
    ("db get none a", "there is no database 'none' here; `lattice db list` lists them"),
    ("db get d none", "database d has no key 'none'; `lattice db keys d` lists them"),
    (
        "db get d a --owner zz",
        "an owner is a public key .*, a local name, a DID or 'own'; got 'zz'",
    ),
    ("db set d a 1 --ttl 0s", "a key expires after 1ms or more, such as 90s; got .0s."),
    ("db set d a 1 --ttl soon", "a duration is a number and .*; got 'soon'"),
    ("db get d a --as xml", "--as is text, table, json or lines, got 'xml'"),
    ("db set d a {{bad --in json", "not a JSON value"),
    ("db set d a 1 --in xml", "--in is text, json, hex or lines, got 'xml'"),
    ("db set d \udcff 1", r"a key is not Unicode text: '\\udcff'"),
    ("db set d {long} 1", "a key has 5000 bytes of UTF-8; at most 4096 bytes"),
    ("db incr d a", "WRONGTYPE Operation INCRBY against a key holding value"),
    ("db incr d c 99999999999999999999", "not an integer of at most 64 bits: 9999"),
    ("db zadd d z nan m", "`score` is nan, which has no order"),
    ("db hset d h field", "hset takes a value after each field"),
    ("db watch d --count 0", "--count is 1 or more"),
    # queues
    ("queue peek none", "there is no topic 'none' here; `lattice queue list` lists them"),
    ("queue peek q 99", "there is no record at offset 99; offsets here: 0 to 0"),
    ("queue peek q seven", "'offset': Input should be a valid integer"),
    ("queue create q --partitions 3", "topic q exists; its number of partitions is 1, set once"),
    ("queue truncate q -- -1", "START is the offset of the first record to keep, got -1"),
    ("queue offer q x --headers {{", "--headers is a JSON object: not JSON"),
    # drives
    ("fs ls none:/", "there is no drive 'none' here; `lattice fs drives` lists them"),
    ("fs ls home", "a path in a drive is DRIVE:PATH, got 'home'"),
    ("fs ls home:/a//b", "a name in the middle of '/a//b' is empty"),
    ("fs get home:/none {none}", "there is nothing at /none"),
    ("fs put {none} home:/", "none does not exist"),
    ("fs put {photos} home:/", "photos is a directory; copy it with --recursive"),
    ("fs rm home:/", "the root of a drive cannot be written over, deleted or moved"),
    ("fs put {file} home:/{long}", "a name has at most 4096 bytes of UTF-8, got 5000"),
    # roots, times, stores
    ("get :none", "there is nothing at :none; the index there has: "),
    ("get :kv --layout yaml", "--layout is json, plain, text, cells; got 'yaml'"),
    ("get :kv --output {none}/x", "none/x: No such file or directory"),
    ("put :data --value {{", "not JSON"),
    ("history --since never", "a time is ISO 8601 such as .*, got 'never'"),
    ("history --count -1", "'--count' / '-n': Input should be greater than or equal to 0"),
    ("show zz", "there is no pin 'zz'; name one, HEAD, HEAD~1, @TIME, or a hash"),
    ("pin add a~b", "a pin cannot have the name 'a~b'"),
    ("disk gc --grace -1", "a duration is a number and ms, s, m, h, d or w, such as 10m; got '-1'"),
    ("disk import {file} --merge", "file: byte 1: the archive ends in the middle of the head"),
    ("pin remove none", "there is no pin 'none'"),
    ("etch info {photos}", "photos: there is no such file"),
    ("etch info {file}", "file: not an Etch file"),
    ("forks show zz", "no fork 'zz' is open here; `lattice forks list` lists the open ones"),
    # nodes
    ("node start --port 99999", "a port is a number up to 65535, got 99999"),
    ("node start --port abc", "'--port' / '-p': Input should be a valid integer"),
    ("node start --peer bad", "an address is host:port or .*; got 'bad'"),
    ("node start --iroh on", "iroh is off, direct or relay, got 'on'"),
    ("peer invite notes --address bad", "an address is host:port or .*; got 'tls://bad'"),
    ("node start --log-level loud", "log_level is debug, info, warning or error, got 'loud'"),
    ("node start --config {none}", "there is no settings file .*none"),
    ("node config --config {toml}", "broken.toml is not TOML"),
    ("node config --config {latin}", "latin.toml is not UTF-8 text"),
    ("node config --config {setting}", "setting.toml line 1: there is no setting 'lisen'"),
    ("node config --config {size}", "owner_bytes is a number of bytes, .*, got 'many'"),
    ("node status zz", "an address is host:port or .*; got 'zz'"),
    ("hosting limit zz 1", "an owner is a public key .*; got 'zz'"),
    ("forget zz", "an owner is a public key .*; got 'zz'"),
]


@pytest.fixture
def places(lattice: Lattice, tmp_path: Path) -> dict[str, str]:
    """Make a node's folder and all that the mistakes are about."""
    for words in ("key new", "db set d a 1", "queue offer q 1", "fs mkdir -p home:/x"):
        assert lattice(*words.split()).code == 0
    assert lattice("key", "new", "--dir", tmp_path / "badkey").code == 0
    (tmp_path / "badkey" / "identity.key").write_bytes(b"short")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x")
    files = {
        "file": b"x",
        "broken.toml": b"listen = [[",
        "latin.toml": b"\xff\xfe",
        "setting.toml": b"lisen = 1",
        "size.toml": b'[hosting]\nowner_bytes = "many"',
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    names = {"none": "none", "photos": "photos", "badkey": "badkey", "file": "file"}
    names |= {"toml": "broken.toml", "latin": "latin.toml"}
    names |= {"setting": "setting.toml", "size": "size.toml"}
    return {key: str(tmp_path / name) for key, name in names.items()} | {"long": "n" * 5_000}


def test_every_mistake_is_one_line_that_names_it_and_no_success(
    lattice: Lattice, places: dict[str, str]
) -> None:
    wrong: list[str] = []
    for words, said in TABLE:
        ran = lattice(*[word.format(**places) for word in words.split(" ")])
        line = ran.line() if ran.err.count("\n") == 1 else ran.err
        if ran.code not in (1, 2) or ran.err.count("\n") != 1 or not re.search(said, line):
            wrong.append(f"{words!r}: {ran.code}: {ran.err!r}")
    assert not wrong, "\n".join(wrong)
    assert len(TABLE) >= 50


def test_a_store_that_another_process_writes_to_is_named(
    lattice: Lattice, places: dict[str, str], tmp_path: Path
) -> None:
    assert places
    code = (
        "import fcntl, sys; held = open(sys.argv[1]); fcntl.flock(held, fcntl.LOCK_EX); "
        "print('held', flush=True); input()"
    )
    lock = tmp_path / "home" / "store" / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        ran = lattice("disk", "gc")
        assert ran.code == 75
        assert "another process writes to this store" in ran.line()
        holder.communicate(b"\n")


# --- packages that are not installed --------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("pyspark.sql", "this needs pyspark: pip install 'datalattice[spark]'"),
        ("pyspark", "this needs pyspark: pip install 'datalattice[spark]'"),
        ("zeroconf", "this needs zeroconf: pip install 'datalattice[mdns]'"),
        ("datalattice.nothing", None),
    ],
)
def test_a_missing_package_names_the_extra_that_brings_it(module: str, said: str | None) -> None:
    assert missing_package(ModuleNotFoundError(module, name=module)) == said


def test_a_command_that_lacks_a_package_says_one_line(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Callable[[], None]:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.setattr("datalattice.cli.main.built", fail)
    ran = lattice("key", "list")
    assert ran.code == 1
    assert ran.line() == "this needs pyspark: pip install 'datalattice[spark]'"
