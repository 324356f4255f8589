"""Commands `lattice node ...`: run a node in a folder, show its state, pull peers' data.

Length: one function for each command, and the options that they share.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.actions import DrainNode, GetNodeHealth, PullPeers, ReloadSettings, StopNode
from datalattice.cells import Value
from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.node import peers as peers_commands
from datalattice.cli.node.peers import health_document, peers_listing
from datalattice.cli.node.watch import watch_node
from datalattice.cli.render import (
    CommandResult,
    Listing,
    pair_lines,
    print_notice,
    progress_bars,
    show,
)
from datalattice.cli.units import duration_s, duration_text, moment_text, size_text
from datalattice.cli.values import value_json
from datalattice.client import (
    Folder,
    open_store_reader,
    read_key,
    read_key_pairs,
    read_keys_or_none,
    take_turn,
    write_key,
)
from datalattice.crypto import KeyPair
from datalattice.errors import (
    AlreadyExists,
    PeerUnavailable,
    StoreLocked,
    UsageError,
)
from datalattice.store import RealDisk

if TYPE_CHECKING:
    from datalattice.client import ControlClient, Running
    from datalattice.client.settings import NodeConfig, Settings
    from datalattice.node import Beside, NodeServer
    from datalattice.service import FolderService

app = typer.Typer(help="Run a node in a folder, show its state, and pull its peers' data.")

app.add_typer(peers_commands.app, name="peers")
command(app, "watch", FOLDER)(watch_node)
command(app, "ticket", FOLDER)(peers_commands.ticket)

STANDARD_INPUT: Final = 0

STATUS_FIRST: Final = ("running", "health", "address", "root_hash", "public_key", "connections")
"""First fields of a status; the others follow by name."""

LOCK_NAME: Final = "lock"
"""The file of a store that its writer locks."""

COLLECTOR_STEPS: Final = (2_000, 20, 20)
"""Thresholds of Python's cyclic collector: a full pass, which stops all callers, comes after
800,000 new objects at the earliest."""

_WRITER_WAIT_S: Final = 10.0  # longer than any single commit takes
"""Longest wait of a starting node for a command that writes to its folder."""

STOP_WAIT: Final = "30s"  # a large store takes seconds to close
"""Default wait of `node stop` for the node's end."""

CONNECT_TIMEOUT_S: Final = 10.0
CONNECT_POLL_S: Final = 0.02

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="File of settings. Default: node.toml in the node's folder."),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port", "-p", help="Port to listen at; 0: any free one. Default: 18888 or any free."
    ),
]
BindOption = Annotated[
    str | None, typer.Option("--bind", help="Local address to listen at. Default: 127.0.0.1.")
]
IrohOption = Annotated[
    str | None,
    typer.Option(
        "--iroh",
        metavar="MODE",
        help="Listen over iroh (QUIC) too: off, direct, or relay. Default: off.",
    ),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option("--http-port", help="Port for /metrics and /health; 0: any free port."),
]
LogLevelOption = Annotated[
    str | None,
    typer.Option("--log-level", help="debug, info, warning or error. Default: warning."),
]
LogFormatOption = Annotated[
    str | None, typer.Option("--log-format", help="text or json. Default: text.")
]
UnfencedOption = Annotated[
    bool | None,
    typer.Option(
        "--accept-unfenced",
        help="Write to a copied or restored folder without asking peers for later writes.",
        show_default=False,
    ),
]
AttachedOption = Annotated[
    bool,
    typer.Option(
        "--attached",
        help="End when standard input ends, for a program that starts the node and may crash.",
    ),
]
PeerOption = Annotated[
    list[str] | None,
    typer.Option("--peer", help="A node to stay connected to, host:port or ticket. Repeatable."),
]


def settings_of(
    folder: Folder, file: Path | None = None, given: Mapping[str, object] | None = None
) -> Settings:
    """Return the settings in effect for the node of a folder.

    Raises: UsageError: a setting is wrong, or `file` does not exist.
    """
    from datalattice.client.settings import load_settings

    # Only the default file is optional.
    if file is not None and not file.is_file():
        raise UsageError(f"there is no settings file {file}")
    return load_settings(file or folder.settings_path, os.environ, given or {})


