"""Config: the settings of a node, validated before anything is opened."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from datalattice.actions import UPLOAD_BYTES_MAX
from datalattice.apps.grid import CONTENT_BYTES_MAX
from datalattice.cells import Value
from datalattice.client.addresses import PORT_MAX, parse_address, parse_key, parse_ticket
from datalattice.client.settings.policyfile import parse_owner
from datalattice.client.settings.venueconfig import (
    STORAGES,
    VenueGridConfig,
    VenueHttpConfig,
    VenuePythonConfig,
    VenueSparkConfig,
    VenueSqlConfig,
)
from datalattice.errors import UsageError
from datalattice.lattice import Lattice, checked_path, is_bare_did
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.store import CACHE_BYTES_MAX
from datalattice.sync import (
    BROADCAST_DELAY_MS,
    PING_REPLIES,
    REQUEST_TIMEOUT_MS,
    ROOT_SYNC_INTERVAL_MS,
    ROUNDS_MAX,
    Dialect,
    HostingPolicy,
    Pace,
)

MESSAGES_PER_S_MAX: Final = 10_000  # far above any honest peer
"""Most messages received from one peer a second, on average."""

BYTES_PER_S_MAX: Final = 100_000_000  # a fast local network
"""Most bytes received from one peer a second, on average."""

PEER_BYTES_MAX: Final = 128_000_000
"""Most bytes held for one peer, received or to be sent: two messages of the greatest length."""

ADDRESS_CONNECTIONS_MAX: Final = 64  # many nodes may share one address behind a router
"""Most inbound connections from one address."""

DEFAULT_PORT: Final = 18_888
_LOOPBACK: Final = re.compile(r"::1|localhost|127(\.[0-9]{1,3}){1,3}")
TLS_MODES: Final = ("auto", "on", "off")
CONNECTIONS_MAX: Final = 1_024
COLLECT_AFTER_BYTES: Final = 256_000_000  # a collection reads all live cells, so it must be rare
READ_TIMEOUT_MS: Final = 30_000  # an idle peer still sends pings
DISCOVER: Final = ("none", "p2p", "mdns", "all")
DID_WEB: Final = ("none", "https", "loopback")
IROH_MODES: Final = ("off", "direct", "relay")
READING: Final = ("public", "authenticated")
MCP_TOOLS: Final = ("off", "read", "all")
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
# Below this a message could not carry one full cell with its path.
MESSAGE_BYTES_MIN: Final = 100_000
FENCE_WAIT_MS: Final = 2_000  # short: a first write waits this long if no peer answers
FENCE_MOVED_WAIT_MS: Final = 30_000  # longer: a moved folder may lack any number of writes
FENCE_AGAIN_MS: Final = 60_000
_HOST_NAME: Final = re.compile(r"[0-9A-Za-z._-]{1,253}")  # as in DNS, for Host headers


def split_partial(text: str) -> tuple[bytes, list[str]]:
    """Return (public key, keys of a path) of `KEY/section/key`.

    Raises: UsageError: `text` has another form.
    """
    key, *keys = text.split("/")
    if not keys or not all(keys):  # an empty key could not be told from a mistyped path
        raise UsageError(
            f"partial is the key of a peer and a path, such as KEY/queue/OWNER, got {text!r}"
        )
    return parse_key(key), keys


def split_listen(text: str) -> tuple[str, int]:
    """Return (host, port) of `host:port` or `[host]:port`."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    return _LOOPBACK.fullmatch(host) is not None


