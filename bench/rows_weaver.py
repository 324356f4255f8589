"""Rows of the benchmark that measure Weaver stores, each beside its limit or a peer.

- submit: one small operation that is signed, witnessed, projected and on disk when the call
  returns. Beside it a single-row commit of SQLite (WAL, synchronous=FULL) whose log has been
  checkpointed and is overwritten, as in a database that has run for a while, and a commit of LMDB
  alone, which waits for the disk twice.
- ingest: signed operations of 50 foreign authors, checked and durable. Beside it the strict
  verification of the same signatures and nothing else, on as many threads.
- project: operations a second when the state of a key-value store is rebuilt from its log.
- reopen: the time until a store with many operations answers its first query in a new process.
- bytes: bytes of the whole folder for each byte of an envelope, payloads of 100 bytes, 50 authors.
- get: one key of a key-value store, beside SQLite.
- spark-read: intentions that one Spark task gives as Arrow batches of key columns and payload, with
  the signatures of their authors verified and without, and the keys of the state in it.
- history: puts of 100 random bytes to 10,000 keys with all of their history, beside automerge, loro
  and pycrdt (garbage collection off), each in a process of its own: time, memory without copies of
  files, and the room on disk. Only the Weaver store signs, and is on disk along the way.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import Row, installed, row
from weaver_pair import memory

from datalattice.clock import Hlc, SystemClock
from datalattice.crypto import KeyPair, SystemEntropy, verify_strict
from datalattice.engine import GroupCommit, LmdbEngine, open_engine
from datalattice.weaver.intention import ZERO_HASH, Intention, SignedIntention
from datalattice.weaver.kv import GetRequest, KvPayload, Operation, PutOp, PutRequest
from datalattice.weaver.machine import Proposal
from datalattice.weaver.store import WeaverStore
from datalattice.weaver.stores import STORE_TABLES, Stores
from datalattice.weaver.systemops import UniversalOp

KEY = KeyPair(bytes(range(32)))
PAYLOAD = b"x" * 100
AUTHORS = 50
TOGETHER = 64
SQLITE_LOG_PAGES = 1_200  # SQLite begins its log anew at 1,000
LEAST_FILE_BYTES = 1 << 20
SLOW_SYNC_S = 0.002  # what a sync takes on many disks
HISTORY_KEYS = 10_000
HISTORY_SEED = 15
HISTORY_PEERS = ("automerge", "loro", "pycrdt")


def rows(quick: bool) -> Iterator[Row]:
    """Yield the rows."""
    turns = 3 if quick else 7
    yield from _submit(turns, 100 if quick else 400)
    for threads in (1, 2):
        yield _ingest(threads, turns, 2_000 if quick else 10_000)
    yield _project(5_000 if quick else 50_000)
    yield _reopen(20_000 if quick else 1_000_000)
    yield _bytes(10_000 if quick else 50_000)
    yield _get(turns, 5_000 if quick else 50_000)
    if installed("pyspark") is not None:
        yield from _spark_read(10_000 if quick else 100_000)
    yield from _history(10_000 if quick else 100_000)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def _stores(folder: Path, *, durable: bool = True) -> Iterator[tuple[Stores, GroupCommit]]:
    engine = open_engine(folder, STORE_TABLES, durable=durable)
    commits = GroupCommit(engine)
    stores = Stores(commits, KEY, SystemClock(), SystemEntropy())
    try:
        yield stores, commits
    finally:
        stores.close_all()
        engine.sync()
        engine.close()


def _rate(count: int, work: Callable[[int], object]) -> float:
    begun = time.perf_counter()
    for i in range(count):
        work(i)
    return count / (time.perf_counter() - begun)


def _rate_together(count: int, threads: int, work: Callable[[int], object]) -> float:
    """Return calls a second of threads that share `count` calls."""

    def run(first: int) -> None:
        for i in range(first, count, threads):
            work(i)

    running = [threading.Thread(target=run, args=(first,)) for first in range(threads)]
    begun = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return count / (time.perf_counter() - begun)


# --- writing ------------------------------------------------------------------------------------


def _submit(turns: int, count: int) -> Iterator[Row]:
    with _folder() as folder, _stores(folder / "weaver") as (stores, _):
        store = stores.create("core:nullstore")
        sqlite_put, lmdb_put = _sqlite_commits(folder), _lmdb_commits(folder / "lmdb")
        signed_put = _signed_writes(folder)
        one: list[float] = []
        many: list[float] = []
        sqlite: list[float] = []
        lmdb: list[float] = []
        least: list[float] = []
        for _ in range(turns):  # in turns, so that a slow moment of the disk meets all of them
            one.append(_rate(count, lambda _: store.submit(PAYLOAD)))
            sqlite.append(_rate(count, sqlite_put))
            lmdb.append(_rate(count, lmdb_put))
            least.append(_rate(count, signed_put))
            many.append(_rate_together(8 * count, TOGETHER, lambda _: store.submit(PAYLOAD)))
        rates = [statistics.median(each) for each in (one, sqlite, lmdb, many, least)]
    peers = {
        "SQLite, a row each, log written over": rates[1],
        "LMDB, a row each": rates[2],
        "a signature, a write and its sync": rates[4],
    }
    yield row("weaver-submit-durable", rates[0], "ops/s", peers)
    yield row(f"weaver-submit-{TOGETHER}-threads", rates[3], "ops/s", {"one thread": rates[0]})
    yield _submit_slowly(turns, count)


def _submit_slowly(turns: int, count: int) -> Row:
    """Return the row of many writers on a disk that takes `SLOW_SYNC_S` longer for each sync.

    What writers share is the wait for the disk. On a fast one, signatures are most of the rest.
    """
    ours: list[float] = []
    alone: list[float] = []
    with _folder() as folder, _stores(folder) as (stores, _), _slow_disk():
        store = stores.create("core:nullstore")
        for _ in range(turns):
            alone.append(_rate(count, lambda _: store.submit(PAYLOAD)))
            ours.append(_rate_together(8 * count, TOGETHER, lambda _: store.submit(PAYLOAD)))
    name = f"weaver-submit-{TOGETHER}-threads-slow-disk"
    return row(name, statistics.median(ours), "ops/s", {"one thread": statistics.median(alone)})


@contextmanager
def _slow_disk() -> Iterator[None]:
    fast = os.fdatasync

    def slow(fd: Any) -> None:
        time.sleep(SLOW_SYNC_S)
        fast(fd)

    os.fdatasync = slow
    try:
        yield
    finally:
        os.fdatasync = fast


def _sqlite_commits(folder: Path) -> Callable[[int], object]:
    database = sqlite3.connect(folder / "rows.db", isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=OFF")
    database.execute("CREATE TABLE ops (id INTEGER PRIMARY KEY, op BLOB NOT NULL)")

    def put(_: int) -> None:
        database.execute("INSERT INTO ops (op) VALUES (?)", (PAYLOAD,))

    # A sync of a growing log takes longer, so it is filled first, with syncs off. FULL before the
    # checkpoint, which has the filled log on the disk before it is overwritten.
    _rate(SQLITE_LOG_PAGES, put)
    database.execute("PRAGMA synchronous=FULL")
    database.execute("PRAGMA wal_checkpoint(RESTART)")
    return put


def _lmdb_commits(folder: Path) -> Callable[[int], object]:
    engine = LmdbEngine(folder, ("ops",))

    def put(i: int) -> None:
        with engine.write() as txn:
            txn.put("ops", i.to_bytes(8, "big"), PAYLOAD)

    return put


def _signed_writes(folder: Path) -> Callable[[int], object]:
    """Return what no durable log of signed operations can leave out, and nothing else."""
    file = os.open(folder / "writes", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, bytes(LEAST_FILE_BYTES), 0)
    os.fsync(file)

    def put(i: int) -> None:
        record = KEY.sign(i.to_bytes(32, "big")) + PAYLOAD
        os.pwrite(file, record, i * len(record) % LEAST_FILE_BYTES)
        os.fdatasync(file)

    return put


def _foreign(store: WeaverStore, count: int, authors: int, seed: int) -> list[SignedIntention]:
    return list(itertools.islice(written(store, authors, seed), count))


def written(store: WeaverStore, authors: int, seed: int) -> Iterator[SignedIntention]:
    """Yield operations of foreign authors in turn, each after its author's last."""
    keys = [KeyPair(bytes([seed, i]) * 16) for i in range(authors)]
    last = [ZERO_HASH] * authors
    payload = UniversalOp(app_data=PAYLOAD).encode()
    wall = time.time_ns() // 1_000_000
    for i in itertools.count():
        key = keys[i % authors]
        intention = Intention(
            key.public_key, Hlc(wall, i), store.id, last[i % authors], (), payload
        )
        signed = intention.sign(key)
        last[i % authors] = signed.hash
        yield signed


