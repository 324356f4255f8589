"""Settings that every test shares: hypothesis profiles and the mode in the report's head."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

# No deadline: shared machines stall, and pytest-timeout bounds each test as a whole.
settings.register_profile("quick", max_examples=50, deadline=None)
# Pure Python takes longest, and a law is run on the same source in the compiled run: fewer.
FULL = 60 if os.environ.get("DATALATTICE_EXPECT_COMPILED") == "0" else 120
settings.register_profile("full", max_examples=FULL, deadline=None, derandomize=True)
settings.register_profile(
    "long", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
PROFILE = os.environ.get("DATALATTICE_PROFILE", "quick")
settings.load_profile(PROFILE)

LONG = frozenset({"integration", "laws", "sim"})
"""Folders whose files take many seconds each; a file is the least that a worker takes."""

PROCESSES_S = 300


def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis draw values whose printed form is long; have processes heed SIGINT."""
    config.addinivalue_line("filterwarnings", "ignore:Generating overly large repr")
    # A shell has what it starts in the background ignore SIGINT, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, in their random order, so that no worker has one left at the end.

    Tests that start processes, some of them dozens, have the time that a busy machine needs.
    """
    items.sort(key=lambda item: item.path.parent.name not in LONG)
    for item in items:
        if item.get_closest_marker("processes") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PROCESSES_S))


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """Give a stack: what is entered there ends with the test, also where the test fails."""
    with ExitStack() as stack:
        yield stack


def pytest_report_header() -> str:
    """Say which kernel is under test."""
    mode = {"0": "pure", "1": "compiled"}.get(os.environ.get("DATALATTICE_EXPECT_COMPILED", ""))
    return f"datalattice: kernel {mode or 'as found'}, hypothesis profile {PROFILE}"
