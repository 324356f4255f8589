"""Engine kit: the rules for every engine, as one call for any implementation.

Length: one contract, of transactions, sections and group commit.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from datalattice.engine import (
    TABLE_KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    Engine,
    GroupCommit,
    GroupTxn,
    Snapshot,
    WriteTxn,
    section,
)
from datalattice.errors import StoreClosed, StoreFull, UsageError

KIT_TABLES = ("one", "two")
"""The tables of an engine under test."""


def check_engine(make: Callable[[], Engine]) -> None:
    """Assert that engines keep the protocol. `make` returns a new, empty engine with `KIT_TABLES`.

    Raises: AssertionError: it does not; the text says which rule.
    """
    for rule in (  # a new engine for each rule: none depends on another
        _reads_what_was_written,
        _orders_keys_as_unsigned_bytes,
        _takes_keys_of_any_length,
        _scans_ranges_both_ways,
        _rolls_back_a_failed_transaction,
        _keeps_a_snapshot_unchanged,
        _numbers_its_commits,
        _reads_its_own_writes,
        _scans_ahead_of_its_own_writes,
        _refuses_bad_arguments,
        _ends_transactions,
        _lets_one_thread_write_at_a_time,
        _separates_sections,
        _rolls_back_a_piece_alone,
        _calls_back_after_the_commit,
        _refuses_run_within_work,
        _shares_commits_between_threads,
        _shares_a_call_between_threads,
        _gives_a_failed_commit_to_all,
    ):
        engine = make()
        try:
            rule(engine)
        finally:
            engine.close()
    _refuses_use_after_close(make())  # last: the engine is closed by the rule


def _fill(engine: Engine, *keys: bytes) -> None:
    with engine.write() as txn:
        txn.put_many("one", [(key, b"v" + key) for key in keys])


def _keys(engine: Engine, table: str = "one") -> list[bytes]:
    with engine.read() as txn:
        return [key for key, _ in txn.scan(table)]


def _refused(call: Callable[[], object], error: type[Exception] = UsageError) -> bool:
    try:
        call()
    except (error, TypeError):  # a compiled engine refuses a wrong type by itself
        return True
    return False


def _reads_what_was_written(engine: Engine) -> None:
    assert engine.tables == KIT_TABLES, "tables are named in order"
    _fill(engine, b"a", b"b")  # a second table shows that tables are apart
    with engine.write() as txn:
        txn.put("one", b"b", b"")
        txn.put("two", b"a", b"other")
        assert txn.delete("one", b"a"), "delete tells that the key was there"
        assert not txn.delete("one", b"zz"), "delete tells that the key was not there"
    with engine.read() as view:
        assert view.get("one", b"a") is None, "a deleted key is gone"
        assert view.get("one", b"b") == b"", "an empty value is a value"
        assert view.get_many("two", [b"x", b"a", b"x"]) == [None, b"other", None], "in order"
        get = view.getter("two")
        assert (get(b"x"), get(b"a")) == (None, b"other"), "getter gets"
        assert (view.count("one"), view.count("two")) == (1, 1), "keys are counted"
    engine.sync()


def _orders_keys_as_unsigned_bytes(engine: Engine) -> None:
    # Unsigned bytes, and a prefix before its extensions.
    keys = [b"\xff", b"\x00", b"a", b"ab", b"\x7f", b"\x80", b"a\x00"]
    _fill(engine, *keys)
    assert _keys(engine) == sorted(keys), "a prefix comes first, bytes are unsigned"


def _takes_keys_of_any_length(engine: Engine) -> None:
    # Around LMDB's own limit, and the greatest allowed.
    lengths = (0, 1, 509, 510, 511, 512, 1_012, 1_013, 65_536, TABLE_KEY_BYTES_MAX)
    keys = [head * length for head in (b"a", b"b", b"\xff") for length in lengths if length]
    keys += [b"", b"a" * 510 + b"\0", b"a" * 510 + b"\0\0", b"a" * 509 + b"b", b"a" * 600 + b"b"]
    keys.sort()
    _fill(engine, *keys[::-1])
    _fill(engine, *keys[::3])  # a second time: keys that are there are replaced
    assert _keys(engine) == keys, "long keys and the empty one stand in order"
    with engine.read() as view:
        get = view.getter("one")
        for i, key in enumerate(keys):
            assert view.get("one", key) == get(key) == b"v" + key, "each is found"
            assert [k for k, _ in view.scan("one", key)] == keys[i:], "a scan starts there"
            assert [k for k, _ in view.scan("one", b"", key, reverse=True)] == keys[:i][::-1], (
                "and ends there"
            )
            assert view.get("two", key) is None, "each table has its own"
        assert view.get_many("one", keys) == [b"v" + key for key in keys], "many at once"
        assert view.get("one", b"a" * 700) is None, "others are not"
        assert view.count("one") == len(keys), "they are counted"
    with engine.write() as txn:
        assert [k for k, _ in txn.scan("one")] == keys, "the writer sees the same order"
        assert [k for k, _ in txn.scan("one", reverse=True)] == keys[::-1], "in reverse"
        for key in keys[::2]:  # every second one: groups of long keys lose some members
            assert txn.delete("one", key), "each can be deleted"
            assert not txn.delete("one", key), "once"
        assert txn.count("one") == len(keys) // 2, "and is no longer counted"
        assert txn.delete_range("one", b"a" * 511) > 0, "in ranges, too"
    rest = [key for key in keys[1::2] if key < b"a" * 511]
    assert _keys(engine) == rest, "and the others stay"


def _scans_ranges_both_ways(engine: Engine) -> None:
    _fill(engine, b"b", b"d", b"f")
    with engine.read() as view:
        # Ranges that begin or end between keys, or are empty.
        cases = [(b"", None), (b"b", b"f"), (b"c", b"e"), (b"e", b"c"), (b"g", None), (b"", b"b")]
        for start, end in cases:
            wanted = [k for k in (b"b", b"d", b"f") if k >= start and (end is None or k < end)]
            found = [key for key, _ in view.scan("one", start, end)]
            assert found == wanted, f"scan {start!r} to {end!r}"
            back = [key for key, _ in view.scan("one", start, end, reverse=True)]
            assert back == wanted[::-1], f"scan back {start!r} to {end!r}"
        assert list(view.scan("two")) == [], "an empty table yields nothing"


def _rolls_back_a_failed_transaction(engine: Engine) -> None:
    _fill(engine, b"a")

    def fail() -> None:
        with engine.write() as txn:
            txn.put("one", b"b", b"")
            txn.delete_range("one")  # both kinds of change are rolled back
            raise KeyError(b"b")

    assert _refused(fail, KeyError), "the exception comes through"
    assert _keys(engine) == [b"a"], "nothing of a failed transaction is kept"


def _keeps_a_snapshot_unchanged(engine: Engine) -> None:
    _fill(engine, b"a", b"b", b"c")
    view = engine.read()
    seen = view.scan("one")
    assert next(seen)[0] == b"a", "the scan begins"
    with engine.write() as txn:
        txn.delete("one", b"b")
        txn.put("one", b"bb", b"")
    assert [key for key, _ in seen] == [b"b", b"c"], "a scan keeps its view"
    assert view.get("one", b"bb") is None, "a snapshot does not see later commits"
    view.renew()
    assert [key for key, _ in view.scan("one")] == [b"a", b"bb", b"c"], "renewed, it does"
    view.close()
    view.close()  # closing twice is allowed
    assert _refused(lambda: view.get("one", b"a")), "a closed snapshot is refused"


def _numbers_its_commits(engine: Engine) -> None:
    before = engine.last_commit
    _keys(engine)
    assert engine.last_commit == before, "a read is no commit"
    _fill(engine, b"a")
    assert engine.last_commit > before, "a commit raises the number"
    before = engine.last_commit
    with contextlib.suppress(ZeroDivisionError), engine.write() as txn:
        txn.put("one", b"b", b"")
        raise ZeroDivisionError
    assert engine.last_commit == before, "a transaction that was rolled back is no commit"


def _reads_its_own_writes(engine: Engine) -> None:
    _fill(engine, b"a", b"b")
    with engine.write() as txn:
        txn.delete("one", b"a")
        txn.put("one", b"c", b"1")
        txn.put_many("one", [(b"d", b"1"), (b"d", b"2")])
        assert txn.get_many("one", [b"a", b"c", b"d"]) == [None, b"1", b"2"], "a later pair wins"
        assert [k for k, _ in txn.scan("one", reverse=True)] == [b"d", b"c", b"b"], "in scans"
        assert txn.count("one") == 3, "and in counts"
        assert txn.delete_range("one", b"b", b"d") == 2, "delete_range counts"
        assert txn.get("one", b"b") is None, "and deletes"
    assert _keys(engine) == [b"d"], "and commits what it showed"


def _scans_ahead_of_its_own_writes(engine: Engine) -> None:
    _fill(engine, b"a", b"c", b"e")
    with engine.write() as txn:
        seen = []
        for key, _ in txn.scan("one"):
            seen.append(key)
            if key == b"a":
                txn.put("one", b"b", b"")
                txn.delete("one", b"c")
    assert seen == [b"a", b"b", b"e"], "a scan sees what its transaction changed ahead of it"
    # Many: a page of the engine splits while the scan runs.
    many = [b"%04d" % i for i in range(2_000)]
    with engine.write() as txn:
        txn.put_many("two", [(key, b"") for key in many])
        doubled = ((key + b"+", b"x" * 90) for key, value in txn.scan("two") if not value)
        txn.put_many("two", doubled)
        assert txn.count("two") == 2 * len(many), "also when it feeds a put of many"


def _refuses_bad_arguments(engine: Engine) -> None:
    longest = b"k" * TABLE_KEY_BYTES_MAX
    _fill(engine, b"k", longest)
    with engine.write() as txn:
        assert _refused(lambda: txn.put("one", longest + b"k", b"v")), "a key too long"
        assert _refused(lambda: txn.put_many("one", [(longest + b"k", b"v")])), "one among many"
        assert _refused(lambda: txn.get("one", longest + b"k")), "a key too long to get"
        assert _refused(lambda: txn.put("none", b"k", b"v")), "an unknown table"
        assert _refused(lambda: txn.put("one", b"k", bytes(VALUE_BYTES_MAX + 1))), "a long value"
        assert _refused(lambda: txn.put("one", "k", b"v")), "text"  # type: ignore[arg-type]
    with engine.read() as view:
        assert _refused(lambda: view.get("none", b"k")), "an unknown table"
        assert _refused(lambda: view.getter("none")), "an unknown table"
        assert _refused(lambda: view.get_many("one", [b"k", longest + b"k"])), "a key too long"
    assert _keys(engine) == [b"k", longest], "and the longest key is kept"


def _ends_transactions(engine: Engine) -> None:
    with engine.write() as txn:
        txn.put("one", b"k", b"v")

        def nested() -> None:
            with engine.write():
                pass

        assert _refused(nested), "one thread cannot write twice at once"
    assert _refused(lambda: txn.put("one", b"k", b"v")), "a transaction that is over is refused"


def _lets_one_thread_write_at_a_time(engine: Engine) -> None:
    def add() -> None:
        for _ in range(20):  # a lost update shows as a smaller count
            with engine.write() as txn:
                count = int(txn.get("one", b"count") or b"0")
                txn.put("one", b"count", b"%d" % (count + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with engine.read() as view:
        assert view.get("one", b"count") == b"80", "no update is lost between threads"


def _refuses_use_after_close(engine: Engine) -> None:
    engine.close()
    engine.close()

    def write() -> None:
        with engine.write():
            pass

    for call in (engine.read, write, engine.sync):
        assert _refused(call, StoreClosed), "a closed engine is refused"


# --- sections and group commit ---

KIT_LIMIT_S: Final = 60  # a deadlock must end the test
"""Longest wait for another thread of a test."""

TxnWork = Callable[[GroupTxn], Any]


class CountingEngine:
    """An engine that counts its commits, and fails those that `error` is set for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.tables = engine.tables
        self.read_only = engine.read_only
        self.is_damaged = engine.is_damaged
        self.commits = 0
        self.error: Exception | None = None

    @property
    def last_commit(self) -> int:
        return self._engine.last_commit

    def read(self) -> Snapshot:
        return self._engine.read()

    @contextmanager
    def write(self) -> Iterator[WriteTxn]:
        with self._engine.write() as txn:
            yield txn
            self.commits += 1
            if self.error is not None:  # after the work: what was written must be taken back
                raise self.error

    def sync(self) -> None:
        self._engine.sync()

    def close(self) -> None:
        self._engine.close()