@command(app, "start", FOLDER)
def start(
    call: Call,
    port: PortOption = None,
    bind: BindOption = None,
    iroh: IrohOption = None,
    peer: PeerOption = None,
    http_port: HttpPortOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    config: ConfigOption = None,
    accept_unfenced: UnfencedOption = None,
    attached: AttachedOption = False,
) -> None:
    """Run a node in the foreground until Ctrl-C or SIGTERM.

    Settings without an option come from the environment (LATTICE_NODE_PORT and so on), then from
    `node.toml` in the folder; `lattice node config` shows all settings. Makes a key if the folder
    has none. Prints its addresses once it serves.
    """
    given = {
        "port": port,
        "bind": bind,
        "iroh": iroh,
        "peers": peer or None,
        "http_port": http_port,
        "log_level": log_level,
        "log_format": log_format,
        "accept_unfenced": accept_unfenced,
    }
    run_node(call, given, config, attached=attached)


def run_node(
    call: Call,
    given: Mapping[str, object],
    config: Path | None,
    *,
    attached: bool,
    doors: Callable[[Path, NodeConfig, KeyPair, FolderService], Beside] | None = None,
) -> None:
    """Run a node until a signal ends it. doors: makes the doors for its users."""
    from datalattice.client import check_format, running
    from datalattice.node import Daemon
    from datalattice.service import FolderService

    folder = call.folder
    # Only to name the process: the lock of the store is what "keeps a second node out"
    # (docs/node.md).
    other = running(folder.path)
    if other is not None:
        raise UsageError(
            f"a node runs in {folder.path} already: process {other.pid} at {other.address}"
        )

    def load() -> NodeConfig:
        return settings_of(folder, config, given).config

    check_format(folder.path)  # first: nothing is added to a folder of a newer format
    settings = load()  # wrong settings are an error before anything is made
    _wait_for_writer(folder)
    is_new = _make_key(folder)
    keys = read_key_pairs(folder)
    opening = ExitStack()
    service = FolderService(folder.path, keys.identity, settings)

    def ready(running: Running, node: NodeServer) -> None:
        opening.close()  # removes the progress bar before the lines are printed
        collect_seldom()
        if is_new:
            print_notice(f"made the key {keys.identity.public_key.hex()} in {folder.path}")
        show(_ready(running, node))
        sys.stdout.flush()  # a program that started this process waits for the lines

    daemon = Daemon(
        folder.path,
        settings,
        identity=keys.identity,
        keys=keys.in_order(),
        ready=ready,
        reload=load,
        service=service,
        # SIGHUP reloads the settings; but a closing terminal sends it too, to end the node.
        hangup=not sys.stdin.isatty(),
        beside=None if doors is None else doors(folder.path, settings, keys.identity, service),
    )
    if attached:
        work = functools.partial(_end_with_input, daemon.stop)
        # A daemon thread, so that it does not keep the process alive.
        threading.Thread(target=work, name="attached", daemon=True).start()
    with opening:
        bars = opening.enter_context(progress_bars(transient=True))
        bars.add(f"open {folder.store_path}")
        daemon.run()


def collect_seldom() -> None:
    """Exclude objects of a started node from Python's garbage collections, and make these rarer."""
    gc.collect()  # `freeze` would keep present garbage for ever
    gc.freeze()
    gc.set_threshold(*COLLECTOR_STEPS)


@command(app, "init", FOLDER)
def init(
    call: Call,
    port: PortOption = None,
    bind: BindOption = None,
    peer: PeerOption = None,
    http_port: HttpPortOption = None,
) -> CommandResult:
    """Write `node.toml` with the given settings and all defaults; make a key where one is missing.

    An existing file is never replaced.
    """
    from datalattice.client.settings import settings_text

    folder = call.folder
    path = folder.settings_path
    given = {"port": port, "bind": bind, "peers": peer or None, "http_port": http_port}
    text = settings_text(given)  # raises for a wrong setting
    if path.exists():
        raise AlreadyExists(f"{path} exists; edit it, or delete it first")
    RealDisk().create_folder(str(folder.path))
    _make_key(folder)
    with path.open("x", encoding="utf-8") as file:  # "x": refuses a file made meanwhile
        file.write(text)
    document = {
        "settings": str(path),
        "public_key": read_key(folder.identity_path).public_key.hex(),
    }
    return CommandResult(document)


@command(app, "reload", FOLDER)
def reload(call: Call) -> CommandResult:
    """Make the running node read its settings, access rules and door certificates again.

    Prints the changed settings that take effect at the next start. If one is wrong, none changes.
    """
    waiting = list(call.node().call(ReloadSettings()).waiting)
    lines = [f"{name} changes with the next start" for name in waiting] or ["all are in force"]
    return CommandResult({"waiting": waiting}, lines)


