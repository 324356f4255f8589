"""The public golden vectors hold here, all of them, one test for each file."""

from __future__ import annotations

from pathlib import Path

import pytest

from datalattice.conformance import run_file, run_paths

VECTORS = Path(__file__).parent / "vectors"

PUBLIC = {
    "cells-collections.json": 299,
    "cells-decode.json": 330,
    "cells-index.json": 89,
    "cells-json.json": 84,
    "cells-scalars.json": 324,
    "cells-signed.json": 22,
    "grid-assets.json": 68,
    "grid-authority.json": 28,
    "grid-collections.json": 29,
    "grid-jobs.json": 34,
    "grid-lifecycle.json": 100,
    "grid-merge.json": 25,
    "grid-orchestrator.json": 37,
    "etch-files.json": 9,
    "lattice-containers.json": 75,
    "lattice-content.json": 22,
    "lattice-cursors.json": 10,
    "lattice-dlfs.json": 38,
    "lattice-forks.json": 90,
    "lattice-paths.json": 30,
    "lattice-queue.json": 53,
    "lattice-registers.json": 56,
    "lattice-signed.json": 59,
    "weaver-dag.json": 4,
    "weaver-frontier.json": 4,
    "weaver-hlc.json": 18,
    "weaver-kv-batch.json": 6,
    "weaver-log-order.json": 6,
    "weaver-lww.json": 18,
    "weaver-proto.json": 11,
    "weaver-snapshot.json": 7,
    "weaver-ingest.json": 10,
    "weaver-intention.json": 12,
    "weaver-intention-reject.json": 7,
    "weaver-synthetic-genesis.json": 3,
    "weaver-witness.json": 4,
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_vector_passes(name: str) -> None:
    report = run_file(VECTORS / name)
    assert report.failures == ()
    assert (report.passed, report.skipped) == (PUBLIC[name], 0)


def test_files_are_reported_in_the_order_given() -> None:
    names = ["lattice-paths.json", "cells-json.json"]
    assert [r.path.name for r in run_paths([VECTORS / name for name in names])] == names
