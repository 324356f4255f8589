"""Command `lattice mcp`: tools of a language model for a folder, through a pipe."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from datalattice.cli.command import FOLDER, Call, command
from datalattice.client import open as open_node
from datalattice.errors import UnsupportedOperation, UsageError
from datalattice.service import OPERATOR, Service


@command(None, "mcp", FOLDER)
def mcp(
    call: Call,
    tools: Annotated[
        str,
        typer.Option("--tools", help="Rights of the model: read, or all.", metavar="read|all"),
    ] = "read",
) -> None:
    """Give a language model tools for the folder, over standard input and output.

    A program with a model starts this command; a node may be running. It ends with its input.
    """
    if tools not in ("read", "all"):
        raise UsageError(f"--tools is read or all, got {tools!r:.80}")
    # `filled`, so that a misspelled `--dir` is an error and does not become a folder.
    folder = call.filled
    try:
        from datalattice.api.mcp import McpTools, serve_stdio
    except ImportError as error:
        raise UnsupportedOperation(
            f"the package {error.name} is not installed: pip install 'datalattice[mcp]'"
        ) from error
    chosen: Any = tools
    # Who may start a process of this user may read and write the folder, so no token is asked for.
    with open_node(folder.path) as node:
        asyncio.run(serve_stdio(McpTools(Service(node), chosen), OPERATOR))