@command(app, "stop", FOLDER)
def stop(
    call: Call,
    wait: Annotated[str, typer.Option("--wait", help="Longest wait for its end.")] = STOP_WAIT,
) -> CommandResult:
    """End the running node of the folder; its store is closed when this returns."""
    folder, wait_s = call.folder, duration_s(wait)
    client = call.node("there is nothing to stop")
    # Asked before the stop, because a node that has ended answers no question.
    found = health_document(client)
    client.call(StopNode())
    # A node keeps its store's lock to its end, so taking the lock proves that the node has ended.
    take_turn(str(folder.store_path / LOCK_NAME), wait_s, "stopping node").release()
    document = {"pid": found["pid"], "root_hash": found["root_hash"]}
    return CommandResult(document, [f"process {found['pid']} has ended"])


@command(app, "drain", FOLDER)
def drain(call: Call) -> CommandResult:
    """Close the doors of the running daemon; the node stays connected to its peers.

    Running requests get `limits.drain_s` to finish. The health is draining until
    `lattice node stop`.
    """
    client = call.node("there is nothing to drain")
    client.call(DrainNode())
    return CommandResult({"health": client.call(GetNodeHealth()).health})


def _make_key(folder: Folder) -> bool:
    """Make the key of a folder that has none; return whether this process made it."""
    # Made before the start, because a running node reads no new key.
    if read_keys_or_none(folder) is None:
        with contextlib.suppress(AlreadyExists):  # another first start made one meanwhile
            write_key(folder.identity_path, KeyPair.generate())
            return True
    return False


def _wait_for_writer(folder: Folder) -> None:
    """Wait for a command that is writing to the store."""
    lock = folder.store_path / LOCK_NAME
    if lock.exists():
        with contextlib.suppress(StoreLocked):  # opening the store raises it, and names the process
            take_turn(str(lock), _WRITER_WAIT_S, "writer").release()


def _ready(running: Running, node: NodeServer) -> CommandResult:
    """Return the addresses of a node that serves, for printing."""
    for damage in node.damage:
        print_notice(f"{damage}; its cells are missing")
    document = {
        "address": running.address,
        "doors": running.doors,
        "http": running.http,
        "pid": running.pid,
        "public_key": running.public_key,
        "root_hash": node.root_hash.hex(),
    }
    lines = [f"listening at {running.address}" if running.address else "listening at no port"]
    if running.http is not None:
        lines.append(f"health and metrics at http://{running.http}")
    lines += [f"{name} at {where}" for name, where in (running.doors or {}).items()]
    return CommandResult(document, lines)


def _end_with_input(stop: Callable[[], bool]) -> None:
    """Stop the node of this process when standard input ends."""
    with contextlib.suppress(OSError):  # standard input was never open: it counts as ended
        while os.read(STANDARD_INPUT, 1_024):
            pass
    if not stop():
        os.kill(os.getpid(), signal.SIGTERM)  # the node does not serve yet: end its start


@command(app, "config", FOLDER)
def config(call: Call, config: ConfigOption = None) -> CommandResult:
    """Print the settings of the node, and the source of each.

    The options of `node start` win over the environment, the environment over the file, and the
    file over the default. The variable of node.port is LATTICE_NODE_PORT; lists in variables are
    separated by commas.
    """
    found = settings_of(call.folder, config).document()
    rows = [(name, _setting_text(one["value"]), one["source"]) for name, one in found.items()]
    return CommandResult(found, [Listing(("setting", "value", "from"), rows)])


def _setting_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


@command(app, "status", FOLDER)
def status(
    call: Call,
    address: Annotated[
        str | None,
        typer.Argument(
            help="A node's host:port. Default: the node of this folder.", show_default=False
        ),
    ] = None,
) -> CommandResult:
    """Print the state of the node of this folder, or of any node by its address."""
    if address is not None:
        from datalattice.client.network import probe

        # "uses a new key for the one connection" (docs/cli.md "Commands"): any node may be asked,
        # and no node learns who asked.
        report = probe(address)
        document: dict[str, object] = {
            "address": report.address,
            "root_hash": report.root_hash.hex(),
            "round_trip_ms": round(report.round_trip_ms, 3),
            "reply": value_json(report.reply),
        }
        return CommandResult(document)
    found = _status_of(call.existing)
    return CommandResult(found, _status_lines(dict(found)))


