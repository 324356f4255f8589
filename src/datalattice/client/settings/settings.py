"""Settings: reads the `NodeConfig` of a node process from its three sources.

The command line wins over the environment (`LATTICE_NODE_PORT`), the environment over the file
(`node.toml`, a TOML document in sections), and the file over the default. A setting is named by its
section and its name there: `node.port`, `doors.rest.listen`. Errors name the source, what is wrong,
and what is accepted. The table `[hosting]` exists in the file only; other tables are JSON in the
environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from datalattice.client.folder import VARIABLE_PREFIX
from datalattice.client.settings.config import DoorConfig, NodeConfig
from datalattice.client.settings.policyfile import policy_document, read_policy, unknown_setting
from datalattice.client.settings.venueconfig import (
    VenueGridConfig,
    VenueHttpConfig,
    VenuePythonConfig,
    VenueSparkConfig,
    VenueSqlConfig,
)
from datalattice.errors import UsageError

SETTINGS_NAME: Final = "node.toml"
SETTINGS_BYTES_MAX: Final = 64_000

HOSTING: Final = "hosting"
_NODE: Final = "node"
DEFAULT_SOURCE: Final = "default"
CALL: Final = "the command line"

_SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "limits": {
        name: name
        for name in (
            "message_bytes_max",
            "connections_max",
            "connections_per_address_max",
            "messages_per_s_max",
            "bytes_per_s_max",
            "peer_bytes_max",
            "cache_bytes",
            "reads_per_s",
            "effects_per_s",
            "drain_s",
        )
    },
    "log": {"level": "log_level", "format": "log_format"},
    "access": {"admins": "admins", "reading": "reading"},
    "doors.webdav": {"enabled": "webdav"},
    "doors.mcp": {"tools": "mcp"},
    "venue": {
        "enabled": "venue",
        "public": "venue_public",
        "trial": "venue_trial",
        "storage": "venue_storage",
        "path": "venue_path",
        "content_bytes_max": "venue_content_bytes_max",
    },
}
"""Sections besides `node`: their settings, and the fields of a `NodeConfig` that these set."""

DOORS: Final = ("rest", "grpc")
"""Fields that are a `DoorConfig`; the command line sets their `listen` only."""

GROUPS: Final[Mapping[str, tuple[str, type[Any]]]] = {
    **{door: (f"doors.{door}", DoorConfig) for door in DOORS},
    "venue_grid": ("venue.grid", VenueGridConfig),
    "venue_http": ("venue.http", VenueHttpConfig),
    "venue_python": ("venue.python", VenuePythonConfig),
    "venue_sql": ("venue.sql", VenueSqlConfig),
    "venue_spark": ("venue.spark", VenueSparkConfig),
}
"""Fields of a `NodeConfig` that are records: the section of each, and its class."""

_TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}


class _Kind(NamedTuple):
    """The field that a setting sets, with its type. part: of a record, the field within it."""

    field: str
    part: str | None
    type: Any


@dataclass(frozen=True, slots=True)
class Settings:
    """A node's configuration, and the source of each setting by its dotted name."""

    config: NodeConfig
    sources: dict[str, str]

    def document(self) -> dict[str, dict[str, object]]:
        """Return every setting with its value and source, as JSON values."""
        found: dict[str, dict[str, object]] = {}
        for name, source in self.sources.items():
            kind = _kinds().get(name)
            value = policy_document(self.config.hosting) if kind is None else None
            found[name] = {
                "value": _plain(_value(self.config, kind)) if kind is not None else value,
                "source": source,
            }
        return found


def load_settings(
    file: Path, environment: Mapping[str, str], given: Mapping[str, object]
) -> Settings:
    """Return the settings in effect.

    file:  may be missing.
    given: those of the command line, by the fields of a `NodeConfig`; None: not given. `rest` and
           `grpc` stand for their `listen`.
    Raises: UsageError: a setting is unknown, of the wrong type, or out of range.
    """
    chosen: dict[str, object] = {}
    sources = dict.fromkeys((*_kinds(), HOSTING), DEFAULT_SOURCE)
    layers = (_from_file(file), _from_environment(environment), _from_call(given))
    for layer in layers:
        for name, (value, source) in layer.items():
            _check_alone(name, value, source)
            # Later layers win: the command line over the environment, that over the file.
            chosen[name] = value
            sources[name] = source
    return Settings(_config(chosen), sources)


def changed_settings(before: NodeConfig, after: NodeConfig) -> list[str]:
    """Return the names of the settings that differ."""
    kinds = _kinds().items()
    found = [dotted for dotted, one in kinds if _value(before, one) != _value(after, one)]
    return found if before.hosting == after.hosting else [*found, HOSTING]