def _batches(items: Sequence[bytes], size: int = 500) -> list[Sequence[bytes]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _ingest(threads: int, turns: int, count: int) -> Row:
    ours: list[float] = []
    alone: list[float] = []
    with _folder() as folder, _stores(folder) as (stores, _):
        for turn in range(turns):
            store = stores.create("core:nullstore")
            # Each thread has authors of its own, as each connection of a node does.
            lanes = [
                _foreign(store, count // threads, AUTHORS // threads, 10 * turn + lane + 1)
                for lane in range(threads)
            ]
            envelopes = [_batches([signed.encode() for signed in lane]) for lane in lanes]

            def take(lane: int, store: WeaverStore = store, parts: Any = envelopes) -> None:
                for batch in parts[lane]:
                    store.ingest(batch)

            def verify(lane: int, parts: Any = lanes) -> None:
                for signed in parts[lane]:
                    assert verify_strict(signed.intention.author, signed.signature, signed.hash)

            ours.append(count / threads * _rate_together(threads, threads, take))
            alone.append(count / threads * _rate_together(threads, threads, verify))
            with store.read() as view:
                assert view.last_seq() >= count // threads * threads
    name = "weaver-ingest" if threads == 1 else f"weaver-ingest-{threads}-threads"
    peers = {"verification alone": statistics.median(alone)}
    return row(name, statistics.median(ours), "ops/s", peers)


def _put(i: int, keys: int) -> bytes:
    """Return the payload of a put, in its envelope."""
    operation = Operation(put=PutOp(key=_key(i, keys), value=PAYLOAD))
    return UniversalOp(app_data=KvPayload(ops=(operation,)).encode()).encode()


def _key(i: int, keys: int) -> bytes:
    return b"user/%010d" % (i * 2_654_435_761 % 2**32 % keys)


def _fill(commits: GroupCommit, count: int, write: Callable[[Any, int], object]) -> None:
    """Call `write` with a transaction and each number below `count`, 2,000 in a transaction."""
    for first in range(0, count, 2_000):

        def work(txn: Any, first: int = first) -> None:
            for i in range(first, min(first + 2_000, count)):
                write(txn, i)

        commits.run(work)


# --- reading ------------------------------------------------------------------------------------


def _project(count: int) -> Row:
    # Not durable: filling waits for no disk, and what is measured only reads the log.
    with _folder() as folder, _stores(folder, durable=False) as (stores, commits):
        store = stores.create("core:kvstore")
        _fill(commits, count, lambda txn, i: store.write_in(txn, Proposal(_put(i, count))))
        begun = time.perf_counter()
        store.rebuild()
        seconds = time.perf_counter() - begun
        assert store.status().applied >= count
    return row("weaver-project", count / seconds, "ops/s", {})


def _spark_read(count: int) -> Iterator[Row]:
    from datalattice.pipeline.weaver.options import parse_options
    from datalattice.pipeline.weaver.source import WeaverReader
    from datalattice.testing.spark_kit import struct_of

    with _folder() as folder:
        with _stores(folder / "weaver", durable=False) as (stores, commits):
            store = stores.create("core:kvstore", "notes")
            last: dict[bytes, bytes] = {}

            def put(txn: Any, i: int) -> None:
                key = _key(i, HISTORY_KEYS)
                # Each put has seen the last one of its key, so a key of the state has one value.
                seen = [last[key]] if key in last else []
                last[key] = store.write_in(txn, Proposal(_put(i, HISTORY_KEYS), seen))

            _fill(commits, count, put)
        for name, more in (
            ("intentions", {"columns": "seq,hash,author,time,payload"}),
            ("state", {"table": "state"}),
        ):
            rates = []
            for verify in ("true", "false"):
                given = {"store": str(folder), "name": "notes", "verify": verify, **more}
                options = parse_options(given)
                reader = WeaverReader(options, struct_of(options.types))
                begun = time.perf_counter()
                parts = [batch for task in reader.partitions() for batch in reader.read(task)]
                rates.append(count / (time.perf_counter() - begun))
                assert sum(part.num_rows for part in parts) >= len(last)
            peers = {"unverified": rates[1]}
            yield row(f"weaver-spark-read-{name}", rates[0], "records/s", peers)


def _reopen(count: int) -> Row:
    with _folder() as folder:
        with _stores(folder, durable=False) as (stores, commits):
            store = stores.create("core:kvstore")
            _fill(
                commits, count, lambda txn, i: store.write_in(txn, Proposal(_put(i, HISTORY_KEYS)))
            )
            id = store.id
        begun = time.perf_counter()
        with _stores(folder, durable=False) as (stores, _):
            opened = stores.open(id)
            answer: Any = opened.query("Get", GetRequest(key=_key(7, HISTORY_KEYS)))
            seconds = time.perf_counter() - begun
            assert answer.value == PAYLOAD
            assert opened.status().intentions >= count
    shown = f"{count // 1_000_000}m" if count >= 1_000_000 else f"{count // 1_000}k"
    return row(f"weaver-reopen-{shown}", seconds, "s", {})


def _bytes(count: int) -> Row:
    with _folder() as folder:
        with _stores(folder, durable=False) as (stores, _):
            store = stores.create("core:nullstore")
            envelopes = [each.encode() for each in _foreign(store, count, AUTHORS, 1)]
            for batch in _batches(envelopes):
                store.ingest(batch)
        room = _room(folder)
    return row("weaver-bytes", room / sum(map(len, envelopes)), "B/B", {})


def _room(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file()]
    # Blocks, which are always counted in 512 bytes: the files of LMDB have holes.
    return sum(path.stat().st_blocks * 512 for path in files)


def _get(turns: int, count: int) -> Row:
    ours: list[float] = []
    peer: list[float] = []
    with _folder() as folder, _stores(folder / "weaver", durable=False) as (stores, commits):
        store = stores.create("core:kvstore")
        _fill(commits, count, lambda txn, i: store.write_in(txn, Proposal(_put(i, count))))
        database = sqlite3.connect(folder / "kv.db", isolation_level=None)
        database.execute("CREATE TABLE kv (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID")
        items = {_key(i, count): PAYLOAD for i in range(count)}
        database.execute("BEGIN")
        database.executemany("INSERT INTO kv VALUES (?, ?)", items.items())
        database.execute("COMMIT")

        def weaver_get(i: int) -> None:
            answer: Any = store.query("Get", GetRequest(key=_key(i, count)))
            assert answer.value == PAYLOAD

        def sqlite_get(i: int) -> None:
            key = (_key(i, count),)
            assert database.execute("SELECT v FROM kv WHERE k = ?", key).fetchone()[0] == PAYLOAD

        for _ in range(turns):
            ours.append(_rate(count, weaver_get))
            peer.append(_rate(count, sqlite_get))
        database.close()
    peers = {"SQLite": statistics.median(peer)}
    return row("weaver-kv-get", statistics.median(ours), "keys/s", peers)


# --- history beside other replicated data -------------------------------------------------------


def _history(count: int) -> Iterator[Row]:
    found = {}
    for name in ("weaver", *(name for name in HISTORY_PEERS if installed(name) is not None)):
        # A process each: memory that one has freed would be used by the next without being counted.
        command = [sys.executable, __file__, name, str(count)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, check=True, capture_output=True, env=environment)
        found[name] = json.loads(done.stdout)
    puts = {name: count / one["seconds"] for name, one in found.items()}
    yield row("weaver-history-puts", puts.pop("weaver"), "puts/s", puts)
    for name in ("memory", "room"):
        each = {kind: one[name] / count for kind, one in found.items()}
        yield row(f"weaver-history-{name}", each.pop("weaver"), "B/put", each)


def _values(count: int) -> Iterator[tuple[int, bytes]]:
    chosen = random.Random(HISTORY_SEED)
    for i in range(count):
        yield i, chosen.randbytes(len(PAYLOAD))


def _weaver_history(count: int, folder: Path) -> int:
    with _stores(folder, durable=False) as (stores, _):
        store = stores.create("core:kvstore")
        for i, value in _values(count):
            store.execute("Put", PutRequest(key=_key(i, HISTORY_KEYS), value=value))
        return memory()


def _automerge_history(count: int, folder: Path) -> int:
    core: Any = importlib.import_module("automerge.core")
    document = core.Document()
    for i, value in _values(count):
        with document.transaction() as change:
            key = _key(i, HISTORY_KEYS).decode()
            change.put(core.ROOT, key, core.ScalarType.Bytes, value)
    (folder / "document").write_bytes(document.save())
    return memory()


def _loro_history(count: int, folder: Path) -> int:
    loro: Any = importlib.import_module("loro")
    document = loro.LoroDoc()
    values = document.get_map("kv")
    for i, value in _values(count):
        values.insert(_key(i, HISTORY_KEYS).decode(), value)
        document.commit()
    (folder / "document").write_bytes(document.export(loro.ExportMode.Snapshot()))
    return memory()


def _pycrdt_history(count: int, folder: Path) -> int:
    pycrdt: Any = importlib.import_module("pycrdt")
    document = pycrdt.Doc(skip_gc=True)  # else it forgets values that were replaced
    document["kv"] = values = pycrdt.Map()
    for i, value in _values(count):
        values[_key(i, HISTORY_KEYS).decode()] = value
    (folder / "document").write_bytes(document.get_update())
    return memory()


HISTORIES: dict[str, Callable[[int, Path], int]] = {
    "weaver": _weaver_history,
    "automerge": _automerge_history,
    "loro": _loro_history,
    "pycrdt": _pycrdt_history,
}


def main() -> None:
    """Measure one system of the history rows in this process."""
    name, count = sys.argv[1], int(sys.argv[2])
    installed(name)  # its library is no part of the memory that the puts take
    with _folder() as folder:
        before = memory()
        begun = time.perf_counter()
        grown = HISTORIES[name](count, folder) - before
        seconds = time.perf_counter() - begun
        print(json.dumps({"seconds": seconds, "memory": grown, "room": _room(folder)}))


if __name__ == "__main__":
    main()