class SignallingQueue(deque[Any]):
    """A queue that counts what is appended, for a thread that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = threading.Semaphore(0)

    def append(self, piece: Any) -> None:
        super().append(piece)
        self.arrivals.release()


def run_together(group: GroupCommit, works: Sequence[TxnWork]) -> list[Any]:
    """Run pieces of work in one transaction, each for a thread of its own, in their order.

    Returns: what each returned, or the exception that its `run` raised.
    """
    return call_together(group, [partial(group.run, work) for work in works])


def call_together(group: GroupCommit, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make calls that each hand a piece of work to a group, as `run_together`."""
    # Replaces the group's queue, so that the test sees arrivals.
    queue = group._queue = SignallingQueue()
    outcomes: list[Any] = [None] * len(calls)
    threads = []

    def run(i: int) -> None:
        try:
            outcomes[i] = calls[i]()
        except Exception as error:  # noqa: BLE001 - it is the outcome
            outcomes[i] = error

    def lead(_: GroupTxn) -> None:
        assert queue.arrivals.acquire(timeout=KIT_LIMIT_S), "this piece came in"
        for i in range(len(calls)):  # one by one, so that their order is known
            threads.append(threading.Thread(target=run, args=(i,)))
            threads[i].start()
            assert queue.arrivals.acquire(timeout=KIT_LIMIT_S), (
                "a piece comes in while another runs"
            )
        raise _Leading  # rolled back: the next transaction begins with the first of the calls

    with contextlib.suppress(_Leading):
        group.run(lead)
    for thread in threads:
        thread.join(KIT_LIMIT_S)
        assert not thread.is_alive(), "every thread is woken"
    return outcomes


