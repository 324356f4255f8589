"""Engine kit: the rules for every engine, as one call for any implementation."""

from __future__ import annotations

import threading
from collections.abc import Callable

from datalattice.engine import KEY_BYTES_MAX, VALUE_BYTES_MAX, Engine
from datalattice.errors import StoreClosed, UsageError

TABLES = ("one", "two")
"""The tables of an engine under test."""


def check_engine(make: Callable[[], Engine]) -> None:
    """Assert that engines keep the protocol. `make` returns a new, empty engine with `TABLES`.

    Raises: AssertionError: it does not; the text says which rule.
    """
    for rule in (
        _reads_what_was_written,
        _orders_keys_as_unsigned_bytes,
        _scans_ranges_both_ways,
        _takes_a_failed_transaction_back,
        _keeps_a_snapshot_unchanged,
        _reads_its_own_writes,
        _scans_ahead_of_its_own_writes,
        _refuses_bad_arguments,
        _ends_transactions,
        _lets_one_thread_write_at_a_time,
    ):
        engine = make()
        try:
            rule(engine)
        finally:
            engine.close()
    _refuses_use_after_close(make())


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
    assert engine.tables == TABLES, "tables are named in order"
    _fill(engine, b"a", b"b")
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
    keys = [b"\xff", b"\x00", b"a", b"ab", b"\x7f", b"\x80", b"a\x00"]
    _fill(engine, *keys)
    assert _keys(engine) == sorted(keys), "a prefix comes first, bytes are unsigned"


def _scans_ranges_both_ways(engine: Engine) -> None:
    _fill(engine, b"b", b"d", b"f")
    with engine.read() as view:
        cases = [(b"", None), (b"b", b"f"), (b"c", b"e"), (b"e", b"c"), (b"g", None), (b"", b"b")]
        for start, end in cases:
            wanted = [k for k in (b"b", b"d", b"f") if k >= start and (end is None or k < end)]
            found = [key for key, _ in view.scan("one", start, end)]
            assert found == wanted, f"scan {start!r} to {end!r}"
            back = [key for key, _ in view.scan("one", start, end, reverse=True)]
            assert back == wanted[::-1], f"scan back {start!r} to {end!r}"
        assert list(view.scan("two")) == [], "an empty table yields nothing"


def _takes_a_failed_transaction_back(engine: Engine) -> None:
    _fill(engine, b"a")

    def fail() -> None:
        with engine.write() as txn:
            txn.put("one", b"b", b"")
            txn.delete_range("one")
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
    view.close()
    assert _refused(lambda: view.get("one", b"a")), "a closed snapshot is refused"


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


def _refuses_bad_arguments(engine: Engine) -> None:
    longest = b"k" * KEY_BYTES_MAX
    _fill(engine, b"k", longest)
    with engine.write() as txn:
        assert _refused(lambda: txn.put("one", b"", b"v")), "an empty key"
        assert _refused(lambda: txn.put("one", longest + b"k", b"v")), "a key too long"
        assert _refused(lambda: txn.put_many("one", [(b"", b"v")])), "an empty key among many"
        assert _refused(lambda: txn.put("none", b"k", b"v")), "an unknown table"
        assert _refused(lambda: txn.put("one", b"k", bytes(VALUE_BYTES_MAX + 1))), "a long value"
        assert _refused(lambda: txn.put("one", "k", b"v")), "text"  # type: ignore[arg-type]
    with engine.read() as view:
        assert _refused(lambda: view.get("none", b"k")), "an unknown table"
        assert _refused(lambda: view.getter("none")), "an unknown table"
        assert _refused(lambda: view.get("one", b"")), "an empty key"
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
        for _ in range(20):
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