@dataclass(frozen=True, slots=True)
class DoorConfig:
    """A listener for users of the node, beside its socket.

    listen:   `host:port`; None: no listener.
    tls:      `auto`: except on addresses of this machine; `on`; or `off`.
    cert, key: files of a certificate and its key, as PEM, relative to the node's folder; None: a
              certificate that the node makes, which clients verify by the node's DID.
    insecure: whether it may be without TLS on an address that other machines reach.
    hosts:    accepted names in Host headers, besides those of this machine; empty: any name, on
              an address that other machines reach.
    """

    listen: str | None = None
    tls: str = "auto"
    cert: str | None = None
    key: str | None = None
    insecure: bool = False
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tls not in TLS_MODES:
            raise UsageError(f"tls is auto, on or off, got {self.tls!r}")
        if (self.cert is None) != (self.key is None):
            raise UsageError("cert and key are given together; one of them is missing")
        for host in self.hosts:
            if not _HOST_NAME.fullmatch(host):
                raise UsageError(f"hosts are names such as node.example, got {host!r}")
        if self.listen is None:
            return
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > PORT_MAX or not host:
            raise UsageError(f"listen is host:port, got {self.listen!r}")
        # "A non-loopback bind needs TLS": anyone on the network could read a token in plain text.
        if not (self.has_tls or self.is_local or self.insecure):
            raise UsageError(
                f"{self.listen} can be reached by others, and tls is off: credentials would cross "
                "the network in the clear; leave tls to auto, or set insecure = true"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.listen is None or _is_loopback(split_listen(self.listen)[0])

    @property
    def has_tls(self) -> bool:
        """Whether it uses TLS."""
        return self.tls == "on" or (self.tls == "auto" and not self.is_local)


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Limits of one connection."""

    message_bytes_max: int
    read_timeout_s: float
    messages_per_s_max: int = MESSAGES_PER_S_MAX
    bytes_per_s_max: int = BYTES_PER_S_MAX
    peer_bytes_max: int = PEER_BYTES_MAX


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The settings of a node.

    port:  the port to listen at; None: the default port, or a free one if that is taken; 0: a free
           one; negative: the node only dials.
    bind:  the local address to listen at.
    peers: addresses or tickets of nodes to stay connected to.
    plain: whether inbound connections may be plain TCP; otherwise they must use TLS.
    iroh:  whether to listen over iroh too, at the UDP port of the same number: `off`; `direct`;
           or `relay`: others find the node by its key, through public servers of the iroh project.
    allow: public keys, in hex, that may connect; empty: all. Plain connections prove no key.
    partial: `KEY/PATH`: with the peer of this key only these paths are exchanged, both ways.
    fence_wait_ms: how long the first write for an owner waits for a peer's answer.
    fence_moved_wait_ms: the same in a folder that was copied, restored or moved.
    fence_again_ms: after this long without a peer, writes wait again once one is connected.
    accept_unfenced: whether writes to a copied, restored or moved folder go on without an answer.
    url:   this node's address for others, published in `:p2p` below its key; None: not published.
    discover: where to find further nodes: `p2p`, `mdns` on the local network, `all` or `none`.
    mdns_interfaces: local addresses on which to use mDNS; empty: all.
    connections_per_address_max: most inbound connections from one address other than this
           machine's; 0: no limit.
    messages_per_s_max, bytes_per_s_max: the node reads a peer that sends more only at this rate.
    peer_bytes_max: most bytes held for one peer; beyond it the connection ends.
    did_web: whether documents of `did:web` venues are fetched, so that their values are accepted:
           `https`; `loopback`, also over HTTP from this machine; or `none`.
    ping_reply, strict_paths, accept_bare_values: see `datalattice.sync.Dialect`.
    http_port, http_bind: the address of /metrics and /health; None: they are not served, 0: a free
           port.
    http_hosts: host names that monitors may use, besides addresses and `localhost`.
    check_interval_ms: time between checks of the whole store; 0: only on request, or if it was
           opened with damage.
    collect_after_bytes: growth of the store before garbage is collected; 0: only on request.
    hosting: whose data is stored, and how much of it.
    watched_owners: keys in hex and DIDs whose forks degrade this node, besides its own owners'.
    rest, grpc: listeners of `lattice daemon` for users of the node.
    webdav: whether the drives are served at `/dlfs` of REST, on its socket too.
    mcp: the tools for language models at `/mcp` of REST: `off`, `read`, or `all`, writing tools
           too.
    venue: whether `lattice daemon` runs jobs of the venue of its own DID.
    venue_storage: where this venue stores contents: `lattice`; `file`, in the folder `venue_path`;
           `drive`, in the directory `venue_path` of the drive `venue`; or `memory`.
    venue_path: relative to the node's folder, or to the root of the drive.
    venue_content_bytes_max: longest content, up to 4 GiB; in the lattice up to 64 MiB, because
           peers refuse longer ones.
    venue_public: whether callers without a credential may list its operations and run jobs.
    venue_trial: whether it offers the trial operations.
    venue_grid, venue_http, venue_python, venue_sql, venue_spark: the limits of its adapters.
    reading: who may read values and the lattice through the doors: `public` or `authenticated`.
    admins: DIDs that have all rights there.
    reads_per_s, effects_per_s: calls of one user of the doors a second, and as many at once.
    drain_s: seconds that running requests may take when the doors close.
    cache_bytes: memory for decoded cells of a store that the node opens; the doors use as much
                 again.
    log_level, log_format: of a node process; a program with a node in it sets up its own logging.
    Units: times in milliseconds, except `drain_s`.
    """

    port: int | None = None
    bind: str = "127.0.0.1"
    peers: tuple[str, ...] = ()
    plain: bool = False
    iroh: str = "off"
    allow: tuple[str, ...] = ()
    url: str | None = None
    discover: str = "none"
    mdns_interfaces: tuple[str, ...] = ()
    did_web: str = "none"
    ping_reply: str = "pong"
    strict_paths: bool = True
    accept_bare_values: bool = False
    message_bytes_max: int = MESSAGE_BYTES_MAX
    connections_max: int = CONNECTIONS_MAX
    connections_per_address_max: int = ADDRESS_CONNECTIONS_MAX
    messages_per_s_max: int = MESSAGES_PER_S_MAX
    bytes_per_s_max: int = BYTES_PER_S_MAX
    peer_bytes_max: int = PEER_BYTES_MAX
    read_timeout_ms: int = READ_TIMEOUT_MS
    broadcast_delay_ms: int = BROADCAST_DELAY_MS
    root_sync_interval_ms: int = ROOT_SYNC_INTERVAL_MS
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    rounds_max: int = ROUNDS_MAX
    check_interval_ms: int = 0
    partial: tuple[str, ...] = ()
    fence_wait_ms: int = FENCE_WAIT_MS
    fence_moved_wait_ms: int = FENCE_MOVED_WAIT_MS
    fence_again_ms: int = FENCE_AGAIN_MS
    accept_unfenced: bool = False
    collect_after_bytes: int = COLLECT_AFTER_BYTES
    hosting: HostingPolicy = HostingPolicy()  # noqa: RUF009 - it is never changed
    watched_owners: tuple[str, ...] = ()
    rest: DoorConfig = DoorConfig()
    grpc: DoorConfig = DoorConfig()
    webdav: bool = True
    mcp: str = "off"
    venue: bool = False
    venue_storage: str = "lattice"
    venue_path: str = "content"
    venue_content_bytes_max: int = CONTENT_BYTES_MAX
    venue_public: bool = False
    venue_trial: bool = False
    venue_grid: VenueGridConfig = field(default_factory=VenueGridConfig)
    venue_http: VenueHttpConfig = field(default_factory=VenueHttpConfig)
    venue_python: VenuePythonConfig = field(default_factory=VenuePythonConfig)
    venue_sql: VenueSqlConfig = field(default_factory=VenueSqlConfig)
    venue_spark: VenueSparkConfig = field(default_factory=VenueSparkConfig)
    reading: str = "public"
    admins: tuple[str, ...] = ()
    reads_per_s: int = 200
    effects_per_s: int = 50
    drain_s: int = 10
    cache_bytes: int = CACHE_BYTES_MAX
    http_port: int | None = None
    http_bind: str = "127.0.0.1"
    http_hosts: tuple[str, ...] = ()
    log_level: str = "warning"
    log_format: str = "text"

    def __post_init__(self) -> None:
        # `type`, because `isinstance` accepts True as a number.
        if self.port is not None and (type(self.port) is not int or self.port > PORT_MAX):
            raise UsageError(f"a port is a number up to {PORT_MAX}, got {self.port!r}")
        if self.http_port is not None and not 0 <= self.http_port <= PORT_MAX:
            raise UsageError(f"http_port is 0 to {PORT_MAX}, got {self.http_port!r}")
        for name in ("bind", "http_bind"):
            if not getattr(self, name):
                # An empty text binds to all addresses.
                raise UsageError(f"{name} is a local address such as 127.0.0.1, got an empty text")
        for peer in self.peers:
            parse_ticket(peer)  # checked at the start, not when it is dialled
        for key in self.allow:
            parse_key(key)
        self._check_names()
        for name, choices in (
            ("discover", DISCOVER),
            ("did_web", DID_WEB),
            ("iroh", IROH_MODES),
            ("ping_reply", PING_REPLIES),
            ("reading", READING),
            ("mcp", MCP_TOOLS),
            ("venue_storage", STORAGES),
            ("log_level", _LOG_LEVELS),
            ("log_format", LOG_FORMATS),
        ):
            if getattr(self, name) not in choices:
                named = f"{', '.join(choices[:-1])} or {choices[-1]}"
                raise UsageError(f"{name} is {named}, got {getattr(self, name)!r}")
        if not MESSAGE_BYTES_MIN <= self.message_bytes_max <= MESSAGE_BYTES_MAX:
            raise UsageError(
                f"message_bytes_max is {MESSAGE_BYTES_MIN} to {MESSAGE_BYTES_MAX}, "
                f"got {self.message_bytes_max}"
            )
        for name in (
            "connections_max",
            "messages_per_s_max",
            "bytes_per_s_max",
            "read_timeout_ms",
            "root_sync_interval_ms",
            "request_timeout_ms",
            "rounds_max",
            "fence_wait_ms",
            "fence_moved_wait_ms",
            "fence_again_ms",
            "reads_per_s",
            "effects_per_s",
        ):
            if getattr(self, name) < 1:  # 0 would disable a protection or wait for ever
                raise UsageError(f"{name} is at least 1, got {getattr(self, name)}")
        for name in (
            "broadcast_delay_ms",
            "cache_bytes",
            "check_interval_ms",
            "collect_after_bytes",
            "connections_per_address_max",
            "drain_s",
        ):
            if getattr(self, name) < 0:  # here 0 means off, or no limit
                raise UsageError(f"{name} is at least 0, got {getattr(self, name)}")

        # One message of full length may wait while another one arrives.
        if self.peer_bytes_max < 2 * self.message_bytes_max:
            raise UsageError(
                f"peer_bytes_max is at least twice message_bytes_max "
                f"({2 * self.message_bytes_max}), got {self.peer_bytes_max}"
            )

    def _check_names(self) -> None:
        for text in self.partial:
            split_partial(text)
        if self.url is not None:
            parse_address(self.url)
        if not 1 <= self.venue_content_bytes_max <= UPLOAD_BYTES_MAX:
            raise UsageError(
                f"venue_content_bytes_max is 1 to {UPLOAD_BYTES_MAX}, "
                f"got {self.venue_content_bytes_max}"
            )
        if not self.venue_path.strip("/"):  # contents would be mixed with the node's own files
            raise UsageError(f"venue_path is the name of a folder, got {self.venue_path!r}")
        for host in self.http_hosts:
            if not _HOST_NAME.fullmatch(host):  # compared with a monitor's Host header
                raise UsageError(f"http_hosts are names such as watch.example, got {host!r}")
        for owner in self.watched_owners:
            parse_owner(owner)
        for did in self.admins:
            if not is_bare_did(did):
                raise UsageError(f"admins are DIDs such as did:key:z6Mk..., got {did!r}")

    @property
    def bounds(self) -> ConnectionBounds:
        """The limits of one connection."""
        return ConnectionBounds(
            self.message_bytes_max,
            self.read_timeout_ms / 1_000,
            self.messages_per_s_max,
            self.bytes_per_s_max,
            self.peer_bytes_max,
        )

    @property
    def dialect(self) -> Dialect:
        """The node's protocol options."""
        return Dialect(
            self.ping_reply, self.strict_paths, self.accept_bare_values, self.message_bytes_max
        )

    @property
    def pace(self) -> Pace:
        """The time constants of the node's replicators."""
        return Pace(
            broadcast_delay_ms=self.broadcast_delay_ms,
            root_sync_interval_ms=self.root_sync_interval_ms,
            request_timeout_ms=self.request_timeout_ms,
            rounds_max=self.rounds_max,
        )


def partial_paths(config: NodeConfig, lattice: Lattice) -> dict[bytes, list[tuple[Value, ...]]]:
    """Return the exchanged paths of partially replicated peers, by public key.

    Raises: UsageError: the lattice does not have a path.
    """
    paths: dict[bytes, list[tuple[Value, ...]]] = {}
    for text in config.partial:
        key, names = split_partial(text)
        # Resolved to the lattice's keys: `queue` means `:queue`.
        path = checked_path(lattice, lattice.resolve_path(names) or names)
        paths.setdefault(key, []).append(path)
    return paths
