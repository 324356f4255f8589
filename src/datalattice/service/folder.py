"""Folder service: one service, with access control and venue, for all doors of a folder's node.

The first use opens the folder; it comes when the node serves. All doors share the rules of access,
the file locks and the events.

Source: docs/design/service.md "Doors".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from datalattice.actions import ActionRequest, DoorStatement, NodeEvent
from datalattice.apps.grid import Storage
from datalattice.client import Node, open as open_node
from datalattice.client.settings import NodeConfig
from datalattice.clock import Clock, SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import EventRing
from datalattice.engine import Engine, open_engine
from datalattice.lattice import did_of
from datalattice.protobuf import Message
from datalattice.service.access import (
    OTHER_VENUES,
    SPENT_TABLE,
    AccessControl,
    Allowance,
    Audit,
    Authenticator,
    Policies,
    Policy,
    Principal,
    RateLimits,
    SpentIds,
    Use,
    audit_line,
    parse_grants,
)
from datalattice.service.registry import Streamed
from datalattice.service.service import OPERATOR, Service
from datalattice.service.venue import Adapter, GridJobs, JobCaller, VenueHost, VenueRunner
from datalattice.service.venue.adapters import (
    AdapterMaker,
    AssetAdapter,
    GridAdapter,
    configured_adapters,
    configured_storage,
    configured_venues,
)

R = TypeVar("R", bound=Message)

_log = logging.getLogger("datalattice.access")

ACCESS_FOLDER: Final = "access"
"""The folder, below that of the node, of the ids of used credentials."""


class FolderService:
    """The service of a folder; its own `call` and `stream` act for the owner of the folder.

    Any thread may use it. Close it.
    Raises: UsageError: the rules of access are invalid, or an adapter of the venue cannot be made.
    """

    def __init__(
        self, path: Path, identity: KeyPair, config: NodeConfig, clock: Clock | None = None
    ) -> None:
        self._path: Final = path
        self._identity: Final = identity
        self._clock: Final = clock or SystemClock()
        # Read now, so that invalid rules stop the start.
        self._policies: Final = Policies(path, _base_policy(config))
        self._limits: Final = RateLimits(_allowances(config))
        self._cache_bytes: Final = config.cache_bytes
        self._lock: Final = threading.Lock()
        self._node: Node | None = None
        self._engine: Engine | None = None
        self._config: Final = config
        # Now, so that a missing package stops the start and not the first job.
        self._adapters: Final = configured_adapters(config, path) if config.venue else None
        self._venues: Final = (
            configured_venues(config, identity, self._clock) if config.venue else None
        )
        self._venue: VenueHost | None = None
        self._made: list[Adapter] = []
        self._both: tuple[Service, AccessControl] | None = None
        self._urls: tuple[str, ...] = ()
        self._statements: Callable[[], tuple[DoorStatement, ...]] = tuple
        self.events: Final[EventRing[NodeEvent]] = EventRing()
        """The events of the node."""

    def at_doors(
        self, urls: Iterable[str], statements: Callable[[], tuple[DoorStatement, ...]]
    ) -> tuple[Service, AccessControl]:
        """Return the service and the access to it, for doors.

        urls: of the doors. statements: returns those of the node on the doors' certificates.
        """
        self._urls, self._statements = tuple(urls), statements
        service, access = self._opened()
        # A call of the owner may have opened it before the doors had addresses.
        access.reached_at(self._urls)
        return service, access

    def call(self, request: ActionRequest[R], *, request_id: str | None = None) -> R:
        """Do an action; as `LocalClient.call`."""
        return self._opened()[0].call(request, OPERATOR, request_id=request_id)

    def stream(self, request: ActionRequest[R]) -> Streamed[R]:
        """Begin a stream. Raises: as `call`."""
        return self._opened()[0].stream(request, OPERATOR)

    def _opened(self) -> tuple[Service, AccessControl]:
        with self._lock:  # doors that start together open it once
            if self._both is None:
                self._node = open_node(self._path, cache_bytes=self._cache_bytes)
                access = self._access()
                # The contents first: a venue that resumes its jobs reads them.
                contents = configured_storage(
                    self._config, self._path, self._node.drive, self._node.upload
                )
                if self._adapters is not None:
                    self._venue = self._begun_venue(self._node, access, self._adapters, contents)
                service = Service(
                    self._node,
                    access=access,
                    doors=self._stated,
                    events=self.events,
                    venue=self._venue,
                    contents=contents,
                    urls=lambda: self._urls,
                )
                self._both = service, access
            return self._both

    def _begun_venue(
        self,
        node: Node,
        access: AccessControl,
        adapters: AdapterMaker,
        contents: Storage | None,
    ) -> VenueHost:
        checking = Service(node, access=access)  # the service of the doors needs the venue first
        did = did_of(self._identity.public_key)

        def principal(caller: JobCaller) -> Principal:
            """Return the principal whose rights a job has."""
            who = Principal(caller.did, "token")
            # The owner of the folder calls without a credential; its jobs have the node's DID.
            if caller.did == did:
                who = OPERATOR
            elif caller.did == f"{did}:public":
                who = Principal(None, "anonymous")
            # A job gets no more rights than the credential that started it.
            if caller.grants is not None:
                who = who.narrowed(parse_grants(list(caller.grants)))
            return who

        def may(caller: JobCaller, request: ActionRequest[Any]) -> None:
            checking.check_right(request, principal(caller))

        def may_call(caller: JobCaller) -> None:
            checking.check_scope("x", OTHER_VENUES, principal(caller))

        assets = AssetAdapter(
            lambda: node.venue(storage=contents), may, self._venues, may_call=may_call
        )
        made = self._made = [*adapters(node, may), assets]
        jobs = GridJobs.of_node(node, self._clock)

        def begun() -> VenueRunner:
            away_s = self._config.venue_grid.away_s
            grid = GridAdapter(
                # A function, since the runner is made below, with this adapter.
                lambda: runner,
                self._venues,
                may_call=may_call,
                away_s=away_s,
                clock=self._clock,
            )
            made.append(grid)
            runner = VenueRunner(jobs, made, clock=self._clock, definitions=self._venues)
            return runner

        return VenueHost(begun)

    def _stated(self) -> tuple[DoorStatement, ...]:
        return self._statements()  # at each call: doors may be added later

    def _access(self) -> AccessControl:
        # On disk, so that a signed request is refused after a restart, too, if it comes again.
        self._engine = open_engine(self._path / ACCESS_FOLDER, (SPENT_TABLE,))
        spent = SpentIds(self._engine)
        did = did_of(self._identity.public_key)
        authenticator = Authenticator(did, self._urls, spent, self._limits)
        audit = Audit(lambda record: _log.info("%s", audit_line(record)))
        return AccessControl(
            authenticator, self._policies, self._limits, audit, self._clock, self._identity
        )

    def prepare(self, config: NodeConfig) -> Callable[[], None]:
        """Read limits, administrators and rules again; return the function that applies them.

        Raises: UsageError: the rules, or the settings of the venue, are invalid.
        """
        if config.venue:
            # Adapters take effect at the next start; settings with which it would fail are refused.
            configured_adapters(config, self._path)
            configured_venues(config, self._identity)
        take_rules = self._policies.prepare(_base_policy(config))
        allowances = _allowances(config)

        def take() -> None:
            take_rules()
            self._limits.change(allowances)

        return take

    def close(self) -> None:
        """Close the venue, the adapters, the folder and the table of used credentials."""
        with self._lock:
            # Jobs write to the node, so the venue is closed first.
            held: tuple[Any, ...] = (self._venue, *self._made, self._node, self._engine)
            self._venue = self._node = self._engine = self._both = None
            self._made = []
        for one in held:
            if one is not None:
                one.close()


def _base_policy(config: NodeConfig) -> Policy:
    reading: Any = config.reading
    return Policy(frozenset(config.admins), reading, open_venue=config.venue_public)


def _allowances(config: NodeConfig) -> dict[Use, Allowance]:
    return {
        "reads": Allowance(config.reads_per_s, config.reads_per_s),
        "effects": Allowance(config.effects_per_s, config.effects_per_s),
    }
