"""Links over TLS and over iroh: time to dial, rate, latency; both ends in one event loop, loopback.

    python bench/links.py

Prints for each transport the time to dial, the rate of a one-way stream, and the time of a message
of 100 bytes there and back.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from dataclasses import dataclass

from datalattice.crypto import KeyPair
from datalattice.node.transport import Link, NodeTransport

HERE = KeyPair(b"h" * 32)
THERE = KeyPair(b"t" * 32)
PIECE = bytes(65_536)
PIECES = 1_000
TURNS = 500


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """Seconds to dial, and for a message there and back; bytes a second one way."""

    dial_s: float
    bytes_per_s: float
    there_and_back_s: float


def measure(scheme: str) -> LinkFigures:
    """Return the figures of `tls` or `iroh`."""
    return asyncio.run(_measure(scheme))


async def _measure(scheme: str) -> LinkFigures:
    iroh = "direct" if scheme == "iroh" else "off"
    here, there = (NodeTransport(key, iroh=iroh) for key in (HERE, THERE))
    accepted: asyncio.Queue[Link] = asyncio.Queue()
    ended = asyncio.Event()

    async def accept(link: Link) -> None:
        accepted.put_nowait(link)
        await ended.wait()

    listener = await there.listen("127.0.0.1", 0, accept)
    address = next(one for one in listener.addresses if ("iroh:" in one) == (scheme == "iroh"))
    begun = time.perf_counter()
    near = await here.dial(address)
    await near.write(b"?")  # iroh accepts a stream with its first bytes
    far = await accepted.get()
    await far.read()
    dialled = time.perf_counter()
    writing = asyncio.ensure_future(_write(near))
    left = PIECES * len(PIECE)
    while left:
        left -= len(await far.read())
    await writing
    carried = time.perf_counter()
    for _ in range(TURNS):
        await near.write(PIECE[:100])
        await far.read()
        await far.write(PIECE[:100])
        await near.read()
    turned = time.perf_counter()
    near.abort()
    ended.set()
    await listener.close()
    await asyncio.gather(here.close(), there.close())
    rate = PIECES * len(PIECE) / (carried - dialled)
    return LinkFigures(dialled - begun, rate, (turned - carried) / TURNS)


async def _write(link: Link) -> None:
    for _ in range(PIECES):
        await link.write(PIECE)


def main() -> None:
    """Print the figures."""
    for scheme in ("tls", "iroh") if importlib.util.find_spec("iroh") else ("tls",):
        found = measure(scheme)
        print(
            f"{scheme:5} dial {1e3 * found.dial_s:5.1f} ms, {found.bytes_per_s / 1e6:4.0f} MB/s, "
            f"there and back {1e3 * found.there_and_back_s:.2f} ms"
        )


if __name__ == "__main__":
    main()