class _Leading(Exception):
    """Ends the piece of work that waited until the others had come in."""


def _separates_sections(engine: Engine) -> None:
    # Prefixes that end in ff: the successor is the hard case.
    prefixes = (b"a", b"b\xff", b"c", b"\xff\xff")
    with engine.write() as txn:
        for prefix in prefixes:
            part = section(txn, prefix)
            part.put("one", b"k", prefix)
            part.put_many("one", [(b"", b"e"), (b"m", b""), (b"x", b"")])
            assert part.delete("one", b"x"), "delete sees the section"
            assert part.delete_range("one", b"l") == 1, "delete_range stays inside"
        txn.put("one", b"d", b"outside")  # a key between two sections
    with engine.read() as view:
        for prefix in prefixes:
            inside = section(view, prefix)
            wanted = [(b"", b"e"), (b"k", prefix)]
            assert list(inside.scan("one")) == wanted, "keys have no prefix"
            assert list(inside.scan("one", b"k", b"l")) == wanted[1:], "bounds have none either"
            assert list(inside.scan("one", reverse=True)) == wanted[::-1], "in reverse too"
            assert inside.get_many("one", [b"k", b"d"]) == [prefix, None], "keys outside are hidden"
            assert (inside.get("one", b""), inside.count("one")) == (b"e", 2), "keys are counted"
            # A reader must not become a writer.
            assert not hasattr(inside, "put"), "a section of a view cannot write"
        nested = section(section(view, b"b"), b"\xff")
        assert nested.get("one", b"k") == b"b\xff", "a section has sections"


