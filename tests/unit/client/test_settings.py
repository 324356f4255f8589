"""Settings: which source wins, how values are written in each, and what every mistake says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from datalattice.client.settings import NodeConfig, load_settings
from datalattice.client.settings.settings import SETTINGS_BYTES_MAX
from datalattice.errors import UsageError


def written(folder: Path, text: str) -> Path:
    path = folder / "node.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_command_line_comes_before_the_environment_the_file_and_the_default(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, "# mine\nport = 1\nrounds_max = 7\nbind = '127.0.0.2'\nhttp_port = 9")
    environment = {"LATTICE_PORT": "2", "LATTICE_ROUNDS_MAX": "8", "HOME": "x"}
    found = load_settings(file, environment, {"port": 3, "bind": None})
    config = found.config
    assert (config.port, config.rounds_max, config.bind) == (3, 8, "127.0.0.2")
    assert found.sources["port"] == "the command line"
    assert found.sources["rounds_max"] == "LATTICE_ROUNDS_MAX"
    assert found.sources["bind"] == f"{file} line 4"
    assert found.sources["log_level"] == "default"
    assert config.log_level == NodeConfig().log_level


def test_every_field_can_be_set_in_each_way_and_nothing_else(tmp_path: Path) -> None:
    names = [field.name for field in dataclasses.fields(NodeConfig)]
    plain = load_settings(tmp_path / "none.toml", {}, {})
    assert list(plain.sources) == names
    assert list(plain.document()) == names
    assert plain.config == NodeConfig()
    lines, variables = [], {}
    for name in names:
        value = getattr(NodeConfig(), name)
        if isinstance(value, bool):
            lines.append(f"{name} = {str(value).lower()}")
            variables[f"LATTICE_{name.upper()}"] = str(value)
        elif isinstance(value, int):
            lines.append(f"{name} = {value}")
            variables[f"LATTICE_{name.upper()}"] = f" {value} "
        elif isinstance(value, str):
            lines.append(f"{name} = '{value}'")
            variables[f"LATTICE_{name.upper()}"] = value
        elif isinstance(value, tuple):
            lines.append(f"{name} = []")
            variables[f"LATTICE_{name.upper()}"] = ""
    by_file = load_settings(written(tmp_path, "\n".join(lines)), {}, {})
    by_environment = load_settings(tmp_path / "none.toml", variables, {})
    assert by_file.config == by_environment.config == NodeConfig()
    assert set(by_environment.sources.values()) <= {*variables, "default"}


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("", ()),
        ("a:1", ("a:1",)),
        ("a:1,b:2", ("a:1", "b:2")),
        (" a:1 , b:2 c:3 ", ("a:1", "b:2", "c:3")),
    ],
)
def test_lists_in_the_environment_have_commas_or_spaces(
    tmp_path: Path, text: str, peers: tuple[str, ...]
) -> None:
    assert load_settings(tmp_path / "x", {"LATTICE_PEERS": text}, {}).config.peers == peers


def test_partial_replication_can_be_set_by_a_variable(tmp_path: Path) -> None:
    entries = tuple(f"{digits * 64}/queue/{'0' * 64}" for digits in "12")
    environment = {"LATTICE_PARTIAL": ", ".join(entries)}
    assert load_settings(tmp_path / "x", environment, {}).config.partial == entries


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"LATTICE_PORT": "x"}, "LATTICE_PORT: port is a number, got 'x'"),
        ({"LATTICE_PORT": "1.5"}, "LATTICE_PORT: port is a number"),
        ({"LATTICE_PORT": "65536"}, "LATTICE_PORT: a port is a number up to 65535"),
        ({"LATTICE_STRICT_PATHS": "maybe"}, "strict_paths is true or false, got 'maybe'"),
        ({"LATTICE_PEERS": "a:1 b"}, "LATTICE_PEERS: "),
        ({"LATTICE_PEER": "a:1"}, "LATTICE_PEER sets nothing; did you mean LATTICE_PEERS?"),
        ({"LATTICE_LOG_FORMAT": "xml"}, "LATTICE_LOG_FORMAT: log_format is text or json"),
        ({"LATTICE_HTTP_PORT": "65536"}, "LATTICE_HTTP_PORT: http_port is 0 to 65535"),
        ({"LATTICE_HTTP_PORT": "-1"}, "LATTICE_HTTP_PORT: http_port is 0 to 65535"),
        ({"LATTICE_HTTP_BIND": ""}, "LATTICE_HTTP_BIND: http_bind is a local address"),
    ],
)
def test_wrong_variables_are_said_with_their_name(
    tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path / "x", environment, {})
    assert words in str(caught.value)


def test_a_table_in_the_file_is_no_setting(tmp_path: Path) -> None:
    file = written(tmp_path, "bind = '::1'\n[node]\nport = 1\n")
    with pytest.raises(UsageError, match="line 2: 'node' is a table; settings stand alone"):
        load_settings(file, {}, {})


def test_variables_of_others_that_begin_alike_are_none_of_ours(tmp_path: Path) -> None:
    environment = {"LATTICE_SERVICE_HOST": "x", "LATTICE_HOME": "y", "DATALATTICE_HOME": "z"}
    assert load_settings(tmp_path / "x", environment, {}).config == NodeConfig()


def test_the_limits_of_ports_are_taken(tmp_path: Path) -> None:
    for port in ("0", "65535"):
        environment = {"LATTICE_HTTP_PORT": port, "LATTICE_PORT": port}
        config = load_settings(tmp_path / "x", environment, {}).config
        assert (config.http_port, config.port) == (int(port), int(port))


def test_a_file_of_the_largest_size_is_read_and_a_folder_is_not(tmp_path: Path) -> None:
    text = "port = 7\n"
    file = written(tmp_path, text + "#" * (SETTINGS_BYTES_MAX - len(text)))
    assert load_settings(file, {}, {}).config.port == 7
    with pytest.raises(UsageError, match="cannot be read"):
        load_settings(tmp_path, {}, {})


def test_the_page_lists_every_setting_with_its_default() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "node.md"
    table = page.read_text("utf-8").partition("## Configuration")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    shown = {row[0].strip("| `"): row[1].strip("`") for row in rows}
    assert sorted(shown) == sorted(field.name for field in dataclasses.fields(NodeConfig))
    for name, text in shown.items():
        default = getattr(NodeConfig(), name)
        if isinstance(default, bool):
            assert text == str(default).lower(), name
        elif isinstance(default, int):
            assert text.partition(":")[0] == f"{default:,}", name
        elif isinstance(default, str):
            assert text == default, name
