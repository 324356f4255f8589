"""Offline: the option of commands that write for an owner, to write without having asked a peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

OFFLINE_COMMANDS: Final[Mapping[str, str]] = {
    "db": "set del expire persist hset hdel sadd srem zadd zrem push pop incr gc",
    "queue": "offer truncate",
    "fs": "mkdir rm mv cp put sync",
    "venue": "register upload",
    "forks": "resolve",
    "disk": "heal",
}
"""The commands of groups that write for owners. `lattice put` does, too."""


def _chosen(context: typer.Context, value: bool) -> None:
    """Have the command that is about to run work so, until it has ended."""
    from datalattice.client import offline

    context.with_resource(offline(value))


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


def offline_option() -> Any:
    """Return the option `--offline` as typer runs it."""
    app = typer.Typer(add_completion=False)
    app.command()(_carrier)
    (option,) = get_command(app).params
    return option
