"""Daemon: a worker that nothing reads from ends in silence, every other one as it does."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from types import ModuleType

import pytest

pytest.importorskip("pyspark")

from datalattice.pipeline import daemon as own_daemon
from datalattice.pipeline.spark.session import session_settings
from datalattice.pipeline.spark.workers import quiet_own_daemon, quiet_when_unheard


def said(daemon: ModuleType, failure: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a daemon prints about a worker that fails."""
    try:
        raise failure
    except type(failure):
        vars(daemon)["traceback"].print_exc()
    return capsys.readouterr().err


def test_only_a_broken_pipe_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    daemon = ModuleType("daemon")
    quiet_when_unheard(daemon)
    assert said(daemon, BrokenPipeError(), capsys) == ""
    for failure in (ConnectionResetError("gone"), ValueError("gone")):
        assert said(daemon, failure, capsys).endswith(f"{type(failure).__name__}: gone\n")


@pytest.mark.parametrize(("name", "changed"), [("pyspark.daemon", True), ("pyspark.util", False)])
def test_only_the_daemon_of_spark_itself_is_changed(
    name: str, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = importlib.util.find_spec(name)
    vars(main)["traceback"] = traceback
    monkeypatch.setitem(sys.modules, "__main__", main)
    quiet_own_daemon()
    assert (vars(main)["traceback"] is not traceback) is changed


def test_a_local_session_uses_the_daemon_of_this_package() -> None:
    settings = session_settings("app", cores=1, memory="1g")
    assert settings["spark.python.daemon.module"] == own_daemon.__name__