def settings_text(given: Mapping[str, object]) -> str:
    """Return a settings file: the given settings, and all others as comments with their defaults.

    Raises: UsageError: a given setting is unknown, of the wrong type, or out of range.
    """
    chosen = {name: value for name, (value, _) in _from_call(given).items()}
    for name, value in chosen.items():
        _check_alone(name, value, CALL)
    lines = ["# Settings of this node. A line without # in front replaces the default."]
    section = ""
    for dotted, kind in _kinds().items():
        if dotted.rpartition(".")[0] != section:
            section = dotted.rpartition(".")[0]
            lines += ["", f"[{section}]"]
        name, default = dotted.rpartition(".")[2], _plain(_value(NodeConfig(), kind))
        # Defaults are comments, so that a later version's new default takes effect.
        if dotted in chosen:
            lines.append(f"{name} = {json.dumps(_plain(chosen[dotted]))}")
        elif default is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(f"# {name} = {json.dumps(default)}")
    return "\n".join(lines) + "\n"


def _check_alone(name: str, value: object, source: str) -> None:
    """Check one setting by itself, so that the error can name its source."""
    if name.endswith((".cert", ".key")):  # valid only together
        return
    try:
        _config({name: value})
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def _config(chosen: Mapping[str, object]) -> NodeConfig:
    """Return the configuration of settings. Raises: UsageError."""
    fields: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in chosen.items():
        kind = _kinds().get(name)
        if kind is None:
            fields[HOSTING] = value
        elif kind.part is None:
            fields[kind.field] = value
        else:
            groups.setdefault(kind.field, {})[kind.part] = value
    for name, parts in groups.items():
        section, record = GROUPS[name]
        try:
            fields[name] = record(**parts)
        except UsageError as error:
            raise UsageError(f"[{section}]: {error}") from error
    return NodeConfig(**fields)


# --- kinds of settings --------------------------------------------------------------------------


@functools.cache
def _kinds() -> dict[str, _Kind]:
    """Return the field and type of each setting by its dotted name, read from `NodeConfig`."""
    hints = typing.get_type_hints(NodeConfig)
    named = {
        field: f"{section}.{name}"
        for section, names in _SECTIONS.items()
        for name, field in names.items()
    }
    plain = [
        one.name for one in dataclasses.fields(NodeConfig) if one.name not in (HOSTING, *GROUPS)
    ]
    # In the order of the file: `node` first, sections of records last.
    kinds = {f"{_NODE}.{one}": _Kind(one, None, hints[one]) for one in plain if one not in named}
    kinds |= {dotted: _Kind(field, None, hints[field]) for field, dotted in named.items()}
    for field, (section, record) in GROUPS.items():
        parts = typing.get_type_hints(record)
        kinds |= {
            f"{section}.{one.name}": _Kind(field, one.name, parts[one.name])
            for one in dataclasses.fields(record)
        }
    return kinds


@functools.cache
def _dotted() -> dict[str, str]:
    """Return the dotted name of each field of a `NodeConfig`; for a door, of its `listen`."""
    found = {kind.field: dotted for dotted, kind in _kinds().items() if kind.part is None}
    return {**found, **{door: f"doors.{door}.listen" for door in DOORS}, HOSTING: HOSTING}


def _sections() -> list[str]:
    """Return the names of the sections, in order."""
    return [*dict.fromkeys(dotted.rpartition(".")[0] for dotted in _kinds()), HOSTING]


def _value(config: NodeConfig, kind: _Kind) -> object:
    value = getattr(config, kind.field)
    return value if kind.part is None else getattr(value, kind.part)


def _base(kind: Any) -> type:
    """Return the type of a field's values, without None and type arguments."""
    if isinstance(kind, types.UnionType):
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    found: type = typing.get_origin(kind) or kind
    return found


_WANTED: Final = {
    int: "a number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list of texts",
    Mapping: "a table",
}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


# --- the file -----------------------------------------------------------------------------------


def _from_file(path: Path) -> dict[str, tuple[object, str]]:
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    # tomllib tells no lines, and an error names the one that is wrong.
    lines = _lines_of(text)

    def source(name: str) -> str:
        return f"{path} line {lines[name]}" if name in lines else str(path)

    # "Settings outside of a section, as in files of earlier versions, are refused" (docs/node.md):
    # ignoring them would start the node with defaults.
    _refuse_flat(document, source)
    found: dict[str, tuple[object, str]] = {}
    if HOSTING in document:
        where = source(HOSTING)
        found[HOSTING] = (read_policy(document.pop(HOSTING), where), where)
    for name, value in _settings_in(document, "", source):
        found[name] = (_typed(name, value, source(name)), source(name))
    return found


def _refuse_flat(document: Mapping[str, object], source: Callable[[str], str]) -> None:
    """Raise UsageError for settings outside of sections, naming the section of each."""
    flat = [
        name for name, value in document.items() if name != HOSTING and not isinstance(value, dict)
    ]
    if not flat:
        return
    known = [name for name in flat if name in _dotted()]
    if not known:
        raise _unknown(f"{source(flat[0])}: there is no setting {flat[0]!r}", flat[0], _dotted())
    moved = [
        f"{name} is {rest} in [{section}]"
        for name in known
        for section, _, rest in [_dotted()[name].rpartition(".")]
    ]
    raise UsageError(f"{source(flat[0])}: settings stand in sections: {'; '.join(moved)}")


