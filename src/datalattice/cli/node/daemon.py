"""Command `lattice daemon`: run a node that also serves its users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.node.commands import (
    AttachedOption,
    BindOption,
    ConfigOption,
    LogFormatOption,
    LogLevelOption,
    PeerOption,
    PortOption,
    run_node,
)
from datalattice.crypto import KeyPair
from datalattice.errors import UnsupportedOperation

if TYPE_CHECKING:
    from datalattice.api import Doors
    from datalattice.client.settings import NodeConfig
    from datalattice.service import FolderService


TOOLS: Final = "read|all"


@command(None, "daemon", FOLDER)
def daemon(
    call: Call,
    port: PortOption = None,
    bind: BindOption = None,
    peer: PeerOption = None,
    rest: Annotated[
        str | None,
        typer.Option(
            "--rest", help="Also serve REST at host:port; with TLS if others can reach it."
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            "--grpc", help="Also serve gRPC at host:port; with TLS if others can reach it."
        ),
    ] = None,
    mcp: Annotated[
        str | None,
        typer.Option(
            "--mcp", help="Tools for language models at /mcp of REST: read, or all.", metavar=TOOLS
        ),
    ] = None,
    admin: Annotated[
        list[str] | None, typer.Option("--admin", help="A DID with all rights. Repeatable.")
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    config: ConfigOption = None,
    attached: AttachedOption = False,
) -> None:
    """Run a node that also serves its users, by REST and gRPC on sockets in the folder.

    Other users of this machine cannot open the sockets. At the addresses of --rest and --grpc
    callers show a token (`lattice key token`). Ctrl-C or SIGTERM ends it.
    """
    given = {
        "port": port,
        "bind": bind,
        # An empty list would replace the peers of node.toml; None means that the option is absent.
        "peers": peer or None,
        "rest": rest,
        "grpc": grpc,
        "mcp": mcp,
        "admins": admin or None,
        "log_level": log_level,
        "log_format": log_format,
    }
    run_node(call, given, config, attached=attached, doors=doors_of)


def doors_of(
    folder: Path, settings: NodeConfig, identity: KeyPair, service: FolderService
) -> Doors:
    """Return the doors of a daemon. Raises: UnsupportedOperation: a package is not installed."""
    try:
        # Imported here: a node without doors needs none of their packages.
        from datalattice.api import Doors
    except ImportError as error:
        raise UnsupportedOperation(
            f"the package {error.name} is not installed: pip install 'datalattice[doors]'"
        ) from error
    return Doors(folder, settings, identity, service)
