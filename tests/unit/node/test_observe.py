"""Observe: counters and times from many threads, and health that comes and goes."""

from __future__ import annotations

import threading

import pytest

from datalattice.errors import StoreFailed, StoreFull
from datalattice.lattice import OWN_MALFORMED
from datalattice.node.observe import BUCKETS_S, Histogram, Observer
from datalattice.sync import Note


def test_counts_of_several_threads_are_all_there() -> None:
    observer = Observer()

    def work() -> None:
        for _ in range(2_000):
            observer.count("x")
            observer.measure("y", 0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert observer.counters == {"x": 8_000}
    assert observer.times["y"].count == 8_000


@pytest.mark.parametrize("place", range(len(BUCKETS_S)))
def test_a_time_at_the_bound_of_a_bucket_belongs_to_it(place: int) -> None:
    times = Histogram()
    times.add(BUCKETS_S[place])
    times.add(BUCKETS_S[place] * 1.001)
    assert times.counts[place] == 1
    assert times.counts[place + 1] == 1
    assert times.sum_s == pytest.approx(BUCKETS_S[place] * 2.001)


def test_several_reasons_at_once_go_one_by_one() -> None:
    observer = Observer()
    assert (observer.health, observer.reasons) == ("ok", {})
    observer.degrade("backup:1", "backup cannot be written")
    observer.failed(StoreFull("no room"))
    assert observer.health == "degraded: backup cannot be written; StoreFull: no room"
    observer.changed()
    assert observer.health == "degraded: backup cannot be written"
    observer.recover("backup:1")
    observer.recover("backup:1")
    assert observer.health == "ok"
    assert observer.counters == {"faults": 1, "changes": 1}


def test_a_malformed_part_of_the_own_root_degrades_and_names_the_cure() -> None:
    observer = Observer()
    observer.note(Note("section-dropped", "a peer", "its part"))
    assert observer.health == "ok"
    observer.note(Note(OWN_MALFORMED, "a peer", "OwnMalformed(path=(:kv,))"))
    assert "OwnMalformed(path=(:kv,)); stop it and run `lattice disk repair`" in observer.health


def test_a_store_that_failed_for_good_and_a_fault_of_ours_stay() -> None:
    observer = Observer()
    observer.failed(StoreFailed("open the store again"))
    observer.failed(RuntimeError("a bug"))
    observer.recover("something else")
    assert set(observer.reasons) == {"writes", "fault"}
    observer.changed()
    assert set(observer.reasons) == {"fault"}


def test_checks_are_looked_up_whenever_somebody_asks() -> None:
    observer = Observer()
    found: list[str] = []
    observer.checks["looked"] = lambda: found[0] if found else None
    assert observer.health == "ok"
    found.append("not well")
    assert observer.reasons == {"looked": "not well"}
    found.clear()
    assert observer.health == "ok"


def test_checks_are_logged_when_they_come_change_and_go(caplog: pytest.LogCaptureFixture) -> None:
    observer = Observer()
    said: str | None = "first"
    observer.checks["looked"] = lambda: said
    with caplog.at_level("INFO", "datalattice.node"):
        observer.log_checks()
        observer.log_checks()
        said = "second"
        observer.log_checks()
        said = None
        observer.log_checks()
        observer.log_checks()
    assert [one.getMessage().split()[0] for one in caplog.records] == [
        "degraded",
        "degraded",
        "recovered",
    ]
