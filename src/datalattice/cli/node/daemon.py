"""Command `lattice daemon`: run a node that serves its users, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from datalattice.cli.command import ANY, Call, command
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


@command(None, "daemon", ANY)
def daemon(
    call: Call,
    port: PortOption = None,
    bind: BindOption = None,
    peer: PeerOption = None,
    rest: Annotated[
        str | None,
        typer.Option(
            "--rest", help="Serve REST there too, host:port; beyond this machine with TLS."
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            "--grpc", help="Serve gRPC there too, host:port; beyond this machine with TLS."
        ),
    ] = None,
    mcp: Annotated[
        str | None,
        typer.Option(
            "--mcp", help="Tools for language models at /mcp of REST: read, or all.", metavar=TOOLS
        ),
    ] = None,
    admin: Annotated[
        list[str] | None, typer.Option("--admin", help="A DID that may do everything. Repeatable.")
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    config: ConfigOption = None,
    attached: AttachedOption = False,
) -> None:
    """Run a node, and serve its users: REST and gRPC, on sockets in the folder.

    Other users of this machine cannot open the sockets. With --rest and --grpc callers show a
    token (`lattice key token`). Ends in order with Ctrl-C or SIGTERM.
    """
    given = {
        "port": port,
        "bind": bind,
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
        from datalattice.api import Doors
    except ImportError as error:
        raise UnsupportedOperation(
            f"the package {error.name} is not installed: pip install 'datalattice[doors]'"
        ) from error
    return Doors(folder, settings, identity, service)
