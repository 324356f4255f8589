"""Offline: the option of commands that write for an owner, to write without having asked a peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from datalattice import home

GROUP: Final = ""
"""Stands for the commands that are in no group."""

WRITERS: Final[Mapping[str, str]] = {
    GROUP: "put",
    "kv": "set del expire persist hset hdel sadd srem zadd zrem push pop incr gc",
    "queue": "offer truncate",
    "fs": "mkdir rm mv cp put sync",
    "venue": "register upload",
    "forks": "resolve",
    "store": "heal",
}
"""The commands that write for owners, by group."""


def _chosen(context: typer.Context, value: bool) -> None:
    """Have the command that is about to run work so, until it has ended."""
    context.with_resource(home.offline(value))


OfflineOption = Annotated[
    bool,
    typer.Option(
        "--offline",
        callback=_chosen,
        expose_value=False,
        help="Without a node: write without having asked the peers in node.toml.",
    ),
]


def _carrier(_offline: OfflineOption = False) -> None:
    """Carry the option, which typer makes from the parameter of a command."""


def add_offline(commands: TyperGroup) -> TyperGroup:
    """Give every command that writes for owners the option `--offline`."""
    app = typer.Typer(add_completion=False)
    app.command()(_carrier)
    (option,) = get_command(app).params
    for group, names in WRITERS.items():
        found = commands if group == GROUP else commands.commands[group]
        assert isinstance(found, TyperGroup)
        for name in names.split():
            found.commands[name].params.append(option)
    return commands