def _status_lines(found: dict[str, Any]) -> Iterator[str | Listing]:
    peers, guests, counters, damage, reasons, over_quota = (
        found.pop(name, None)
        for name in ("peers", "guests", "counters", "damage", "reasons", "over_quota")
    )
    found.pop("sections", None)  # hashes, used by `watch`
    if reasons:
        found["health"] = "degraded"  # its reasons are printed below
    yield from pair_lines(
        {name.removesuffix("_ms"): _shown(name, value) for name, value in found.items()}
    )
    yield from (f"damaged: {one}" for one in damage or ())
    yield from (f"over quota: {one}" for one in over_quota or ())
    yield from (f"degraded ({key}): {text}" for key, text in (reasons or {}).items())
    yield from pair_lines({f"  {name}": count for name, count in sorted((counters or {}).items())})
    if peers or guests:
        yield peers_listing([*(peers or ()), *(guests or ())])


def _shown(name: str, value: object) -> object:
    """Return a value for people: numbers as sizes, times or plain digits, by the field's name."""
    if type(value) is not int:
        return "none" if value is None else value
    if name == "started_ms":
        return moment_text(value)
    if name.endswith("_ms"):
        return duration_text(value)
    return size_text(value) if name.startswith("bytes") or name.endswith("bytes") else str(value)


def _status_of(folder: Folder) -> dict[str, Any]:
    from datalattice.client import connect

    client = connect(folder.path)
    if client is not None:
        with client:
            found = {"running": True, **health_document(client)}
        names = [name for name in STATUS_FIRST if name in found]
        return {name: found[name] for name in names + sorted(found.keys() - names)}
    from datalattice.lattice import replicable

    with open_store_reader(folder) as store:
        root = replicable(store.root())  # the announced value, which peers compare
        return {
            "running": False,
            "root_hash": _hash_text(root),
            "damage": [str(one) for one in store.damage],
        }


def _hash_text(root: Value) -> str:
    from datalattice.cells import value_hash

    return value_hash(root).hex()


@command(app, "pull", FOLDER)
def pull(
    call: Call,
    address: Annotated[
        str | None,
        typer.Argument(help="A node's host:port. Default: every peer of the running node."),
    ] = None,
) -> CommandResult:
    """Fetch and merge all data of a node; it is on disk when this returns.

    Works through the running node of the folder, or without one: then the folder's store is
    brought up to date and closed again.
    """
    from datalattice.client import connect, parse_address

    folder = call.folder
    # In the spelling in which the running node lists its peers.
    address = None if address is None else str(parse_address(address))
    client = connect(folder.path)
    bar = call.bar(f"pull {address or 'from all peers'}")
    if client is not None:
        with client:
            root_hash = _pull_through(client, address)
    else:
        root_hash = _pull_alone(folder, address)
    bar.to(1, 1)
    return CommandResult({"address": address, "root_hash": root_hash}, [f"root {root_hash}"])


def _pull_through(client: ControlClient, address: str | None) -> str:
    # A pull asks only connected peers.
    if address is not None and not any(
        one.address == address for one in client.call(GetNodeHealth()).peers
    ):
        raise UsageError(
            f"the running node has no peer {address}; "
            f"add it with `lattice node peers add {address}`"
        )
    return client.call(PullPeers(address=address)).root_hash.hex()


def _pull_alone(folder: Folder, address: str | None) -> str:
    import asyncio

    from datalattice.client.network import probe
    from datalattice.node import open_node

    if address is None:
        raise UsageError("no node runs in this folder; name the node to pull from: host:port")
    keys = read_keys_or_none(folder)
    identity = None if keys is None else keys.identity
    owners = () if keys is None else keys.in_order()

    # Raises at once if no node answers there, before the store is opened. "prove the folder's own
    # key, so that a node which admits only some keys (`allow`) can serve them" (docs/cli.md).
    probe(address, key_pair=identity)

    async def work() -> str:
        node = open_node(
            folder.store_path,
            identity=identity,
            keys=owners,
            port=-1,  # it does not listen
            peers=[address],
        )
        async with node:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while not any(peer.connected for peer in node.peers):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(CONNECT_POLL_S)
            await node.pull(address)
            return node.root_hash.hex()

    RealDisk().create_folder(str(folder.path))
    try:
        return asyncio.run(work())
    except TimeoutError as error:
        raise PeerUnavailable(f"{address} answers but accepts no connection") from error