def _put(key: bytes, value: bytes = b"new", error: Exception | None = None) -> TxnWork:
    """Return work that sets a key and returns its value of before, or raises."""

    def work(txn: GroupTxn) -> bytes | None:
        before = txn.get("one", key)
        txn.put("one", key, value)
        if error is not None:
            raise error
        return before

    return work


def _rolls_back_a_piece_alone(engine: Engine) -> None:
    _fill(engine, b"a", b"b", b"c", b"d")
    before = _keys(engine)
    counting = CountingEngine(engine)
    group = GroupCommit(counting)

    def change(txn: GroupTxn) -> None:
        txn.put("one", b"a", b"1")
        txn.put("one", b"a", b"2")  # the same key twice: the first value must come back
        txn.put_many("one", [(b"b", b"1"), (b"n", b"1")])
        txn.delete("one", b"c")
        txn.delete_range("one", b"a", b"d")  # ranges are remembered key by key
        txn.put("one", b"c", b"3")
        raise KeyError("change")

    failing = _put(b"a", error=KeyError("first"))
    first, one, changed, two = run_together(group, [failing, _put(b"x"), change, _put(b"y")])
    assert isinstance(first, KeyError), "the exception of a first piece is its own"
    assert isinstance(changed, KeyError), "and so is that of a later one"
    assert one is two is None, "other pieces succeed"
    assert counting.commits == 1, "in one commit"
    assert _keys(engine) == [*before, b"x", b"y"], "nothing of a failed piece is kept"
    with group.read() as view:
        values = [value for _, value in view.scan("one", b"a", b"e")]
    assert values == [b"v" + key for key in before], "old values are back"


