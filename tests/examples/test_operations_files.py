"""The files for operators: they name settings, commands, metrics and cures that exist."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import Topics
from datalattice.cli.main import COMMANDS
from datalattice.client.settings import NodeConfig, load_settings
from datalattice.crypto import KeyPair
from datalattice.lattice import did_of
from datalattice.node import NodeServer, open_node
from datalattice.testing.polling import LIMIT_S

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "operations"
REFUSED = ROOT / "docs" / "refused.md"
METRIC = re.compile(r"\b(?:datalattice|process)_[a-z0-9_]+|\bup(?=\{)")
ROW = re.compile(r"\| (`[^|]*) \| [^|]* \| ([^|]*) \|")
BY_PROMETHEUS = {"up"}
"""Metrics that Prometheus itself makes for each node that it asks."""


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def cures(group: str) -> dict[str, str]:
    """Return by key the cures of the sections of refused.md whose headings begin with `group`."""
    found: dict[str, str] = {}
    heading = ""
    for line in REFUSED.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif heading.startswith(group) and (row := ROW.fullmatch(line)):
            cure = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", row[2].strip())  # links are for the page
            for key in re.findall(r"`([^`]+)`", row[1]):
                found.setdefault(key, cure)
    return found


def alerts() -> list[dict[str, str]]:
    """Return the fields of each alert. The file keeps each field on one line."""
    found = []
    for block in read("alerts.yml").split("- alert: ")[1:]:
        name, *lines = block.splitlines()
        fields = {"alert": name}
        for line in lines:
            if match := re.fullmatch(r" {8,10}(\w+): (.+)", line):
                text = match[2]
                quoted = text.startswith("'") and text.endswith("'")
                fields[match[1]] = text[1:-1].replace("''", "'") if quoted else text
        found.append(fields)
    return found


def board() -> Any:
    return json.loads(read("dashboard.json"))


def queries() -> list[str]:
    shown = [target["expr"] for panel in board()["panels"] for target in panel["targets"]]
    return [*shown, *(alert["expr"] for alert in alerts())]


def metrics_in(text: str) -> set[str]:
    return set(METRIC.findall(text))


async def page_of_a_node(folder: Path, counters: set[str]) -> tuple[str, dict[str, Any]]:
    """Return the pages of a node that has a peer, has written, is degraded and counted."""

    def ask(address: object, page: str) -> str:
        with urllib.request.urlopen(f"http://{address}/{page}", timeout=LIMIT_S) as answer:
            return str(answer.read().decode())

    keys = KeyPair.generate()
    async with (
        asyncio.timeout(LIMIT_S),
        open_node(folder / "one", key_pair=keys, port=0) as one,
        NodeServer(
            folder / "two", NodeConfig(port=-1, http_port=0, peers=(str(one.address),))
        ) as two,
    ):
        health = json.loads(await asyncio.to_thread(ask, two.monitor.address, "health"))
        Topics.at(one.cursor, keys.public_key).partition("log", 0).offer("hello")
        await one.sync()
        await two.wait_until(lambda node: node.root_hash == one.root_hash)
        await two.sync()
        two.observer.measure("publish", 0.01)
        two.observer.degrade("writes", "the disk is full")
        for name in counters:
            two.observer.count(name)
        return await asyncio.to_thread(ask, two.monitor.address, "metrics"), health


def test_every_metric_of_the_board_and_the_alerts_is_exported(tmp_path: Path) -> None:
    counters = set(cures("Counters"))
    page, health = asyncio.run(page_of_a_node(tmp_path, counters))
    assert health["status"] == "ok", "the health check of the image reads this page"
    exported = set(re.findall(r"^([a-z_0-9]+)(?:\{[^\n]*\})? [-+.\w]+$", page, re.MULTILINE))
    asked = set[str]().union(*map(metrics_in, queries()))
    assert len(asked) > 30
    assert asked - BY_PROMETHEUS <= exported
    labels = set(re.findall(r'[{,](\w+)="', page)) | {"instance"}
    shown = {
        name
        for panel in board()["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
    }
    assert shown <= labels


def test_every_alert_says_what_happened_and_the_cure_of_the_documentation() -> None:
    reasons, counters = cures("Degraded"), cures("Counters")
    found = alerts()
    names = [alert["alert"] for alert in found]
    assert len(set(names)) == len(names)
    for alert in found:
        assert alert["summary"].startswith("{{ $labels.instance }} "), alert
        assert alert["severity"] in {"critical", "warning", "info"}
        assert 'job="datalattice"' in alert["expr"]
        if alert["alert"] == "DatalatticeDown":
            continue  # a node that does not answer has no reason to show
        is_counted = "_total" in alert["expr"]
        words = counters if is_counted else reasons
        assert alert["remedy"] == words[alert["key"]], alert["alert"]
        if is_counted:
            counter = f"datalattice_{alert['key'].replace('-', '_')}_total"
            assert metrics_in(alert["expr"]) == {counter}


def test_each_reason_to_be_degraded_has_an_alert() -> None:
    reasons = cures("Degraded")
    covered = {
        value for alert in alerts() for value in re.findall(r'reason=~?"([^"]+)"', alert["expr"])
    }
    assert covered == {"backup .*" if key == "backup ..." else key for key in reasons}


def test_the_unit_starts_a_command_and_sets_settings_that_exist() -> None:
    lines = [
        line.split("=", 1)
        for line in read("datalattice.service").splitlines()
        if line and line[0] not in "#["
    ]
    (start,) = [value for name, value in lines if name == "ExecStart"]
    assert shlex.split(start) == ["/opt/datalattice/bin/lattice", "node", "start"]
    variables = [value.split("=", 1)[0] for name, value in lines if name == "Environment"]
    assert_settings(variables)
    assert ["KillSignal", "SIGTERM"] in lines


def test_the_example_of_settings_is_in_sections_that_exist(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", read("README.md"), re.DOTALL)
    did = did_of(KeyPair.generate().public_key)
    (tmp_path / "node.toml").write_text(example.replace("did:key:z6Mk...", did))
    config = load_settings(tmp_path / "node.toml", {}, {}).config
    assert (config.admins, config.rest.listen) == ((did,), "127.0.0.1:8080")
    (ends,) = re.findall(r"TimeoutStopSec=(\d+)", read("datalattice.service"))
    assert config.drain_s < int(ends)


def test_the_daemon_is_a_program_and_its_socket_one_that_it_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert read("daemon.conf").endswith("ExecStart=\nExecStart=/opt/datalattice/bin/latticed\n")
    assert "latticed" in project["scripts"]
    assert "doors" in project["optional-dependencies"]
    assert "FileDescriptorName=rest\n" in read("datalattice-rest.socket")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    names = ("datalattice.service", "datalattice.service.d/daemon.conf", "datalattice-rest.socket")
    for name in names:
        made = tmp_path / name
        made.parent.mkdir(exist_ok=True)
        # The program is not installed here.
        text = re.sub(r"/opt/datalattice/bin/latticed?", sys.executable, read(Path(name).name))
        made.write_text(text)
    found = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in (names[0], names[2]))],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_the_image_copies_files_and_runs_commands_that_exist() -> None:
    text = re.sub(r"\\\n\s*", "", read("Dockerfile"))
    steps = [tuple(line.split(" ", 1)) for line in text.splitlines() if re.match(r"[A-Z]+ ", line)]
    copied = {word for kind, words in steps if kind == "COPY" for word in shlex.split(words)[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {"pyproject.toml", "setup.py", "src", project["readme"], *project["license-files"]}
    assert needed <= copied
    (install,) = [words for kind, words in steps if kind == "RUN" and "pip" in words]
    assert shlex.split(install)[-1] == "."
    assert "constraints.txt" in copied.intersection(shlex.split(install))
    assert [json.loads(words) for kind, words in steps if kind in {"ENTRYPOINT", "CMD"}] == [
        ["lattice"],
        ["node", "start"],
    ]
    assert "lattice" in project["scripts"]
    assert "node" in COMMANDS
    (variables,) = [shlex.split(words) for kind, words in steps if kind == "ENV"]
    settings = dict(word.split("=", 1) for word in variables)
    assert_settings(list(settings))
    (ports,) = [words.split() for kind, words in steps if kind == "EXPOSE"]
    assert ports == [settings["LATTICE_NODE_PORT"], settings["LATTICE_NODE_HTTP_PORT"]]
    (check,) = [words for kind, words in steps if kind == "HEALTHCHECK"]
    assert f"127.0.0.1:{settings['LATTICE_NODE_HTTP_PORT']}/health" in check
    compile(json.loads(check[check.index("CMD ") + 4 :])[2], "HEALTHCHECK", "exec")
    (user,) = [words for kind, words in steps if kind == "USER"]
    assert user != "root"


def assert_settings(variables: list[str]) -> None:
    names = load_settings(Path("none.toml"), {}, {}).sources
    known = {f"LATTICE_{name.upper().replace('.', '_')}" for name in names}
    assert set(variables) - {"DATALATTICE_HOME"} <= known
