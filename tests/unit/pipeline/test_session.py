"""Sessions: the settings, and what is refused before any JVM starts."""

from __future__ import annotations

import builtins
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.errors import PeerUnavailable, UsageError
from datalattice.pipeline.spark.session import (
    check_reachable,
    import_path,
    parse_master,
    session_settings,
    spark_session,
)
from datalattice.testing.ports import held_port


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_settings_are_local_quiet_and_quick() -> None:
    settings = session_settings("name", cores=3, memory="1g")
    assert settings["spark.master"] == "local[3]"
    assert settings["spark.app.name"] == "name"
    assert settings["spark.driver.memory"] == "1g"
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.catalogImplementation"] == "in-memory"
    assert "-XX:+UseSerialGC" in settings["spark.driver.extraJavaOptions"]
    assert "-XX:TieredStopAtLevel=1" in settings["spark.driver.extraJavaOptions"]


def test_much_data_is_worth_a_slower_start() -> None:
    settings = session_settings("name", cores=3, memory="1g", quick_start=False)
    assert "-XX:+UseSerialGC" in settings["spark.driver.extraJavaOptions"]
    assert "TieredStopAtLevel" not in settings["spark.driver.extraJavaOptions"]


def test_by_default_all_cores_this_process_may_use() -> None:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert session_settings("n", cores=None, memory="1g")["spark.master"] == f"local[{usable}]"


@pytest.mark.parametrize(
    ("master", "cores", "expected"),
    [
        ("local", None, "local[1]"),
        ("local[3]", None, "local[3]"),
        ("local[3]", 3, "local[3]"),
        ("local[*]", 4, "local[4]"),
        ("local[*, 2]", 4, "local[4, 2]"),
        ("spark://127.0.0.1:7077", 4, "spark://127.0.0.1:7077"),
        ("spark://one:7077,two:7077", 4, "spark://one:7077,two:7077"),
    ],
)
def test_the_master_is_as_given(master: str, cores: int | None, expected: str) -> None:
    settings = session_settings("n", cores=cores, memory="1g", master=parse_master(master))
    assert settings["spark.master"] == expected


def test_on_a_cluster_memory_is_each_executor_s_and_cores_are_the_most_to_take() -> None:
    near = session_settings("n", cores=4, memory="1g", master=parse_master("spark://localhost:1"))
    far = session_settings("n", cores=4, memory="1g", master=parse_master("spark://far:7077"))
    for settings in (near, far):
        assert settings["spark.executor.memory"] == "1g"
        assert settings["spark.cores.max"] == settings["spark.sql.shuffle.partitions"] == "4"
    assert near["spark.driver.host"] == "127.0.0.1"
    assert "-XX:+UseSerialGC" in near["spark.executor.extraJavaOptions"]
    assert "spark.driver.host" not in far  # workers elsewhere must reach this machine
    assert "spark.executor.extraJavaOptions" not in far
    all_cores = session_settings("n", cores=None, memory="1g", master=parse_master("spark://a:1"))
    assert "spark.cores.max" not in all_cores


def test_behind_a_connect_server_only_what_a_session_may_set_is_set() -> None:
    settings = session_settings("n", cores=2, memory="1g", master=parse_master("sc://host:15002"))
    assert set(settings) == {
        "spark.sql.session.timeZone",
        "spark.sql.execution.arrow.pyspark.enabled",
    }


@pytest.mark.parametrize(
    ("master", "kind", "loopback"),
    [
        ("local[*]", "local", True),
        ("spark://127.0.0.1:7077", "cluster", True),
        ("spark://localhost:7077", "cluster", True),
        ("spark://[::1]:7077", "cluster", True),
        ("spark://10.0.0.1:7077", "cluster", False),
        ("sc://localhost", "connect", True),
        ("sc://host:15002/;token=abc", "connect", False),
    ],
)
def test_where_tasks_run_is_known_by_its_name(master: str, kind: str, loopback: bool) -> None:
    found = parse_master(master)
    assert (found.kind, found.loopback) == (kind, loopback)


@pytest.mark.parametrize(
    "master", ["", "local[0]", "local[]", "spark://host", "yarn", "host:7077", "sc://", "sc:// a"]
)
def test_another_master_is_refused(master: str) -> None:
    with pytest.raises(UsageError, match=r"master is local\[N\] or local\[\*\], spark://host"):
        parse_master(master)


@pytest.mark.parametrize("level", ["off", "warn"])
def test_the_log_level_is_in_the_file_that_java_reads(tmp_path: Path, level: str) -> None:
    settings = session_settings("n", cores=1, memory="1g", log_level=level)
    file = tmp_path / "datalattice" / f"log4j2-{level}.properties"
    assert (
        f"-Dlog4j2.configurationFile={file.as_uri()}" in settings["spark.driver.extraJavaOptions"]
    )
    assert f"rootLogger.level = {level}\n" in file.read_text()
    assert "%d{HH:mm:ss}" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"cores": 0}, "cores is a number of at least 1, got 0"),
        ({"memory": "2"}, "memory is a number and k, m, g or t"),
        ({"memory": "0g"}, "memory is a number"),
        ({"memory": "much"}, "memory is a number"),
        ({"log_level": "loud"}, "log_level is one of off, "),
        ({"master": "yarn"}, "master is local"),
        ({"master": "local[2]", "cores": 3}, r"cores=3 and master=local\[2\] differ"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        spark_session("n", **arguments)


@pytest.mark.parametrize(
    ("master", "servers"),
    [
        ("local[2]", ()),
        ("spark://a:1,[::1]:65535", (("a", 1), ("[::1]", 65_535))),
        ("sc://a", (("a", 15_002),)),
        ("sc://[::1]:7/;token=abc", (("[::1]", 7),)),
    ],
)
def test_the_servers_of_a_master(master: str, servers: tuple[tuple[str, int], ...]) -> None:
    assert parse_master(master).servers == servers


@pytest.mark.parametrize("master", ["spark://a:0", "spark://a:1,b:65536", "sc://a:65536"])
def test_a_port_that_there_is_not_is_refused(master: str) -> None:
    with pytest.raises(UsageError, match="a port is 1 to 65535"):
        parse_master(master)


@pytest.mark.parametrize("kind", ["spark", "sc"])
def test_a_server_that_is_not_there_is_reported_at_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A session of other tests may be running, and would be returned as it is.
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with held_port() as port:
        with socket.create_server(("127.0.0.1", port)):
            check_reachable(parse_master(f"spark://127.0.0.1:1,127.0.0.1:{port}"))
        with pytest.raises(PeerUnavailable, match=rf"127\.0\.0\.1:{port}: Connection refused"):
            spark_session("n", master=f"{kind}://127.0.0.1:{port}")


def test_a_python_with_nothing_installed_imports_what_this_one_does() -> None:
    script = "import datalattice.pipeline.formats, lmdb, pyarrow; print(datalattice.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == datalattice.__file__


def test_without_pyspark_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_pyspark(name: str, *rest: Any) -> object:
        if name.startswith("pyspark"):
            raise ImportError("No module named 'pyspark'")
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pyspark)
    with pytest.raises(UsageError, match=r"pip install 'datalattice\[spark\]'"):
        spark_session("n", cores=1)
