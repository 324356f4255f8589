"""Pieces of work that share transactions give what some serial order of them gives."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import given, strategies as st

from datalattice.engine import GroupCommit, GroupTxn, MemoryEngine
from datalattice.testing.engine_kit import KIT_LIMIT_S, TxnWork, run_together

KEYS = st.sampled_from([b"", b"a", b"b", b"c"])
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=3)),
    st.tuples(st.just("delete"), KEYS, st.just(b"")),
    st.tuples(st.just("range"), KEYS, KEYS),
    st.tuples(st.just("copy"), KEYS, KEYS),
)
FAIL = ("fail", b"", b"")
PIECE = st.builds(
    lambda steps, fails: [*steps, FAIL] if fails else steps,
    st.lists(STEPS, max_size=5),
    st.booleans(),
)
PIECES = st.lists(PIECE, max_size=6)
Step = tuple[str, bytes, bytes]


class Failed(Exception):
    """The piece of work failed on purpose."""


def work(steps: list[Step]) -> TxnWork:
    """Return a piece of work that does the steps, on a transaction or on the model."""

    def run(txn: Any) -> list[tuple[bytes, bytes]]:
        for name, key, other in steps:
            if name == "put":
                txn.put_many("t", [(key, other)])
            elif name == "copy":
                txn.put("t", key, txn.get("t", other) or b"none")
            elif name == "delete":
                txn.delete("t", key)
            elif name == "range":
                txn.delete_range("t", key, other)
            else:
                raise Failed
        return list(txn.scan("t"))

    return run


def serial(pieces: list[list[Step]]) -> tuple[list[Any], list[tuple[bytes, bytes]]]:
    """Return the outcomes of pieces that each have a transaction, and the table they leave."""
    engine = MemoryEngine(("t",))
    outcomes: list[Any] = []
    for steps in pieces:
        try:
            with engine.write() as txn:
                outcomes.append(work(steps)(txn))  # type: ignore[arg-type]
        except Failed:
            outcomes.append(Failed)
    with engine.read() as view:
        return outcomes, list(view.scan("t"))


@given(pieces=PIECES)
def test_pieces_of_one_transaction_equal_one_after_the_other(pieces: list[list[Step]]) -> None:
    group = GroupCommit(MemoryEngine(("t",)))
    found = run_together(group, [work(steps) for steps in pieces])
    outcomes = [Failed if isinstance(one, Failed) else one for one in found]
    with group.read() as view:
        assert (outcomes, list(view.scan("t"))) == serial(pieces)


@given(lanes=st.lists(PIECES, min_size=2, max_size=4))
def test_threads_equal_some_serial_order(lanes: list[list[list[Step]]]) -> None:
    group = GroupCommit(MemoryEngine(("t",)))
    order: list[list[Step]] = []  # as the transactions saw them; failed pieces leave nothing

    def submit(pieces: list[list[Step]]) -> None:
        for steps in pieces:

            def run(txn: GroupTxn, steps: list[Step] = steps) -> None:
                work(steps)(txn)
                txn.after_commit(lambda: order.append(steps))

            try:
                group.run(run)
            except Failed:
                continue

    threads = [threading.Thread(target=submit, args=(pieces,)) for pieces in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(KIT_LIMIT_S)
        assert not thread.is_alive()
    with group.read() as view:
        assert list(view.scan("t")) == serial(order)[1]
    for pieces in lanes:  # each thread's own order is kept
        kept = [steps for steps in pieces if FAIL not in steps]
        rest = iter(order)
        assert all(any(steps is one for one in rest) for steps in kept)
