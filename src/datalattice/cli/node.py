"""Commands `lattice node ...`: run a node in a folder, ask how it is, take over what peers have."""

from __future__ import annotations

import contextlib
import json as json_module
import os
import signal
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from datalattice.cells import Map, Value
from datalattice.cli.folder import (
    DirOption,
    Folder,
    JsonOption,
    existing_folder,
    folder_of,
    read_key,
)
from datalattice.cli.render import (
    print_json,
    print_lines,
    print_notice,
    print_pairs,
    progress_bars,
    results,
    show,
    table,
)
from datalattice.cli.values import value_json
from datalattice.errors import PeerUnavailable, UsageError

app = typer.Typer(help="Run a node in a folder, ask how it is, take over what its peers have.")

SETTINGS_BYTES_MAX: Final = 64_000

STANDARD_INPUT: Final = 0

CONNECT_TIMEOUT_S: Final = 10.0
CONNECT_POLL_S: Final = 0.02

PeerOption = Annotated[
    list[str] | None,
    typer.Option("--peer", help="A node to stay connected to, host:port. May be repeated."),
]


def read_settings(folder: Folder) -> dict[str, object]:
    """Return what `node.json` says; nothing when there is none.

    Raises: UsageError: it is no JSON object, or has a setting that is not known.
    """
    path = folder.settings_path
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text") from error
    try:
        settings = json_module.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    known = {"port": (int, "a number"), "bind": (str, "a text"), "peers": (list, "a list of texts")}
    if not isinstance(settings, dict):
        raise UsageError(f"{path} is not a JSON object with {', '.join(known)}")
    for name, value in settings.items():
        if name not in known:
            raise UsageError(f"{path} has an unknown setting {name!r}; known: {', '.join(known)}")
        kind, wanted = known[name]
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (isinstance(value, list) and not all(isinstance(v, str) for v in value)):
            raise UsageError(f"{path}: {name} is {wanted}, got {json_module.dumps(value)}")
    return settings