def _calls_back_after_the_commit(engine: Engine) -> None:
    group = GroupCommit(engine)
    calls: list[object] = []

    def work(name: bytes, error: Exception | None = None) -> TxnWork:
        def run(txn: GroupTxn) -> bytes:
            txn.after_commit(lambda: calls.append((name, b"b" in _keys(engine))))
            txn.after_commit(lambda: calls.append(name))
            return _put(name, error=error)(txn) or name

        return run

    outcomes = run_together(group, [work(b"a"), work(b"x", KeyError()), work(b"b")])
    assert outcomes[::2] == [b"a", b"b"], "results come back"
    wanted = [(b"a", True), b"a", (b"b", True), b"b"]
    assert calls == wanted, "callbacks run in order, after the commit, for kept pieces"

    def chained(txn: GroupTxn) -> None:
        # A callback that writes: its own transaction, behind this one.
        txn.after_commit(lambda: group.run(work(b"inner")))
        txn.after_commit(lambda: calls.append("last"))

    calls.clear()
    group.run(chained)
    assert calls == ["last", (b"inner", True), b"inner"], "a callback may run; its own follow"

    def broken(txn: GroupTxn) -> None:
        txn.put("one", b"kept", b"")

        def fail() -> None:
            raise KeyError("callback")

        txn.after_commit(fail)
        txn.after_commit(lambda: calls.append("after"))  # a broken callback must not stop the next

    assert _refused(lambda: group.run(broken), KeyError), "its exception is raised"
    assert calls[-1] == "after", "the other callbacks are called"
    assert b"kept" in _keys(engine), "and the work is kept"


