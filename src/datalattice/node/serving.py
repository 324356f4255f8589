"""Serve: runs a node in a thread of this process, and opens its folder as a `Node`.

with serve("north") as north, serve("south", peers=[north.address]) as south:
    north.queue("log").offer("cold")
    south.wait_equal()
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager

from datalattice.client import Folder, Node, Running, folder_of, keys_of, open
from datalattice.client.settings import load_settings
from datalattice.crypto import KeyPair
from datalattice.errors import StoreFailed
from datalattice.node.daemon import Daemon
from datalattice.node.server import NodeServer


def serve(
    path: str | os.PathLike[str] | None = None,
    *,
    key: str | os.PathLike[str] | KeyPair | None = None,
    port: int = 0,
    bind: str = "127.0.0.1",
    peers: Iterable[str | None] = (),
    **settings: object,
) -> AbstractContextManager[Node]:
    """Serve a folder to peers while the context lasts; yield its open node.

    path, key: as for `datalattice.open`; a missing folder or key is created.
    port:      0: any free port.
    peers:     addresses of nodes to stay connected to.
    settings:  further fields of a `NodeConfig`, by name.
    Raises: UsageError: a setting is wrong, or the port cannot be used. StoreLocked: another
            process serves the folder, or writes to it.
    """
    given = {"port": port, "bind": bind, "peers": [peer for peer in peers if peer], **settings}
    return _serving(folder_of(path), key, given)


@contextmanager
def _serving(
    folder: Folder, key: str | os.PathLike[str] | KeyPair | None, given: dict[str, object]
) -> Iterator[Node]:
    keys = keys_of(folder, key, create=True)
    assert keys is not None, "made where they are missing"
    config = load_settings(folder.settings_path, os.environ, given).config
    began: Future[None] = Future()

    def ready(_running: Running, _node: NodeServer) -> None:
        began.set_result(None)

    daemon = Daemon(folder.path, config, identity=keys.identity, keys=keys.in_order(), ready=ready)

    def run() -> None:
        try:
            asyncio.run(daemon.serve())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            if not began.done():
                began.set_exception(error)
            else:
                ended.append(error)

    ended: list[BaseException] = []
    thread = threading.Thread(target=run, name=f"node {folder.path}")
    thread.start()
    try:
        began.result()
        with open(folder.path, key=key) as node:
            yield node
    finally:
        daemon.stop()
        thread.join()
        if ended:
            raise StoreFailed(f"the node of {folder.path} ended: {ended[0]}") from ended[0]