@app.command("start")
def start(
    port: Annotated[
        int | None,
        typer.Option(
            "--port", "-p", help="Port to listen at; 0: any free one. Default: 18888 or any free."
        ),
    ] = None,
    bind: Annotated[
        str | None, typer.Option("--bind", help="Local address to listen at. Default: 127.0.0.1.")
    ] = None,
    peer: PeerOption = None,
    attached: Annotated[
        bool,
        typer.Option(
            "--attached",
            help="End when standard input ends: for a program that must not leave its node behind.",
        ),
    ] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Run a node in the foreground until Ctrl-C or SIGTERM.

    What is not given comes from `node.json` in the folder: {"port", "bind", "peers"}. Prints where
    it listens once it serves.
    """
    from datalattice.node import Daemon, Node, NodeConfig, Running, running

    folder = folder_of(dir)
    other = running(folder.path)
    if other is not None:
        raise UsageError(
            f"a node runs in {folder.path} already: process {other.pid} at {other.address}"
        )
    settings = read_settings(folder)
    found_port = settings.get("port") if port is None else port
    peers = peer or settings.get("peers") or []
    assert isinstance(peers, list)
    config = NodeConfig(
        port=found_port if isinstance(found_port, int) else None,
        bind=bind or str(settings.get("bind", "127.0.0.1")),
        peers=tuple(str(one) for one in peers),
    )
    key_pair = read_key(folder.key_path) if folder.key_path.exists() else None
    opening = ExitStack()

    def ready(running: Running, node: Node) -> None:
        opening.close()
        if key_pair is None:
            print_notice(f"no key at {folder.key_path}; the node follows others but writes nothing")
        for damage in node.damage:
            print_notice(f"{damage}; what was there is missing")
        document = {
            "address": running.address,
            "pid": running.pid,
            "public_key": running.public_key,
            "root_hash": node.root_hash.hex(),
        }
        show(json, document, lambda: print_lines([f"listening at {running.address}"]))
        sys.stdout.flush()  # whoever started this process waits for the line

    if attached:
        threading.Thread(target=_end_with_input, name="attached", daemon=True).start()
    daemon = Daemon(folder.path, config, key_pair=key_pair, ready=ready)
    with opening:
        bars = opening.enter_context(progress_bars(quiet=json, transient=True))
        bars.add(f"open {folder.store_path}")
        daemon.run()


def _end_with_input() -> None:
    """End this process in order when nobody holds the other end of its standard input any more."""
    # One that was never there has ended, too.
    with contextlib.suppress(OSError):
        while os.read(STANDARD_INPUT, 1_024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


@app.command("status")
def status(
    address: Annotated[
        str | None,
        typer.Argument(
            help="A node's host:port. Default: the node of this folder.", show_default=False
        ),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print how a node is: the one of this folder, or any one by its address."""
    if address is not None:
        from datalattice.node import probe

        report = probe(address)
        document: dict[str, object] = {
            "address": report.address,
            "root_hash": report.root_hash.hex(),
            "round_trip_ms": round(report.round_trip_ms, 3),
            "reply": value_json(report.reply),
        }
        show(json, document, lambda: print_pairs(document))
        return
    folder = existing_folder(dir)
    found = _status_of(folder)
    if json:
        print_json(found)
        return
    peers = found.pop("peers", [])
    counters = found.pop("counters", {})
    damage = found.pop("damage", [])
    started_ms = found.pop("started_ms", None)
    if isinstance(started_ms, int):
        started = datetime.fromtimestamp(started_ms / 1_000, UTC)
        found["started"] = started.isoformat(" ", "seconds")
    print_pairs({name: _plain(value) for name, value in found.items()})
    if isinstance(damage, list):
        print_lines(f"damaged: {one}" for one in damage)
    if isinstance(counters, dict) and counters:
        print_pairs({f"  {name}": count for name, count in sorted(counters.items())})
    if isinstance(peers, list) and peers:
        rows = [(one["address"], one["connected"], one["reason"] or "") for one in peers]
        results().print(table(("peer", "connected", "state"), rows))


def _plain(value: object) -> object:
    """Return a value for people: numbers here are names (of a process), not amounts."""
    return str(value) if type(value) is int else "none" if value is None else value


def _status_of(folder: Folder) -> dict[str, object]:
    from datalattice.node import connect

    client = connect(folder.path)
    if client is not None:
        with client:
            document = value_json(client.call("node.status"))
        assert isinstance(document, dict)
        return {"running": True, **document}
    from datalattice.cli.access import open_reader
    from datalattice.lattice import replicable

    with open_reader(folder) as store:
        root = replicable(store.root())
        return {
            "running": False,
            "root_hash": _hash_text(root),
            "damage": [str(one) for one in store.damage],
        }


def _hash_text(root: Value) -> str:
    from datalattice.cells import value_hash

    return value_hash(root).hex()


@app.command("pull")
def pull(
    address: Annotated[
        str | None,
        typer.Argument(help="A node's host:port. Default: every peer of the running node."),
    ] = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Take over all that a node has; on disk when this returns.

    Works through the running node of the folder, or without one: then the folder's store is
    brought up to date and closed again.
    """
    from datalattice.node import connect

    folder = folder_of(dir)
    address = None if address is None else address.removeprefix("tcp://")
    client = connect(folder.path)
    with progress_bars(quiet=json) as bars:
        bar = bars.add(f"pull {address or 'from all peers'}")
        if client is not None:
            with client:
                root_hash = _pull_through(client, address)
        else:
            root_hash = _pull_alone(folder, address)
        bar.to(1, 1)
    document = {"address": address, "root_hash": root_hash}
    show(json, document, lambda: print_lines([f"root {root_hash}"]))


def _pull_through(client: object, address: str | None) -> str:
    from datalattice.node import ControlClient

    assert isinstance(client, ControlClient)
    if address is not None:
        known = client.call("node.status")
        assert isinstance(known, Map)
        listed = value_json(known.get("peers"))
        assert isinstance(listed, list)
        if not any(one["address"] == address for one in listed):
            raise UsageError(
                f"the running node has no peer {address}; start it with --peer {address}"
            )
    found = client.call("node.pull", address=address)
    if not isinstance(found, bytes):
        raise PeerUnavailable("the running node did not say what it pulled")
    return found.hex()


def _pull_alone(folder: Folder, address: str | None) -> str:
    import asyncio

    from datalattice.node import open_node, probe

    if address is None:
        raise UsageError("no node runs in this folder; name the node to pull from: host:port")
    key_pair = read_key(folder.key_path) if folder.key_path.exists() else None

    probe(address)  # somebody answers there; else this says so at once

    async def work() -> str:
        node = open_node(folder.store_path, key_pair=key_pair, port=-1, peers=[address])
        async with node:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while not any(peer.connected for peer in node.peers):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(CONNECT_POLL_S)
            await node.pull(address)
            return node.root_hash.hex()

    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        return asyncio.run(work())
    except TimeoutError as error:
        raise PeerUnavailable(f"{address} answers but takes no connection") from error
