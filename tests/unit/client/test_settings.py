"""Settings: which source wins, how values are written in each, and what every mistake says."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from datalattice.client.settings import DoorConfig, NodeConfig, load_settings, settings_text
from datalattice.client.settings.settings import GROUPS, SETTINGS_BYTES_MAX
from datalattice.errors import UsageError


def written(folder: Path, text: str) -> Path:
    path = folder / "node.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_command_line_comes_before_the_environment_the_file_and_the_default(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, "# mine\n[node]\nport = 1\nrounds_max = 7\nbind = '127.0.0.2'")
    environment = {"LATTICE_NODE_PORT": "2", "LATTICE_NODE_ROUNDS_MAX": "8", "HOME": "x"}
    found = load_settings(file, environment, {"port": 3, "bind": None})
    config = found.config
    assert (config.port, config.rounds_max, config.bind) == (3, 8, "127.0.0.2")
    assert found.sources["node.port"] == "the command line"
    assert found.sources["node.rounds_max"] == "LATTICE_NODE_ROUNDS_MAX"
    assert found.sources["node.bind"] == f"{file} line 5"
    assert found.sources["log.level"] == "default"
    assert config.log_level == NodeConfig().log_level


def fields_of() -> dict[str, object]:
    """Return the default of each setting, by its dotted name."""
    found = load_settings(Path("none.toml"), {}, {}).document()
    return {name: one["value"] for name, one in found.items() if name != "hosting"}


def test_every_field_can_be_set_in_each_way_and_nothing_else(tmp_path: Path) -> None:
    defaults = fields_of()
    plain = [field.name for field in dataclasses.fields(NodeConfig)]
    inner = sum(len(dataclasses.fields(record)) for _, record in GROUPS.values())
    assert len(defaults) == len(plain) - 1 - len(GROUPS) + inner  # `hosting` is a table of its own
    lines, variables = [], {}
    for name, value in defaults.items():
        variable = f"LATTICE_{name.upper().replace('.', '_')}"
        if value is None:
            continue
        lines.append(f"{name} = {json.dumps(value)}")
        is_table = isinstance(value, dict)
        variables[variable] = "" if value == [] else json.dumps(value) if is_table else f" {value} "
    sections = "\n".join(
        f"[{section}]\n" + "\n".join(line[len(section) + 1 :] for line in group)
        for section, group in itertools.groupby(
            lines, lambda line: line.split(" ")[0].rpartition(".")[0]
        )
    )
    for text in ("\n".join(lines), sections):
        by_file = load_settings(written(tmp_path, text), {}, {})
        assert by_file.config == NodeConfig()
        assert sum("line" in source for source in by_file.sources.values()) == len(lines)
    by_environment = load_settings(tmp_path / "none.toml", variables, {})
    assert by_environment.config == NodeConfig()
    assert set(by_environment.sources.values()) == {*variables, "default"}


def test_the_written_file_is_read_as_it_was_meant(tmp_path: Path) -> None:
    text = settings_text({"port": 7, "rest": "127.0.0.1:8", "peers": ["h:1"], "bind": None})
    config = load_settings(written(tmp_path, text), {}, {}).config
    assert config == NodeConfig(port=7, peers=("h:1",), rest=DoorConfig("127.0.0.1:8"))
    # Each line that is not set can be: all names are known, in their sections.
    bare = "\n".join(
        line.removeprefix("# ") for line in text.splitlines()[1:] if "is not" not in line
    )
    assert load_settings(written(tmp_path, bare), {}, {}).config == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "port = 1\nrest = '127.0.0.1:1'\nlog_level = 'info'\n[hosting]\n",
            "port is port in [node]; rest is listen in [doors.rest]; log_level is level in [log]",
        ),
        ("prot = 1", "line 1: there is no setting 'prot'; did you mean port?"),
        ("[node]\n\nprot = 1", "line 3: there is no setting 'prot' in [node]; did you mean port?"),
        (
            "[node]\nlog_level = 'info'",
            "line 2: there is no setting 'log_level' in [node]; it is level in [log]",
        ),
        ("[log]\nport = 1", "line 2: there is no setting 'port' in [log]; it is port in [node]"),
        ("[loging]\nlevel = 'info'", "line 1: there is no section [loging]; did you mean log?"),
        ("[doors.soap]\nlisten = 'h:1'", "line 1: there is no section [doors.soap]"),
        (
            "[doors]\nlisten = 'h:1'",
            "line 2: there is no setting 'listen' in [doors]; it is listen in",
        ),
        ("[doors.rest]\nlisten = 5", "line 2: doors.rest.listen is a text, got 5"),
        ("[doors.rest]\nlisten = 'h'", "line 2: [doors.rest]: listen is host:port, got 'h'"),
        ("doors.rest.tls = 'maybe'", "line 1: [doors.rest]: tls is auto, on or off, got 'maybe'"),
        ("[doors.rest]\ncert = 'a'", "[doors.rest]: cert and key are given together"),
        (
            "[doors.grpc]\nlisten = '0.0.0.0:1'\ntls = 'off'",
            "[doors.grpc]: 0.0.0.0:1 can be reached by others",
        ),
        ("[doors.rest]\nhosts = ['a b']", "line 2: [doors.rest]: hosts are names"),
        ("[doors.rest]\nport = { a = 1 }", "there is no section [doors.rest.port]"),
        ("[access]\nadmins = ['x']", "line 2: admins are DIDs"),
        ("[doors.mcp]\ntools = 'some'", "line 2: mcp is off, read or all, got 'some'"),
        ("venue.storage = 'tape'", "line 1: venue_storage is lattice, file, memory or drive, got"),
        (
            "[venue]\ncontent_bytes_max = 0",
            "line 2: venue_content_bytes_max is 1 to 4294967296, got 0",
        ),
        ("[venue]\ncontent_bytes_max = 4294967297", "is 1 to 4294967296, got 4294967297"),
        ("[venue]\npath = '/'", "line 2: venue_path is the name of a folder, got '/'"),
        ("[venue.grid]\nvenues = { a = 5 }", "line 2: [venue.grid]: venues.a is a URL, got 5"),
        ("[venue.grid]\nblock = ['A:1']", "line 2: [venue.grid]: a host is a name in lower case"),
        ("[venue.grid]\naway_s = 0", "line 2: [venue.grid]: away_s is greater than 0, got 0"),
        ("[venue.http]\nallow = ['A:1']", "line 2: [venue.http]: a host is a name in lower case"),
        ("[venue.http]\ntime_s = 0", "line 2: [venue.http]: time_s is greater than 0, got 0"),
        ("[venue.sql]\nrows = 0", "line 2: [venue.sql]: rows is greater than 0, got 0"),
        ("[venue.sql]\nthreads = true", "line 2: venue.sql.threads is a number, got true"),
        ("[venue.python]\nfunctions = 5", "line 2: venue.python.functions is a table, got 5"),
        ("[venue.python]\ncpu_s = 0", "line 2: [venue.python]: cpu_s is greater than 0, got 0"),
        (
            "[venue.python.functions]\nA = 'm:f'",
            "[venue.python]: functions: a name is a lower-case letter",
        ),
        (
            "[venue.python.functions]\na = 'm.f'",
            "line 1: [venue.python]: functions.a: function is module:name, got 'm.f'",
        ),
        ("[venue.python.functions]\na = 5", "functions.a is a table, got 5"),
        (
            "[venue.python.functions.a]\nfunction = 'm:f'\nisolate = true",
            "there is no setting 'isolate' in functions.a; did you mean isolated?",
        ),
        (
            "[venue.python.functions.a]\nfunction = 'm:f'\nkeyed = 1",
            "functions.a.keyed is true or false, got 1",
        ),
        (
            "[venue.python.functions.a]\nfunction = 'm:f'\nrecover = 'check'",
            "functions.a: recover is retry or fail, got 'check'",
        ),
        (
            "[venue.spark.jobs.latest]\njob = 'drop'",
            "[venue.spark]: jobs.latest: job is one of audit, compact, export, gc, load, merge",
        ),
        ("[venue.spark.jobs]\nlatest = 'compact'", "jobs.latest is a table, got 'compact'"),
        ("[venue.spark.conf]\n'spark.x' = 1", "[venue.spark]: conf.spark.x is a text, got 1"),
    ],
)
def test_mistakes_of_sections_are_said_with_their_line(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(written(tmp_path, text), {}, {})
    assert words in str(caught.value)


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
    assert load_settings(tmp_path / "x", {"LATTICE_NODE_PEERS": text}, {}).config.peers == peers


def test_partial_replication_can_be_set_by_a_variable(tmp_path: Path) -> None:
    entries = tuple(f"{digits * 64}/queue/{'0' * 64}" for digits in "12")
    environment = {"LATTICE_NODE_PARTIAL": ", ".join(entries)}
    assert load_settings(tmp_path / "x", environment, {}).config.partial == entries


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"LATTICE_NODE_PORT": "x"}, "LATTICE_NODE_PORT: node.port is a number, got 'x'"),
        ({"LATTICE_NODE_PORT": "1.5"}, "LATTICE_NODE_PORT: node.port is a number"),
        ({"LATTICE_NODE_PORT": "65536"}, "LATTICE_NODE_PORT: a port is a number up to 65535"),
        ({"LATTICE_NODE_STRICT_PATHS": "maybe"}, "strict_paths is true or false, got 'maybe'"),
        ({"LATTICE_NODE_PEERS": "a:1 b"}, "LATTICE_NODE_PEERS: "),
        (
            {"LATTICE_NODE_PEER": "a:1"},
            "LATTICE_NODE_PEER sets nothing; did you mean LATTICE_NODE_PEERS?",
        ),
        ({"LATTICE_LOG_FORMAT": "xml"}, "LATTICE_LOG_FORMAT: log_format is text or json"),
        ({"LATTICE_NODE_HTTP_PORT": "65536"}, "LATTICE_NODE_HTTP_PORT: http_port is 0 to 65535"),
        ({"LATTICE_NODE_HTTP_PORT": "-1"}, "LATTICE_NODE_HTTP_PORT: http_port is 0 to 65535"),
        ({"LATTICE_DOORS_REST_TLS": "x"}, "LATTICE_DOORS_REST_TLS: [doors.rest]: tls is auto"),
        ({"LATTICE_PEERS": "a:1"}, "LATTICE_PEERS is LATTICE_NODE_PEERS now"),
        ({"LATTICE_REST": "h:1"}, "LATTICE_REST is LATTICE_DOORS_REST_LISTEN now"),
        (
            {"LATTICE_VENUE_SPARK_JOBS": "[]"},
            "LATTICE_VENUE_SPARK_JOBS: venue.spark.jobs is a table",
        ),
        ({"LATTICE_VENUE_SPARK_CONF": "x"}, "venue.spark.conf is a table, got 'x'"),
        ({"LATTICE_NODE_HTTP_BIND": ""}, "LATTICE_NODE_HTTP_BIND: http_bind is a local address"),
    ],
)
def test_wrong_variables_are_said_with_their_name(
    tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path / "x", environment, {})
    assert words in str(caught.value)


def test_variables_of_others_that_begin_alike_are_none_of_ours(tmp_path: Path) -> None:
    environment = {"LATTICE_SERVICE_HOST": "x", "LATTICE_HOME": "y", "DATALATTICE_HOME": "z"}
    assert load_settings(tmp_path / "x", environment, {}).config == NodeConfig()


def test_the_limits_of_ports_are_taken(tmp_path: Path) -> None:
    for port in ("0", "65535"):
        environment = {"LATTICE_NODE_HTTP_PORT": port, "LATTICE_NODE_PORT": port}
        config = load_settings(tmp_path / "x", environment, {}).config
        assert (config.http_port, config.port) == (int(port), int(port))


def test_a_file_of_the_largest_size_is_read_and_a_folder_is_not(tmp_path: Path) -> None:
    text = "[node]\nport = 7\n"
    file = written(tmp_path, text + "#" * (SETTINGS_BYTES_MAX - len(text)))
    assert load_settings(file, {}, {}).config.port == 7
    with pytest.raises(UsageError, match="cannot be read"):
        load_settings(tmp_path, {}, {})


def test_the_page_lists_every_setting_with_its_default() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "node.md"
    table = page.read_text("utf-8").partition("## Configuration")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    shown = {row[0].strip("| `"): row[1].strip("`") for row in rows}
    defaults = fields_of()
    both = {name.replace("doors.grpc.", "doors.rest.") for name in defaults}
    assert sorted(shown) == sorted({*both, "hosting"})
    for name, text in shown.items():
        default = defaults.get(name)
        if isinstance(default, bool):
            assert text == str(default).lower(), name
        elif isinstance(default, (int, float)):
            assert text.partition(":")[0] == f"{default:,}".removesuffix(".0"), name
        elif isinstance(default, str):
            assert text == default, name


@pytest.mark.parametrize(
    ("listen", "is_local"),
    [
        ("127.0.0.1:8", True),
        ("127.1:8", True),
        ("[::1]:8", True),
        ("localhost:8", True),
        ("127.\u00b2.0.1:8", False),
        ("127.example:8", False),
        ("10.0.0.1:8", False),
    ],
)
def test_an_address_of_this_machine_is_known_by_its_ascii_digits(
    listen: str, is_local: bool
) -> None:
    assert DoorConfig(listen).is_local is is_local