def _refuses_run_within_work(engine: Engine) -> None:
    group = GroupCommit(engine)
    kept: list[GroupTxn] = []

    def nested(txn: GroupTxn) -> None:
        kept.append(txn)
        group.run(_put(b"a"))

    assert _refused(lambda: group.run(nested)), "a piece of work cannot wait for its own commit"
    assert group.run(_put(b"b")) is None, "and the next one goes on"
    for call in (lambda: kept[0].get("one", b"b"), lambda: kept[0].put("one", b"b", b"")):
        assert _refused(call), "the transaction of a piece is over with it"
    assert _keys(engine) == [b"b"], "nothing of it is kept"


def _shares_commits_between_threads(engine: Engine) -> None:
    counting = CountingEngine(engine)
    group = GroupCommit(counting)
    threads = 64  # more threads than cores
    works = [_put(b"%02d" % i) for i in range(threads)]
    assert run_together(group, works) == [None] * threads, "each gets its result"
    assert counting.commits == 1, "pieces that wait share a commit"
    assert len(_keys(engine)) == threads, "and all of them are in it"

    def add(txn: GroupTxn) -> None:
        txn.put("one", b"count", b"%d" % (int(txn.get("one", b"count") or b"0") + 1))

    def submit() -> None:
        for _ in range(20):
            group.run(add)

    running = [threading.Thread(target=submit) for _ in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(KIT_LIMIT_S)
        assert not thread.is_alive(), "every thread is woken"
    with group.read() as view:
        assert view.get("one", b"count") == b"160", "no update is lost"


def _shares_a_call_between_threads(engine: Engine) -> None:
    counting = CountingEngine(engine)
    group = GroupCommit(counting)
    sizes: list[int] = []
    told: list[list[bytes]] = []

    def put_all(txn: GroupTxn, keys: list[bytes]) -> list[bytes | Exception]:
        sizes.append(len(keys))
        for key in keys:
            txn.put("one", key, b"v")
            if key == b"broken":
                raise KeyError(key)
        txn.after_commit(lambda: told.append(keys))
        return [ValueError() if key == b"refused" else key for key in keys]

    def calls(*keys: bytes) -> list[Callable[[], Any]]:
        return [partial(group.run_shared, put_all, key) for key in keys]

    outcomes = call_together(group, calls(b"a", b"refused", b"b"))
    assert isinstance(outcomes[1], ValueError), "an exception is that of one caller"
    assert outcomes[::2] == [b"a", b"b"], "each gets its result"
    assert (sizes, told, counting.commits) == ([3], [[b"a", b"refused", b"b"]], 1), "in one call"
    # One that fails for all is made for each alone, wherever it stands in the transaction.
    for before in ([], [partial(group.run, _put(b"first"))]):
        sizes.clear()
        outcomes = call_together(group, [*before, *calls(b"c", b"broken", b"d")])[len(before) :]
        assert isinstance(outcomes[1], KeyError), "the exception of one is its own"
        assert outcomes[::2] == [b"c", b"d"], "the others succeed"
        assert sizes == [3, 1, 1, 1], "each alone"
        assert b"broken" not in _keys(engine), "nothing of it is kept"
        assert told[-2:] == [[b"c"], [b"d"]], "and nothing of it is called back"


def _gives_a_failed_commit_to_all(engine: Engine) -> None:
    counting = CountingEngine(engine)
    group = GroupCommit(counting)
    calls: list[int] = []

    def work(txn: GroupTxn) -> None:
        txn.put("one", b"k", b"v")
        txn.after_commit(lambda: calls.append(1))

    counting.error = StoreFull("the disk is full")  # the commit fails, not the work
    outcomes = run_together(group, [work, _put(b"a", error=KeyError()), work])
    assert [type(found) for found in outcomes] == [StoreFull, KeyError, StoreFull], "each its own"
    assert (_keys(engine), calls) == ([], []), "nothing is kept and nothing is called"
    counting.error = None
    group.run(work)
    assert (_keys(engine), calls) == ([b"k"], [1]), "and the next commit may succeed"
