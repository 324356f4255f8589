"""Nonces and revoked tokens: remembered until they end, in bounded room."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from datalattice.engine import Engine, MemoryEngine, open_engine
from datalattice.errors import RateLimited
from datalattice.service.access import SPENT_MAX, SPENT_TABLE, BadCredential, SpentIds
from datalattice.service.access.spent import SWEPT

DID, OTHER = "did:key:zA", "did:key:zB"


def engine() -> Engine:
    return MemoryEngine([SPENT_TABLE])


def test_a_nonce_passes_once_until_it_ends() -> None:
    spent = SpentIds(engine())
    spent.spend(DID, "n", 1_000, 0)
    spent.spend(OTHER, "n", 1_000, 0)
    for now_ms in (0, 999):
        with pytest.raises(BadCredential) as caught:
            spent.spend(DID, "n", 2_000, now_ms)
        assert caught.value.reason == "replayed"
    spent.spend(DID, "n", 2_000, 1_000)
    with pytest.raises(BadCredential):
        spent.spend(DID, "n", 3_000, 1_500)


def test_a_nonce_is_no_token_id() -> None:
    spent = SpentIds(engine())
    spent.spend(DID, "n", 1_000, 0)
    assert not spent.is_revoked(DID, "n")
    spent.revoke(DID, "t", 1_000, 0)
    assert spent.is_revoked(DID, "t")
    assert not spent.is_revoked(OTHER, "t")
    spent.spend(DID, "t", 1_000, 0)


def test_nothing_is_forgotten_by_a_restart(tmp_path: Path) -> None:
    for attempt in range(2):
        kept = open_engine(tmp_path, [SPENT_TABLE])
        try:
            spent = SpentIds(kept)
            if attempt == 0:
                spent.spend(DID, "n", 1_000, 0)
                spent.revoke(DID, "t", 1_000, 0)
                continue
            assert spent.is_revoked(DID, "t")
            with pytest.raises(BadCredential):
                spent.spend(DID, "n", 1_000, 1)
        finally:
            kept.close()


def test_a_full_table_refuses_and_takes_more_once_some_have_ended() -> None:
    assert SPENT_MAX == 100_000
    spent = SpentIds(engine(), ids_max=3)
    for number in range(3):
        spent.spend(DID, str(number), 1_000 + number, 0)
    for again in range(2):
        with pytest.raises(RateLimited):
            spent.spend(DID, f"more {again}", 5_000, 999)
    with pytest.raises(RateLimited):
        spent.revoke(DID, "t", 5_000, 999)
    with pytest.raises(BadCredential):
        spent.spend(DID, "0", 5_000, 999)
    spent.spend(DID, "3", 5_000, 1_000)
    with pytest.raises(RateLimited):
        spent.spend(DID, "4", 5_000, 1_000)


def test_of_many_threads_one_spends_a_nonce() -> None:
    spent, together = SpentIds(engine()), threading.Barrier(8)

    def try_it(_: int) -> bool:
        together.wait()
        try:
            spent.spend(DID, "n", 1_000, 0)
        except BadCredential:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_it, range(8))) == 1


def test_what_has_ended_is_removed() -> None:
    tables = engine()
    spent = SpentIds(tables)
    for number in range(SWEPT + 10):
        spent.spend(DID, str(number), 1_000, 0)
    spent.spend(DID, "later", 9_000, 2_000)
    with tables.read() as txn:
        assert txn.count(SPENT_TABLE) == 2 * 11
    spent.spend(DID, "last", 9_000, 2_000)
    with tables.read() as txn:
        assert txn.count(SPENT_TABLE) == 2 * 2


def test_an_id_that_was_renewed_stays_until_its_later_end() -> None:
    spent = SpentIds(engine())
    spent.revoke(DID, "t", 1_000, 0)
    spent.revoke(DID, "t", 5_000, 0)
    spent.spend(DID, "n", 9_000, 2_000)
    assert spent.is_revoked(DID, "t")
    spent.spend(DID, "m", 9_000, 5_000)
    assert not spent.is_revoked(DID, "t")