def _settings_in(
    table: Mapping[str, Any], section: str, source: Callable[[str], str]
) -> Iterator[tuple[str, object]]:
    """Yield (dotted name, value) of the settings in a table. Raises: UsageError: one is unknown."""
    for name, value in table.items():
        dotted = f"{section}.{name}" if section else name
        if dotted in _kinds():
            yield dotted, value
        elif isinstance(value, dict) and any(one.startswith(f"{dotted}.") for one in _kinds()):
            yield from _settings_in(value, dotted, source)
        elif isinstance(value, dict):
            raise _unknown(f"{source(dotted)}: there is no section [{dotted}]", dotted, _sections())
        else:
            what = f"{source(dotted)}: there is no setting {name!r} in [{section}]"
            # A setting of another section, or the name of a `NodeConfig` field.
            right = [one for one in _kinds() if one.endswith(f".{name}")]
            right += [_dotted()[name]] if name in _dotted() else []
            if right:
                where, _, rest = right[0].rpartition(".")
                raise UsageError(f"{what}; it is {rest} in [{where}]")
            inside = [one.rpartition(".")[2] for one in _kinds() if one.startswith(f"{section}.")]
            raise _unknown(what, name, inside)


def _unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    return unknown_setting(what, name.lower().replace("-", "_"), known)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_BYTES_MAX + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    # A wrong path may name a huge file, which is not read to its end.
    if len(data) > SETTINGS_BYTES_MAX:
        raise UsageError(f"{path} is longer than a settings file's {SETTINGS_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text") from error


_HEADER: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_SETTING: Final = re.compile(r"\s*([\w.\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")


def _lines_of(text: str) -> dict[str, int]:
    """Return the line numbers of sections and settings, by their dotted names."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header, setting = _HEADER.match(line), _SETTING.match(line)
        if header is not None:
            section = re.sub(r"[\s\"']", "", header[1])
            name = section
        elif setting is not None:
            name = re.sub(r"[\s\"']", "", setting[1])
            name = f"{section}.{name}" if section else name
        else:
            continue
        # `doors.rest.listen = ...` is the first line of the sections `doors` and `doors.rest` too.
        while name:
            found.setdefault(name, number)
            name = name.rpartition(".")[0]
    return found


def _typed(name: str, value: object, source: str) -> object:
    """Return a value of the file with the type of its field. Raises: UsageError: it has another."""
    base = _base(_kinds()[name].type)
    if base is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    # TOML reads `time_s = 10` as an integer. `type`, because `isinstance` accepts true as one.
    if base is float and type(value) is int:
        return float(value)
    if base is Mapping and isinstance(value, dict):
        return value
    if base is not tuple and type(value) is base:
        return value
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    raise UsageError(f"{source}: {name} is {_WANTED[base]}, got {shown}")


def _variable(name: str) -> str:
    return VARIABLE_PREFIX + name.upper().replace(".", "_")


# --- the environment and the command line -------------------------------------------------------


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    # Variables with this prefix may be other programs': only similar names are refused.
    known = {_variable(name): name for name in _kinds()}
    moved = {_variable(field): _variable(dotted) for field, dotted in _dotted().items()}
    found: dict[str, tuple[object, str]] = {}
    for variable, text in environment.items():
        name = known.get(variable)
        if name is not None:
            found[name] = (_parsed(name, text, variable), variable)
        elif variable.startswith(VARIABLE_PREFIX):
            if variable in moved:
                raise UsageError(f"{variable} is {moved[variable]} now")
            # "An error only when it resembles one" (docs/node.md).
            near = difflib.get_close_matches(variable, known, 1, 0.9)
            if near:
                raise UsageError(f"{variable} sets nothing; did you mean {near[0]}?")
    return found


def _parsed(name: str, text: str, variable: str) -> object:
    base = _base(_kinds()[name].type)
    text = text.strip()
    try:
        # "In variables, lists have commas, and booleans are `true` and `false`" ... "In the
        # environment, tables are JSON." (docs/node.md "Configuration")
        if base is tuple:
            return tuple(text.replace(",", " ").split())
        if base is bool:
            return _TRUTHS[text.lower()]
        if base in (int, float):
            return base(text)
        if base is Mapping:
            return {**json.loads(text)}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{variable}: {name} is {_WANTED[base]}, got {text!r}") from error
    return text


def _from_call(given: Mapping[str, object]) -> dict[str, tuple[object, str]]:
    found: dict[str, tuple[object, str]] = {}
    for field, value in given.items():
        if field not in _dotted():
            raise _unknown(f"there is no setting {field!r}", field, _dotted())
        if value is not None:
            found[_dotted()[field]] = (tuple(value) if isinstance(value, list) else value, CALL)
    return found
