"""Transport kit: the rules for every transport, as one call for any implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from datalattice.client import parse_address
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.node import Transport
from datalattice.node.transport import Link, Listener
from datalattice.wire import PLAIN_PROTOCOL

RULE_TIMEOUT_S: Final = 20.0  # a rule that hangs fails, and does not stop the run
# Around the sizes of TLS records and frames.
SIZES: Final = (1, 2, 127, 16_383, 16_384, 16_385, 65_536, 300_000)
LONG_BYTES: Final = 10_000_000
LONG_PIECES: Final = 200
LINKS: Final = 40  # more than one listen queue takes at once
PIECE: Final = bytes(65_536)
FLOOD_PIECES: Final = 2_000
"""More pieces than a transport may accept while the peer does not read."""

DIALLER: Final = KeyPair(b"the one who dials is seeded thus")  # two fixed keys, so that runs repeat
LISTENER: Final = KeyPair(b"and this is he who was listening")
NOBODY: Final = KeyPair(b"a key that no transport here has")


@dataclass
class TransportPair:
    """Two transports, and a listener of one of them that queues accepted links."""

    here: Transport
    there: Transport
    bind: str
    scheme: str
    protocol: str
    names_keys: bool
    listener: Listener | None = None
    accepted: asyncio.Queue[Link] = field(default_factory=asyncio.Queue)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    links: list[Link] = field(default_factory=list)

    async def listen(self, port: int = 0) -> int:
        """Listen; return the port."""

        async def accept(link: Link) -> None:
            self.links.append(link)
            self.accepted.put_nowait(link)
            # Returning would end the link.
            await self.released.wait()  # a link lives as long as the call

        self.listener = await self.there.listen(self.bind, port, accept)
        return self.listener.port

    def address(self, port: int | None = None, key: bytes | None = None) -> str:
        if port is None:
            assert self.listener is not None
            port = self.listener.port
        if key is None and self.names_keys:
            key = LISTENER.public_key
        who = "" if key is None else f"{key.hex()}@"
        return f"{self.scheme}{who}{self.bind}:{port}"

    async def connect(self) -> tuple[Link, Link]:
        """Return the two ends of a new link: the dialling and the listening one."""
        near = await self.here.dial(self.address())
        self.links.append(near)
        # Some transports accept a link only with its first bytes.
        await near.write(b"?")
        far = await self.accepted.get()
        assert await far.read() == b"?", "what is written first is read first"
        return near, far

    async def end(self) -> None:
        for link in self.links:
            link.abort()
        self.released.set()
        if self.listener is not None:
            await self.listener.close()
        await asyncio.sleep(0)  # one turn of the loop: closed links run their callbacks
        await self.here.close()
        await self.there.close()


TransportRule = Callable[[TransportPair], Awaitable[None]]


async def check_transport(
    make: Callable[[KeyPair], Transport],
    *,
    bind: str = "127.0.0.1",
    scheme: str = "",
    proves_keys: bool = True,
    protocol: str = PLAIN_PROTOCOL,
    names_keys: bool = False,
) -> None:
    """Assert that a transport keeps the protocol.

    make:        returns a new transport with this key; all that it returns reach each other.
    bind:        a local address to listen at and to dial.
    scheme:      how addresses begin.
    proves_keys: whether links prove the keys of both ends.
    protocol:    what both ends agree to speak.
    names_keys:  whether an address has to name the key of the node.
    Raises: AssertionError: it does not; the text says which rule.
    """
    for rule in (
        _agrees_on_a_protocol,
        _carries_bytes_of_any_number_both_ways,
        _carries_a_long_write,
        _delivers_all_before_an_end,
        _ends_while_it_is_written_to,
        _ends_for_the_other_side_too,
        _wakes_who_waits_when_it_is_aborted,
        _breaks_in_the_middle,
        _holds_back_who_is_not_read,
        _keeps_many_links_apart,
        _says_why_it_cannot_dial,
        _refuses_a_port_in_use,
        _ends_listening_and_not_the_links,
        _proves_keys if proves_keys else _proves_nothing,
    ):
        here = make(DIALLER)
        # A network in memory is one object.
        there = here if bind == "memory" else make(LISTENER)
        pair = TransportPair(here, there, bind, scheme, protocol, names_keys)
        limit = asyncio.timeout(RULE_TIMEOUT_S)
        try:
            async with limit:
                await rule(pair)
        except TimeoutError as error:
            if not limit.expired():  # a dial that had no answer has this type, too
                raise
            raise AssertionError(f"{rule.__name__}: something waits for ever") from error
        finally:
            await pair.end()


async def _take(link: Link, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = await link.read()
        # An early end is a fault, not a short read.
        assert data, f"the stream ended after {len(found)} of {count} bytes"
        found += data
    return bytes(found)


async def _failure(call: Awaitable[object], kind: type[Exception]) -> str:
    """Return the text of the error with which a call must fail."""
    try:
        await call
    except kind as error:
        return str(error)
    raise AssertionError(f"this has to fail with {kind.__name__}")


async def _rest(link: Link) -> bytes:
    found = bytearray()
    while data := await link.read():
        found += data
    return bytes(found)


async def _until_refused(link: Link) -> int:
    """Write until that fails; return how many pieces were accepted."""
    for count in range(FLOOD_PIECES):
        try:
            await link.write(PIECE)
        except OSError:
            return count
    return FLOOD_PIECES


def _pattern(count: int) -> bytes:
    return (bytes(range(251)) * (count // 251 + 1))[:count]  # 251 is prime: a shifted piece shows


async def _agrees_on_a_protocol(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    assert near.protocol == pair.protocol, "who dialled knows what is spoken"
    assert far.protocol == pair.protocol, "and who listens"


async def _carries_bytes_of_any_number_both_ways(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    for size in SIZES:
        data = _pattern(size)
        for one, other in ((near, far), (far, near)):
            # Read while it is written: a link may hold less than that.
            writing = asyncio.ensure_future(one.write(data))
            assert await _take(other, size) == data, f"{size} bytes arrive as they were"
            await writing
    await near.write(b"")
    await near.write(b"x")
    # An empty write does not end the stream.
    assert await far.read() == b"x", "an empty write sends nothing"


async def _carries_a_long_write(pair: TransportPair) -> None:
    await pair.listen()
    for one, other in (ends := await pair.connect(), ends[::-1]):
        data = _pattern(LONG_BYTES)
        writing = asyncio.ensure_future(one.write(data))
        assert await _take(other, len(data)) == data, "one long write arrives as it was"
        await writing


async def _ends_while_it_is_written_to(pair: TransportPair) -> None:
    await pair.listen()
    pieces = [number.to_bytes(4, "big") * (len(PIECE) // 4) for number in range(LONG_PIECES)]

    async def write(link: Link) -> None:
        with suppress(OSError):  # a link that is closing may refuse them or drop them
            for piece in pieces:
                await link.write(piece)

    for turn in range(2):
        ends = await pair.connect()
        one, other = ends if turn else ends[::-1]
        writer = asyncio.ensure_future(write(one))
        begun = await other.read()
        reading = asyncio.ensure_future(_rest(other))
        await one.close()
        found = begun + await reading
        assert found == b"".join(pieces)[: len(found)], "what arrives is what was written first"
        await other.close()
        await writer


async def _delivers_all_before_an_end(pair: TransportPair) -> None:
    await pair.listen()
    data = _pattern(1_000_000)
    for turn in range(2):  # both ends close once
        ends = await pair.connect()
        one, other = ends if turn else ends[::-1]
        reading = asyncio.ensure_future(_rest(other))
        for start in range(0, len(data), len(PIECE)):
            await one.write(data[start : start + len(PIECE)])
        await one.close()
        assert await reading == data, "closing sends what was taken before"
        assert await other.read() == b"", "an end stays one"
        await other.close()


async def _ends_for_the_other_side_too(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    await near.close()
    assert await far.read() == b"", "an end is seen by the other side"
    # "in the end": buffers may take some pieces first.
    assert await _until_refused(far) < FLOOD_PIECES, "and what it writes is refused in the end"
    await far.close()
    await far.close()  # closing and aborting twice is allowed
    far.abort()
    near.abort()


async def _wakes_who_waits_when_it_is_aborted(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    readers = [asyncio.ensure_future(one.read()) for one in (near, far)]
    await asyncio.sleep(0)
    near.abort()
    assert await asyncio.gather(*readers) == [b"", b""], "both readers wake"
    near, far = await pair.connect()
    writer = asyncio.ensure_future(_until_refused(near))
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(writer), 0.2)  # until it is held back
    near.abort()
    assert await writer < FLOOD_PIECES, "a writer that nobody reads wakes"


async def _breaks_in_the_middle(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    writer = asyncio.ensure_future(_until_refused(near))
    await _take(far, 3 * len(PIECE))  # in the middle of what is written
    far.abort()
    assert await writer < FLOOD_PIECES, "writing to a broken link is refused"
    assert await _rest(near) == b"", "reading from it ends"
    await pair.connect()  # and the listener goes on


async def _holds_back_who_is_not_read(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    taken = 0

    async def write() -> None:
        nonlocal taken
        for _ in range(FLOOD_PIECES):
            await near.write(PIECE)
            taken += 1

    writer = asyncio.ensure_future(write())
    seen = -1
    while seen != taken:
        seen = taken
        await asyncio.sleep(0.05)  # until it stops: the buffers of the system are full
    assert taken < FLOOD_PIECES, "what is not read is not taken for ever"
    await _take(far, (taken + 1) * len(PIECE))
    assert taken > seen, "and is taken again when it is read"
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


async def _keeps_many_links_apart(pair: TransportPair) -> None:
    await pair.listen()

    async def echo() -> None:
        while True:
            link = await pair.accepted.get()
            answering.append(asyncio.ensure_future(answer(link)))

    async def answer(link: Link) -> None:
        while data := await link.read():
            await link.write(data)
        await link.close()

    async def ask(number: int) -> None:
        link = await pair.here.dial(pair.address())
        pair.links.append(link)
        data = number.to_bytes(2, "big") * 20_000  # each link's own bytes
        writing = asyncio.ensure_future(link.write(data))
        assert await _take(link, len(data)) == data, "each link has its own bytes"
        await writing
        await link.close()

    answering: list[asyncio.Future[None]] = []
    host = asyncio.ensure_future(echo())
    await asyncio.gather(*(ask(number) for number in range(LINKS)))
    await asyncio.gather(*answering)
    host.cancel()
    await asyncio.gather(host, return_exceptions=True)


async def _says_why_it_cannot_dial(pair: TransportPair) -> None:
    port = await pair.listen()
    assert pair.listener is not None
    await pair.listener.close()
    said = await _failure(pair.here.dial(pair.address(port)), OSError)
    assert said, "dialling where nobody listens says so"
    # What `parse_address` refuses, and what dials nowhere.
    for wrong in ("", "nowhere", "http://h:1", "h:0", "h:65536", "a b:1", "@h:1", "12@h:1"):
        said = await _failure(pair.here.dial(wrong), UsageError)
        assert said, f"{wrong!r} is no address, and the error says so"


async def _refuses_a_port_in_use(pair: TransportPair) -> None:
    port = await pair.listen()
    first = pair.listener
    said = await _failure(pair.listen(port), UsageError)
    assert str(port) in said, "the error names the port that is in use"
    assert pair.listener is first  # the failed listener leaves the first alone
    await pair.connect()


async def _ends_listening_and_not_the_links(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    assert pair.listener is not None
    await pair.listener.close()
    await near.write(b"still here")
    assert await far.read() == b"still here", "accepted links live on"


async def _proves_nothing(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    assert near.remote, "an end says where the other is"
    assert far.remote
    assert near.public_key is None, "a key that was not proved is not named"
    assert far.public_key is None


async def _proves_keys(pair: TransportPair) -> None:
    await pair.listen()
    near, far = await pair.connect()
    assert parse_address(near.remote).port == parse_address(pair.address()).port
    assert far.remote, "an end says where the other is"
    assert near.public_key == LISTENER.public_key, "who dialled knows whom"
    assert far.public_key == DIALLER.public_key, "and who listens, by whom"
    link = await pair.here.dial(pair.address(key=LISTENER.public_key))
    pair.links.append(link)
    assert link.public_key == LISTENER.public_key, "the expected key is found"
    said = await _failure(pair.here.dial(pair.address(key=NOBODY.public_key)), OSError)
    assert NOBODY.public_key.hex() in said, "the error names the key that was expected"
