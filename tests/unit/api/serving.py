"""A gRPC door for tests: in a thread with a loop of its own, on a socket in a private folder."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datalattice.api.grpc import GrpcDoor, GrpcLoop
from datalattice.service import Service


class Served:
    """A door that serves. path: of its socket."""

    def __init__(self, door: GrpcDoor, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.door, self.path, self.loop = door, path, loop

    def run(self, awaited: Any) -> Any:
        """Await something in the door's loop."""
        return asyncio.run_coroutine_threadsafe(awaited, self.loop).result(60)


@contextmanager
def serving(service: Service, **options: Any) -> Iterator[Served]:
    """Serve on a socket until the block ends. options: of the door."""
    loop = GrpcLoop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    # Not below pytest's folders: the path of a socket is short.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o700)
        served = Served(GrpcDoor(service, **options), Path(folder, "grpc.sock"), loop)
        try:
            served.run(served.door.listen_socket(served.path))
            yield served
        finally:
            served.run(served.door.stop(5.0))
            loop.call_soon_threadsafe(loop.stop)
            thread.join(60)
            loop.close()
            assert not thread.is_alive()
