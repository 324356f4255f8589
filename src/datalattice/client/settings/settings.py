"""Settings: where the fields of a `NodeConfig` come from when a node is a process of its own.

The command line comes first, then the environment (`LATTICE_PORT`), then the file (`node.toml`, a
TOML document), then the default. A setting has the name of its field. Errors name the source, what
is wrong, and what is accepted. The table `[hosting]` exists in the file only.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from datalattice.client.folder import VARIABLE_PREFIX
from datalattice.client.settings.config import DoorConfig, NodeConfig
from datalattice.client.settings.policyfile import policy_document, read_policy, unknown_setting
from datalattice.errors import UsageError
from datalattice.sync import HostingPolicy

SETTINGS_NAME: Final = "node.toml"
SETTINGS_BYTES_MAX: Final = 64_000

HOSTING: Final = "hosting"
DOORS: Final = ("rest", "grpc")
DEFAULT_SOURCE: Final = "default"

_TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """A node's configuration, and the source of each of its fields."""

    config: NodeConfig
    sources: dict[str, str]

    def document(self) -> dict[str, dict[str, object]]:
        """Return every setting with its value and source, as JSON values."""
        return {
            name: {"value": _plain(getattr(self.config, name)), "source": source}
            for name, source in self.sources.items()
        }


def load_settings(
    file: Path, environment: Mapping[str, str], given: Mapping[str, object]
) -> Settings:
    """Return the settings in effect.

    file:  may be missing.
    given: those of the command line; None for a setting that was not given.
    Raises: UsageError: a setting is unknown, of the wrong type, or out of range.
    """
    chosen: dict[str, object] = {}
    names = [field.name for field in dataclasses.fields(NodeConfig)]
    sources = dict.fromkeys(names, DEFAULT_SOURCE)
    layers = (_from_file(file), _from_environment(environment), _from_call(given))
    for layer in layers:
        for name, (value, source) in layer.items():
            _check_alone(name, value, source)
            # Later layers win: "the command line comes first, then the environment, then the file".
            chosen[name] = value
            sources[name] = source
    return Settings(_config(chosen), sources)


def settings_text(given: Mapping[str, object]) -> str:
    """Return a settings file: the given ones, and all others as comments with their defaults.

    Raises: UsageError: a given one is unknown, of the wrong type, or out of range.
    """
    defaults = NodeConfig()
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in _from_call(chosen).items():
        if name not in _kinds():
            raise _unknown(name, f"there is no setting {name!r}")
        _check_alone(name, *value)
    lines = ["# Settings of this node. A line without # in front replaces the default.", ""]
    for name in _kinds():
        default = _plain(getattr(defaults, name))
        if name in chosen:
            lines.append(f"{name} = {json.dumps(chosen[name])}")
        elif default is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(f"# {name} = {json.dumps(default)}")
    return "\n".join(lines) + "\n"


def _check_alone(name: str, value: object, source: str) -> None:
    """Check one setting alone, so that the error can name its source."""
    try:
        _config({name: value})
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def _config(chosen: Mapping[str, object]) -> NodeConfig:
    made = {
        name: DoorConfig(value) if name in DOORS and isinstance(value, str) else value
        for name, value in chosen.items()
    }
    return NodeConfig(**made)  # type: ignore[arg-type]


# --- kinds of settings --------------------------------------------------------------------------


@functools.cache
def _kinds() -> dict[str, Any]:
    """Return the type of each field of a NodeConfig, by name: the config itself is the schema."""
    hints = typing.get_type_hints(NodeConfig)
    names = [field.name for field in dataclasses.fields(NodeConfig)]
    hints |= dict.fromkeys(DOORS, str | None)
    return {name: hints[name] for name in names if name != HOSTING}


def _base(kind: Any) -> type:
    """Return the type of values that a field takes, apart from None."""
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
}


def _unknown(name: str, what: str) -> UsageError:
    return unknown_setting(what, name.lower().replace("-", "_"), _kinds())


def _plain(value: object) -> object:
    if isinstance(value, HostingPolicy):
        return policy_document(value)
    if isinstance(value, DoorConfig):
        return value.listen
    return list(value) if isinstance(value, tuple) else value


# --- the file -----------------------------------------------------------------------------------


def _from_file(path: Path) -> dict[str, tuple[object, str]]:
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    found: dict[str, tuple[object, str]] = {}
    for name, value in document.items():
        source = f"{path}{_line_of(text, name)}"
        if name == HOSTING:
            found[name] = (read_policy(value, source), source)
            continue
        # `[hosting]` is the only table; another one would be passed over in silence.
        if isinstance(value, dict):
            raise UsageError(f"{source}: {name!r} is a table; settings stand alone: `port = 18888`")
        if name not in _kinds():
            raise _unknown(name, f"{source}: there is no setting {name!r}")
        found[name] = (_typed(name, value, source), source)
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_BYTES_MAX + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    # A wrong path may name any file; it is not read to its end.
    if len(data) > SETTINGS_BYTES_MAX:
        raise UsageError(f"{path} is longer than {SETTINGS_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text") from error


def _line_of(text: str, name: str) -> str:
    """Return ` line N` for the line that sets `name`; empty if it is not found."""
    pattern = re.compile(rf"\s*(\[\s*)?[\"']?{re.escape(name)}[\"']?\s*[=.\]]")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return f" line {number}"
    return ""


def _typed(name: str, value: object, source: str) -> object:
    """Return a value of the file with the type of its field."""
    base = _base(_kinds()[name])
    if base is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if base is float and type(value) is int:
        return float(value)
    if base is not tuple and type(value) is base:
        return value
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    raise UsageError(f"{source}: {name} is {_WANTED[base]}, got {shown}")


# --- the environment and the command line -------------------------------------------------------


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    # Other programs may have variables with this prefix: only near misses are refused.
    known = {VARIABLE_PREFIX + name.upper(): name for name in _kinds()}
    found: dict[str, tuple[object, str]] = {}
    for variable, text in environment.items():
        name = known.get(variable)
        if name is not None:
            found[name] = (_parsed(name, text, variable), variable)
        elif variable.startswith(VARIABLE_PREFIX):
            near = difflib.get_close_matches(variable, known, 1, 0.9)
            if near:
                raise UsageError(f"{variable} sets nothing; did you mean {near[0]}?")
    return found


def _parsed(name: str, text: str, variable: str) -> object:
    base = _base(_kinds()[name])
    text = text.strip()
    try:
        if base is tuple:
            return tuple(text.replace(",", " ").split())
        if base is bool:
            return _TRUTHS[text.lower()]
        if base in (int, float):
            return base(text)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{variable}: {name} is {_WANTED[base]}, got {text!r}") from error
    return text


def _from_call(given: Mapping[str, object]) -> dict[str, tuple[object, str]]:
    return {
        name: (tuple(value) if isinstance(value, list) else value, "the command line")
        for name, value in given.items()
        if value is not None
    }
