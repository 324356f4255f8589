"""Daemon: a worker that nobody listens to any more ends in silence, every other one as it does."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("pyspark")

from datalattice.pipeline.daemon import quiet


def test_only_a_broken_pipe_is_passed_over() -> None:
    calls: list[bool] = []

    def worker(failure: BaseException | None) -> int:
        def run(_sock: socket.socket, authenticated: bool) -> int:
            calls.append(authenticated)
            if failure is not None:
                raise failure
            return 0

        with socket.socket() as sock:
            return quiet(run)(sock, True)

    assert worker(None) == 0
    assert worker(BrokenPipeError()) == 1
    with pytest.raises(ConnectionResetError):
        worker(ConnectionResetError())
    assert calls == [True] * 3
