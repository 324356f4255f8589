"""One good and one bad case for each action; the suite runs them on every way to a service."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import datalattice
from datalattice import actions as a
from datalattice.actions import ActionRequest, KeyOperation, KeyWrite
from datalattice.cells import Keyword, Map, Value, encode_message, value_hash
from datalattice.client import Node
from datalattice.clock import Hlc, SystemClock
from datalattice.crypto import KeyPair
from datalattice.cursors import EventRing
from datalattice.errors import (
    AlreadyExists,
    BadFormat,
    Conflict,
    DataLatticeError,
    DirectoryNotEmpty,
    FileLocked,
    IsADirectory,
    LimitExceeded,
    MissingData,
    NoSuchPath,
    PeerUnavailable,
    Unauthenticated,
    UsageError,
    WrongType,
)
from datalattice.lattice import replicable
from datalattice.service import OPERATOR, Service
from datalattice.service.access import AccessControl, Audit, Policies, RateLimits
from datalattice.service.venue import Adapter, GridJobs, VenueHost, VenueRunner
from datalattice.testing.callers import BOB, BOB_DID, NODE, NOW_MS, authenticator, bearer
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.venue_kit import EchoAdapter, LedgerAdapter
from datalattice.weaver import Intention
from datalattice.weaver.kv import GetRequest, GetResponse, PutRequest, WatchParams

ONE = Map.of({"n": 1})
NO_HASH = b"\x07" * 32
NO_STORE = b"\x07" * 16
LATER_MS = 4_000_000_000_000


class World:
    """A node in memory with something of everything in it."""

    control: str | None = None
    """The control socket, where a node runs."""

    def __init__(self) -> None:
        self.owner_pair = KeyPair.generate()
        self.node: Node = datalattice.open(":memory:", key=self.owner_pair)
        node = self.node
        self._folder = TemporaryDirectory()
        self.access = self._access()
        self.events: EventRing[a.NodeEvent] = EventRing()
        adapters: list[Adapter] = [EchoAdapter(), LedgerAdapter()]
        self.jobs = GridJobs.of_node(node)
        self.venue = VenueHost(lambda: VenueRunner(self.jobs, adapters))
        self.venue.call(self.venue.runner.begun())  # it has published its operations
        self.service = Service(node, access=self.access, events=self.events, venue=self.venue)
        node.queue("log").offer_many(["a", "b"])
        node.database("shop")["tea"] = 3
        node.database("shop").sadd("set", "x")
        drive = node.drive("files")
        drive.ensure()
        drive.write("/a.txt", b"hello")
        drive.mkdir("/full")
        drive.write("/full/b.txt", b"b")
        self.hash = node.keep("kept", {"deep": [1, 2, 3]})
        notes = node.store("notes", "kv")
        notes["k"] = "v"
        child = node.store("below", "kv", parent=notes)
        self.store, self.child = notes.store.id, child.store.id
        owner = node.owner_key("own")
        assert isinstance(owner, bytes)
        self.owner = owner

    def _access(self) -> AccessControl:
        policies = Policies(self._folder.name)
        policies.put("stores", {"r": ["public"]})
        clock = StoppedClock(NOW_MS)
        return AccessControl(authenticator(), policies, RateLimits(), Audit(), clock, NODE)

    def job(self, *, is_paused: bool = False) -> bytes:
        """Return the id of a job that waits for an answer, or is paused."""
        asks = a.InvokeOperation(operation="v/ops/ledger/pure", input=Map.of({"ask": "?"}))
        id = self.service.call(asks, OPERATOR).id
        if is_paused:
            self.service.call(a.PauseJob(id=id), OPERATOR)
        return id

    def scheduled(self) -> bytes:
        """Return the handle of a call that waits."""
        call = a.ScheduleOperation(operation="v/ops/echo/back", input=ONE, time_ms=LATER_MS)
        return self.service.call(call, OPERATOR).handle

    @cached_property
    def call(self) -> bytes:
        """The handle of one call that waits, the same each time; its time is the last one."""
        call = a.ScheduleOperation(operation="v/ops/echo/back", input=ONE, time_ms=LATER_MS + 1)
        return self.service.call(call, OPERATOR).handle

    metadata = json.dumps(
        {
            "name": "Iris",
            "content": {
                "sha256": sha256(b"hello").hexdigest(),
                "contentType": "text/csv",
                "fileName": "t.csv",
            },
        },
        indent=1,
    )

    @cached_property
    def asset(self) -> bytes:
        """The id of an asset with content."""
        venue = self.node.venue()
        id = venue.register(self.metadata)
        venue.put_content(id, b"hello")
        return id

    @property
    def assets(self) -> int:
        """How many assets there are."""
        return len(self.node.venue().assets())

    @cached_property
    def one_job(self) -> bytes:
        """The id of one paused job, the same each time."""
        return self.job(is_paused=True)

    def wait_in_store(self) -> bytes:
        """Have an intention of another author wait in the store; return its hash."""
        before = Intention.build(BOB.public_key, Hlc(1, 0), self.store, NO_HASH, (), b"")
        signed = before.sign(BOB)
        self.node.weaver.open(self.store).ingest([signed.encode()])
        return signed.hash

    def token_id(self) -> str:
        """Return the id of a new token, which is shown once."""
        made = self.access.issue(BOB_DID, ["r lattice"], 60, issued_for=OPERATOR)
        self.token = made.token
        assert self.access.enter(bearer(self.token)).did == BOB_DID
        return made.token_id

    def is_refused(self, token: str) -> bool:
        """Return whether a token is no longer taken."""
        try:
            return self.access.enter(bearer(token)).did is None
        except Unauthenticated:
            return True

    def lock(self, path: str) -> str:
        """Lock a directory of the drive with all below it; return the token."""
        request = a.TakeLock(drive="files", path=path, is_deep=True, owner_note="lent")
        return self.service.call(request, OPERATOR).token

    def locked_by(self, token: str, path: str) -> bool:
        """Return whether a write to a path needs this token, and passes with it."""
        write = a.WriteFile(drive="files", path=path, data=b"x")
        try:
            self.service.call(write, OPERATOR)
        except FileLocked:
            return self.service.call(replace(write, lock_tokens=(token,)), OPERATOR).size == 1
        return False

    def tips(self) -> tuple[bytes, ...]:
        """Return two witnessed intentions of the store."""
        with self.node.weaver.view(self.store) as view:
            return tuple(entry.signed.hash for entry in view.entries())[-2:]

    def effects(self) -> object:
        """Return what differs after each further effect."""
        stores = self.node.weaver
        logs = {}
        for info in [*stores.list(None), *stores.list(self.store)]:
            with stores.view(info.id) as view:
                logs[info.id] = view.last_seq()
        parts, calls = self.jobs.private()
        messages = sum(len(part.queue) for part in parts.values())
        return value_hash(replicable(self.node.cursor().get())), logs, messages, len(calls)

    def last_seq(self) -> int:
        """Return the number of the newest record of the store."""
        with self.node.weaver.view(self.store) as view:
            return view.last_seq()

    def close(self) -> None:
        self.venue.close(0.1)
        self.node.close()
        self._folder.cleanup()


class Backend(Protocol):
    """A way to a service."""

    def call(self, request: ActionRequest[Any], request_id: str | None = None) -> Any: ...
    def call_from_another(self, request: ActionRequest[Any], request_id: str) -> Any:
        """Call as another program of the same user, from any thread."""

    def take(self, request: ActionRequest[Any], count: int, act: Callable[[], object]) -> list[Any]:
        """Begin a stream, do `act`, and return the first `count` items."""


Make = Callable[[Any], ActionRequest[Any]]
"""Makes a request for a world."""


@dataclass(frozen=True)
class Good:
    make: Make
    check: Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Bad:
    make: Make
    error: type[DataLatticeError]


@dataclass(frozen=True)
class Flow:
    """Of a stream: what is done while it is open makes `count` items, of which `check` holds."""

    make: Make
    act: Callable[[Any], object]
    count: int
    check: Callable[[list[Any], Any], bool]


def foreign_databases() -> Value:
    """Return the databases of another owner, as another node has them."""
    with datalattice.open(":memory:") as other:
        other.database("theirs")["k"] = 1
        return other.cursor(Keyword("kv")).get()


def put(world: World) -> None:
    world.node.store("notes", "kv")["k"] = "w"


GOOD: dict[str, Good | Flow] = {
    "venue.operations": Good(
        lambda w: a.ListOperations(),
        lambda r, w: ("v/ops/echo/back", "Back") in [(o.path, o.name) for o in r.operations],
    ),
    "venue.did": Good(
        lambda w: a.GetVenueDid(),
        lambda r, w: r.document["id"] == w.node.venue().did,
    ),
    "venue.asset_did": Good(
        lambda w: a.GetAssetDid(id=w.asset),
        lambda r, w: r.document["id"] == f"{w.node.venue().did}/a/{w.asset.hex()}",
    ),
    "venue.assets": Good(
        lambda w: a.ListAssets(offset=1 if w.asset else 0, limit=1),
        lambda r, w: (r.total, r.offset, r.limit, len(r.items)) == (w.assets, 1, 1, 1),
    ),
    "venue.asset": Good(lambda w: a.GetAsset(id=w.asset), lambda r, w: r.metadata == w.metadata),
    "venue.register": Good(
        lambda w: a.RegisterAsset(metadata='{ "new": 1 }\n'),
        lambda r, w: w.node.venue().asset(r.id) == '{ "new": 1 }\n',
    ),
    "venue.content": Good(
        lambda w: a.StatContent(id=w.asset),
        lambda r, w: (r.id, r.size, r.media_type, r.file_name) == (w.asset, 5, "text/csv", "t.csv"),
    ),
    "venue.download": Flow(
        lambda w: a.GetContent(id=w.asset, start=1),
        lambda w: None,
        1,
        lambda items, w: [(one.data, one.start, one.size) for one in items] == [(b"ello", 1, 5)],
    ),
    "venue.upload": Good(
        lambda w: a.PutContent(id=w.asset, data=b"hello"),
        lambda r, w: r.hash == sha256(b"hello").digest(),
    ),
    "venue.operation": Good(
        lambda w: a.GetOperation(path="v/ops/echo/back"),
        lambda r, w: (r.path, r.name, len(r.asset)) == ("v/ops/echo/back", "Back", 32),
    ),
    "venue.watch": Flow(
        lambda w: a.WatchJob(id=w.one_job),
        lambda w: w.service.call(a.CancelJob(id=w.one_job), OPERATOR),
        1,
        lambda items, w: (
            [(one.id, one.resume) for one in items] == [(w.one_job, str(items[0].updated))]
        ),
    ),
    "venue.invoke": Good(
        lambda w: a.InvokeOperation(operation="v/ops/echo/back", input=ONE, wait_ms=60_000),
        lambda r, w: (r.status, r.input, r.output) == ("COMPLETE", ONE, ONE),
    ),
    "venue.jobs": Good(
        lambda w: a.ListJobIds(status="PAUSED", before=b"\xff" * 16, count=5 if w.one_job else 0),
        lambda r, w: r.jobs == (w.one_job,),
    ),
    "venue.job": Good(
        lambda w: a.GetJob(id=w.one_job),
        lambda r, w: (r.id, r.status, r.op_name) == (w.one_job, "PAUSED", "v/ops/ledger/pure"),
    ),
    "venue.cancel": Good(
        lambda w: a.CancelJob(id=w.one_job),
        lambda r, w: (r.id, r.status) == (w.one_job, "CANCELLED"),
    ),
    "venue.pause": Good(lambda w: a.PauseJob(id=w.job()), lambda r, w: r.status == "PAUSED"),
    "venue.resume": Good(
        lambda w: a.ResumeJob(id=w.one_job), lambda r, w: r.id == w.one_job and r.status != "PAUSED"
    ),
    "venue.message": Good(
        lambda w: a.MessageJob(id=w.one_job, message=ONE),
        lambda r, w: (r.id, r.queue_depth) == (w.one_job, 1),
    ),
    "venue.schedule": Good(
        lambda w: a.ScheduleOperation(operation="v/ops/echo/back", input=ONE, time_ms=LATER_MS),
        lambda r, w: (r.time, r.job[:6]) == (LATER_MS, r.handle[2:8]),
    ),
    "venue.scheduled": Good(
        lambda w: a.ListScheduled(after=w.call[:8]),
        lambda r, w: [one.handle for one in r.calls] == [w.call],
    ),
    "venue.unschedule": Good(
        lambda w: a.UnscheduleCall(handle=w.scheduled()),
        lambda r, w: r == a.Empty(),
    ),
    "venue.delete": Good(
        lambda w: a.DeleteJob(id=w.one_job),
        lambda r, w: w.one_job not in w.service.call(a.ListJobIds(), OPERATOR).jobs,
    ),
    "queue.topics": Good(
        lambda w: a.ListTopics(),
        lambda r, w: (
            [(t.topic, t.owner, t.partitions[0].end) for t in r.topics] == [("log", w.owner, 2)]
        ),
    ),
    "queue.create": Good(
        lambda w: a.CreateTopic(topic="new", partitions=3),
        lambda r, w: w.node.topic("new").num_partitions == 3,
    ),
    "queue.offer": Good(
        lambda w: a.OfferRecords(topic="log", values=("c", 7, Map.of({"x": None})), partition=0),
        lambda r, w: (
            [(s.partition, s.start, s.end) for s in r.spans] == [(0, 2, 5)]
            and w.node.queue("log")[4] == Map.of({"x": None})
        ),
    ),
    "queue.range": Good(
        lambda w: a.ReadRecords(topic="log", start=-1),
        lambda r, w: [(one.offset, one.value) for one in r.records] == [(1, "b")] and r.end == 2,
    ),
    "queue.follow": Flow(
        lambda w: a.FollowTopic(topic="log", start="1"),
        lambda w: w.node.queue("log").offer("c"),
        2,
        lambda items, w: [one.value for one in items] == ["b", "c"],
    ),
    "queue.truncate": Good(
        lambda w: a.TruncateTopic(topic="log", start=1),
        lambda r, w: r.count == 1 and w.node.queue("log").start_offset() == 1,
    ),
    "kv.databases": Good(
        lambda w: a.ListDatabases(),
        lambda r, w: [(one.database, one.keys) for one in r.databases] == [("shop", 2)],
    ),
    "kv.get": Good(
        lambda w: a.GetKey(database="shop", key="tea"),
        lambda r, w: (r.key, r.type, r.value, r.ttl_ms) == ("tea", "value", 3, None),
    ),
    "kv.range": Good(
        lambda w: a.ReadKeys(database="shop", count=1, after="set"),
        lambda r, w: [one.key for one in r.entries] == ["tea"] and not r.has_more,
    ),
    "kv.write": Good(
        lambda w: a.WriteKeys(
            database="shop",
            writes=(
                KeyWrite(key="tea", value="green", ttl_ms=60_000),
                KeyWrite(key="n", operation=KeyOperation.INCR, amount=4),
                KeyWrite(key="h", operation=KeyOperation.HSET, field="f", value=b"\x00"),
                KeyWrite(key="z", operation=KeyOperation.ZADD, score=0.5, value="m"),
            ),
        ),
        lambda r, w: (
            r.results == (None, 4, True, True) and w.node.database("shop")["tea"] == "green"
        ),
    ),
    "kv.watch": Flow(
        lambda w: a.WatchKeys(database="shop", prefix="t"),
        lambda w: w.node.database("shop").set("tea", 9),
        1,
        lambda items, w: [(one.key, one.value) for one in items] == [("tea", 9)],
    ),
    "drive.drives": Good(lambda w: a.ListDrives(), lambda r, w: r.drives == ("files",)),
    "drive.stat": Good(
        lambda w: a.StatFile(drive="files", path="/a.txt"),
        lambda r, w: (r.path, r.size, r.is_directory) == ("/a.txt", 5, False),
    ),
    "drive.list": Good(
        lambda w: a.ListDirectory(drive="files"),
        lambda r, w: [one.path for one in r.entries] == ["/a.txt", "/full"] and not r.next,
    ),
    "drive.read": Good(
        lambda w: a.ReadFile(drive="files", path="/a.txt", start=1, count=3),
        lambda r, w: (r.data, r.start, r.size) == (b"ell", 1, 5),
    ),
    "drive.write": Good(
        lambda w: a.WriteFile(
            drive="files",
            path="/a.txt",
            data=b"\x00new",
            if_match=w.node.drive("files").stat("/a.txt").hash,
        ),
        lambda r, w: r.size == 4 and w.node.drive("files").read("/a.txt") == b"\x00new",
    ),
    "drive.get": Flow(
        lambda w: a.GetFile(drive="files", path="/a.txt", start=1),
        lambda w: None,
        1,
        lambda items, w: (items[0].data, items[0].start, items[0].size) == (b"ello", 1, 5),
    ),
    "drive.put": Good(
        lambda w: a.PutFile(drive="files", path="/big", data=b"x" * 2_000_000, is_new=True),
        lambda r, w: r.size == 2_000_000 and w.node.drive("files").read("/big") == b"x" * 2_000_000,
    ),
    "drive.mkdir": Good(
        lambda w: a.MakeDirectory(drive="files", path="/dir"),
        lambda r, w: w.node.drive("files").is_dir("/dir"),
    ),
    "drive.remove": Good(
        lambda w: a.RemoveFile(drive="files", path="/full", is_recursive=True),
        lambda r, w: not w.node.drive("files").exists("/full"),
    ),
    "drive.move": Good(
        lambda w: a.MoveFile(drive="files", path="/a.txt", target="/c d.txt"),
        lambda r, w: w.node.drive("files").read("/c d.txt") == b"hello",
    ),
    "drive.copy": Good(
        lambda w: a.CopyFile(drive="files", path="/full", target="/again"),
        lambda r, w: w.node.drive("files").read("/again/b.txt") == b"b",
    ),
    "drive.set_properties": Good(
        lambda w: a.SetProperties(
            drive="files",
            path="/a.txt",
            set=(a.FileProperty(name="{urn:x}author", value="J\u00f6rg & co"),),
            remove=("absent",),
        ),
        lambda r, w: (
            r.properties == (a.FileProperty(name="{urn:x}author", value="J\u00f6rg & co"),)
            and w.node.drive("files").stat("/a.txt").properties
            == {"{urn:x}author": "J\u00f6rg & co"}
        ),
    ),
    "drive.lock": Good(
        lambda w: a.TakeLock(drive="files", path="/new.txt", owner_note="me", timeout_s=9_999),
        lambda r, w: (
            r.is_new
            and 3_500_000 <= r.expires_ms - SystemClock().now_ms() <= 3_600_000
            and w.locked_by(r.token, "/new.txt")
        ),
    ),
    "drive.unlock": Good(
        lambda w: a.UnlockFile(drive="files", path="/full/b.txt", token=w.lock("/full")),
        lambda r, w: w.service.call(a.ListLocks(drive="files"), OPERATOR).locks == (),
    ),
    "drive.locks": Good(
        lambda w: a.ListLocks(drive="files", path="/full/b.txt", owner=w.lock("/full") and "own"),
        lambda r, w: (
            [(one.path, one.is_deep, one.owner_note) for one in r.locks]
            == [("/full", True, "lent")]
        ),
    ),
    "values.put": Good(
        lambda w: a.PutValue(value=Map.of({"a": 1}), label="mine"),
        lambda r, w: r.is_new and w.node.value(r.hash) == Map.of({"a": 1}),
    ),
    "values.get": Good(
        lambda w: a.GetValue(hash=w.hash, path="deep/1"),
        lambda r, w: r.value == 2 and r.hash == value_hash(2),
    ),
    "values.missing": Good(lambda w: a.FindMissing(hash=w.hash), lambda r, w: r.missing == ()),
    "values.encode": Good(
        lambda w: a.EncodeValue(value="x"),
        lambda r, w: r.data == encode_message("x") and r.hash == value_hash("x"),
    ),
    "values.decode": Good(
        lambda w: a.DecodeValue(data=encode_message(Map.of({1: "x"}))),
        lambda r, w: r.value == Map.of({1: "x"}),
    ),
    "lattice.get": Good(
        lambda w: a.GetPath(path=f"kv/0x{w.owner.hex()}/value/shop"),
        lambda r, w: (
            r.hash == value_hash(r.value) and r.root_hash == value_hash(w.node.cursor().get())
        ),
    ),
    "lattice.merge": Good(
        lambda w: a.MergePath(path="kv", value=foreign_databases()),
        # The owner, the DID of the venue, and the one whose databases came.
        lambda r, w: r.changed and len(w.node.owners()) == 3,
    ),
    "lattice.root": Good(
        lambda w: a.GetRoot(),
        lambda r, w: r.hash == value_hash(w.node.cursor().get()) and ":kv" in r.sections,
    ),
    "lattice.watch": Flow(
        lambda w: a.WatchRoot(),
        lambda w: w.node.queue("log").offer("c"),
        2,
        lambda items, w: items[0].hash != items[1].hash == value_hash(w.node.cursor().get()),
    ),
    "lattice.history": Good(
        lambda w: a.ListRoots(count=2),
        lambda r, w: [one.ref for one in r.roots] == ["HEAD", "HEAD~1"],
    ),
    "pins.list": Good(
        lambda w: a.ListPins(),
        lambda r, w: [(p.label, p.hash) for p in r.pins] == [("kept", w.hash)],
    ),
    "pins.put": Good(
        lambda w: a.PutPin(label="again", hash=w.hash), lambda r, w: len(w.node.pins()) == 2
    ),
    "pins.delete": Good(lambda w: a.DeletePin(label="kept"), lambda r, w: w.node.pins() == []),
    "policy.get": Good(
        lambda w: a.GetPolicy(scope="stores/x"),
        lambda r, w: (
            (r.scope, r.rights, r.version) == ("stores/x", (), "")
            and [(one.right, one.who, one.scope) for one in r.inherited]
            == [("r", ("public",), "stores")]
        ),
    ),
    "policy.put": Good(
        lambda w: a.PutPolicy(
            scope=f"lattice/kv/{BOB_DID}/shop",
            rights=(
                a.RightHolders(right="w", who=("authenticated",)),
                a.RightHolders(right="p", who=()),
            ),
            if_match="",
        ),
        lambda r, w: (
            w.access.policy().rules[r.scope] == {"w": ("authenticated",), "p": ()}
            and r.version == w.access.policies.get(r.scope).version
        ),
    ),
    "policy.delete": Good(
        lambda w: a.DeletePolicy(scope="stores", if_match=w.access.policies.get("stores").version),
        lambda r, w: w.access.policy().rules == {},
    ),
    "tokens.issue": Good(
        lambda w: a.IssueToken(subject=BOB_DID, scopes=("r lattice",), life_s=60),
        lambda r, w: (
            w.access.enter(bearer(r.token)).did == BOB_DID and r.ends_ms == NOW_MS + 60_000
        ),
    ),
    "tokens.revoke": Good(
        lambda w: a.RevokeToken(token_id=w.token_id()), lambda r, w: w.is_refused(w.token)
    ),
    "node.audit": Flow(
        lambda w: a.WatchAudit(),
        lambda w: w.service.call(a.DeletePin(label="kept"), OPERATOR),
        1,
        lambda items, w: (
            (items[0].record.action, items[0].record.how) == ("pins.delete", "process")
        ),
    ),
    "node.events": Flow(
        lambda w: a.WatchNode(),
        lambda w: w.events.add(
            a.NodeEvent(join_failed=a.JoinFailed(root_id=NO_STORE, reason="refused"))
        ),
        1,
        lambda items, w: items[0].join_failed.reason == "refused",
    ),
    "node.set_name": Good(
        lambda w: a.NameNode(name="north"),
        lambda r, w: [peer.name for peer in w.node.store("notes").peers()] == ["north"],
    ),
    "node.status": Good(
        lambda w: a.GetNodeStatus(),
        lambda r, w: (
            r.owner == w.owner and r.mesh_count == 1 and r.version == datalattice.__version__
        ),
    ),
    "node.store_types": Good(lambda w: a.ListStoreTypes(), lambda r, w: "core:kvstore" in r.items),
    "stores.create": Good(
        lambda w: a.CreateStore(name="more", store_type="core:logstore", parent_id=w.store),
        lambda r, w: (
            [info.id for info in w.node.weaver.list(w.store) if info.name == "more"] == [r.id]
        ),
    ),
    "stores.list": Good(
        lambda w: a.ListStores(),
        lambda r, w: (
            [(s.id, s.store_type, s.name, s.archived) for s in r.items]
            == [(w.store, "core:kvstore", "notes", False)]
        ),
    ),
    "stores.get": Good(
        lambda w: a.GetStore(id=w.store),
        lambda r, w: (r.id, r.store_type, r.schema_version) == (w.store, "core:kvstore", 1),
    ),
    "stores.details": Good(
        lambda w: a.GetStoreDetails(id=w.store),
        lambda r, w: (
            r.author_count == 1
            and r.intention_count == r.witness_head_seq == r.last_applied_seq
            and r.last_applied_hash == r.witness_head_hash
        ),
    ),
    "stores.archive": Good(
        lambda w: a.ArchiveStore(store_id=w.store, child_id=w.child),
        lambda r, w: w.node.stores(w.node.store("notes")) == [],
    ),
    "stores.rebuild": Good(
        lambda w: a.RebuildStore(id=w.store), lambda r, w: w.node.store("notes", "kv")["k"] == "v"
    ),
    "stores.get_name": Good(lambda w: a.GetStoreName(id=w.store), lambda r, w: r.name == "notes"),
    "stores.set_name": Good(
        lambda w: a.NameStore(store_id=w.store, name="other"),
        lambda r, w: w.node.stores() == ["other"],
    ),
    "stores.tips": Good(
        lambda w: a.GetAuthorTips(id=w.store),
        lambda r, w: [(t.hash, t.peer_status) for t in r.items] == [(w.tips()[-1], "active")],
    ),
    "stores.witness_log": Good(
        lambda w: a.ReadWitnessLog(store_id=w.store, start_seq=2, limit=2),
        lambda r, w: [one.seq for one in r.items] == [2, 3] and len(r.items[0].signature) == 64,
    ),
    "stores.intention": Good(
        lambda w: a.GetIntention(store_id=w.store, hash_prefix=w.tips()[0][:8]),
        lambda r, w: r.intention.hash == w.tips()[0],
    ),
    "stores.floating": Good(
        lambda w: a.ListFloating(id=w.store if w.wait_in_store() else b""),
        lambda r, w: [one.intention.hash for one in r.items] == [w.wait_in_store()],
    ),
    "stores.history": Good(
        lambda w: a.ReadHistory(id=w.store, limit=2),
        lambda r, w: len(r.items) == 2 and r.next_seq == 3 and r.items[0].operations,
    ),
    "stores.system": Good(
        lambda w: a.ListSystem(id=w.store), lambda r, w: b"name" in [one.key for one in r.items]
    ),
    "stores.peers": Good(
        lambda w: a.ListStorePeers(id=w.store),
        lambda r, w: [(p.status, p.online) for p in r.items] == [("active", True)],
    ),
    "stores.revoke": Good(
        lambda w: a.RevokePeer(store_id=w.store, peer_key=NO_HASH),
        lambda r, w: len(w.node.store("notes").peers()) == 2,
    ),
    "stores.strategy": Good(
        lambda w: a.GetStrategy(id=w.child), lambda r, w: r.strategy == "inherited"
    ),
    "stores.branch": Good(
        lambda w: a.InspectBranch(store_id=w.store, heads=w.tips()[-1:] * 2),
        lambda r, w: len(r.branches) == 2,
    ),
    "stores.invite": Good(lambda w: a.InvitePeer(id=w.store), lambda r, w: r.token != ""),
    "stores.follow": Flow(
        lambda w: a.FollowStore(id=w.store, start="end"),
        put,
        1,
        lambda items, w: (items[0].intention.hash, items[0].seq) == (w.tips()[-1], w.last_seq()),
    ),
    "stores.exec": Good(
        lambda w: a.ExecMethod(
            store_id=w.store, method="get", payload=GetRequest(key=b"k").encode()
        ),
        lambda r, w: r.error_code == 0 and GetResponse.decode(r.result).value == b"v",
    ),
    "stores.query": Good(
        lambda w: a.QueryStore(store_id=w.store, method="get", arguments=Map.of({"key": "k"})),
        lambda r, w: r.answer["value"] == "v",
    ),
    "stores.descriptor": Good(
        lambda w: a.GetDescriptor(id=w.store),
        lambda r, w: len(r.file_descriptor_set) > 100 and "." in r.service_name,
    ),
    "stores.methods": Good(
        lambda w: a.ListMethods(id=w.store),
        lambda r, w: ("Put", 0) in [(one.name, one.kind) for one in r.items],
    ),
    "stores.streams": Good(
        lambda w: a.ListStreams(id=w.store), lambda r, w: [one.name for one in r.items] == ["watch"]
    ),
    "stores.subscribe": Flow(
        lambda w: a.SubscribeStream(
            store_id=w.store, stream_name="watch", params=WatchParams(prefix=b"k").encode()
        ),
        put,
        1,
        lambda items, w: b"w" in items[0].payload,
    ),
}

BAD: dict[str, Bad] = {
    "venue.operations": Bad(lambda w: a.ListOperations(count=1_001), LimitExceeded),
    "venue.did": Bad(lambda w: a.GetAssetDid(id=b"short"), UsageError),
    "venue.asset_did": Bad(lambda w: a.GetAssetDid(id=NO_HASH), NoSuchPath),
    "venue.assets": Bad(lambda w: a.ListAssets(limit=1_001), UsageError),
    "venue.asset": Bad(lambda w: a.GetAsset(id=NO_HASH), NoSuchPath),
    "venue.register": Bad(lambda w: a.RegisterAsset(metadata="[]"), UsageError),
    "venue.content": Bad(lambda w: a.StatContent(id=NO_HASH), NoSuchPath),
    "venue.download": Bad(lambda w: a.GetContent(id=NO_HASH), NoSuchPath),
    "venue.upload": Bad(lambda w: a.PutContent(id=w.asset, data=b"hallo"), UsageError),
    "venue.operation": Bad(lambda w: a.GetOperation(path="v/ops/none"), NoSuchPath),
    "venue.watch": Bad(lambda w: a.WatchJob(id=w.one_job, resume="soon"), UsageError),
    "venue.invoke": Bad(lambda w: a.InvokeOperation(operation="v/ops/no/such"), NoSuchPath),
    "venue.jobs": Bad(lambda w: a.ListJobIds(count=1_001), LimitExceeded),
    "venue.job": Bad(lambda w: a.GetJob(id=b"1" * 16), NoSuchPath),
    "venue.cancel": Bad(lambda w: a.CancelJob(id=b"1" * 16), NoSuchPath),
    "venue.pause": Bad(lambda w: a.PauseJob(id=w.one_job), Conflict),
    "venue.resume": Bad(lambda w: a.ResumeJob(id=w.job()), Conflict),
    "venue.message": Bad(lambda w: a.MessageJob(id=b"1" * 16, message=1), NoSuchPath),
    "venue.schedule": Bad(
        lambda w: a.ScheduleOperation(operation="v/ops/echo/back", input=ONE), UsageError
    ),
    "venue.scheduled": Bad(lambda w: a.ListScheduled(count=1_001), LimitExceeded),
    "venue.unschedule": Bad(lambda w: a.UnscheduleCall(handle=b"1" * 16), NoSuchPath),
    "venue.delete": Bad(lambda w: a.DeleteJob(id=b"1" * 16), NoSuchPath),
    "queue.topics": Bad(lambda w: a.ListTopics(owner="nobody!"), UsageError),
    "queue.create": Bad(lambda w: a.CreateTopic(topic="log", partitions=5), AlreadyExists),
    "queue.offer": Bad(lambda w: a.OfferRecords(topic="log"), UsageError),
    "queue.range": Bad(lambda w: a.ReadRecords(topic="log", count=1_001), LimitExceeded),
    "queue.follow": Bad(lambda w: a.FollowTopic(topic="log", start="middle"), UsageError),
    "queue.truncate": Bad(lambda w: a.TruncateTopic(topic="log", start=1, partition=9), NoSuchPath),
    "kv.databases": Bad(lambda w: a.ListDatabases(owner="nobody!"), UsageError),
    "kv.get": Bad(lambda w: a.GetKey(database="shop", key="absent"), NoSuchPath),
    "kv.range": Bad(lambda w: a.ReadKeys(database="shop", count=1_001), LimitExceeded),
    "kv.write": Bad(
        lambda w: a.WriteKeys(
            database="shop",
            writes=(
                KeyWrite(key="new", value=1),
                KeyWrite(key="set", operation=KeyOperation.INCR),
            ),
        ),
        WrongType,
    ),
    "kv.watch": Bad(lambda w: a.WatchKeys(database=""), UsageError),
    "drive.drives": Bad(lambda w: a.ListDrives(owner="nobody!"), UsageError),
    "drive.stat": Bad(lambda w: a.StatFile(drive="files", path="/absent"), NoSuchPath),
    "drive.list": Bad(lambda w: a.ListDirectory(drive="files", path="/none"), NoSuchPath),
    "drive.read": Bad(lambda w: a.ReadFile(drive="files", path="/full"), IsADirectory),
    "drive.write": Bad(
        lambda w: a.WriteFile(drive="files", path="/a.txt", data=b"x", if_match=NO_HASH), Conflict
    ),
    "drive.get": Bad(lambda w: a.GetFile(drive="files", path="/full"), IsADirectory),
    "drive.put": Bad(
        lambda w: a.PutFile(drive="files", path="/a.txt", data=b"x", if_match=NO_HASH), Conflict
    ),
    "drive.mkdir": Bad(lambda w: a.MakeDirectory(drive="files", path="/full"), AlreadyExists),
    "drive.remove": Bad(lambda w: a.RemoveFile(drive="files", path="/full"), DirectoryNotEmpty),
    "drive.move": Bad(
        lambda w: a.MoveFile(drive="files", path="/a.txt", target="/full/b.txt"), AlreadyExists
    ),
    "drive.copy": Bad(lambda w: a.CopyFile(drive="files", path="/none", target="/x"), NoSuchPath),
    "drive.set_properties": Bad(
        lambda w: a.SetProperties(drive="files", path="/a.txt", remove=("",)), UsageError
    ),
    "drive.lock": Bad(
        lambda w: a.TakeLock(drive="files", path="/full/b.txt", owner=w.lock("/full") and "own"),
        FileLocked,
    ),
    "drive.unlock": Bad(lambda w: a.UnlockFile(drive="files", token="none"), NoSuchPath),
    "drive.locks": Bad(lambda w: a.ListLocks(drive="files", owner="nobody!"), UsageError),
    "values.put": Bad(lambda w: a.PutValue(value=1, label="kept"), UsageError),
    "values.get": Bad(lambda w: a.GetValue(hash=NO_HASH), NoSuchPath),
    "values.missing": Bad(lambda w: a.FindMissing(hash=b"short"), UsageError),
    "values.encode": Bad(lambda w: a.EncodeValue(value=object()), UsageError),
    "values.decode": Bad(lambda w: a.DecodeValue(data=b"\xff"), BadFormat),
    "lattice.get": Bad(lambda w: a.GetPath(path="kv/none"), NoSuchPath),
    "lattice.merge": Bad(lambda w: a.MergePath(path="kv", value=5), DataLatticeError),
    "lattice.root": Bad(lambda w: a.GetPath(path="nowhere"), NoSuchPath),
    "lattice.watch": Bad(lambda w: a.GetPath(path='"'), UsageError),
    "lattice.history": Bad(lambda w: a.ListRoots(count=1_001), LimitExceeded),
    "pins.list": Bad(lambda w: a.DeletePin(label="none"), NoSuchPath),
    "pins.put": Bad(lambda w: a.PutPin(label="x", hash=NO_HASH), MissingData),
    "pins.delete": Bad(lambda w: a.DeletePin(label="none"), NoSuchPath),
    "policy.get": Bad(lambda w: a.GetPolicy(scope="nowhere"), UsageError),
    "policy.put": Bad(
        lambda w: a.PutPolicy(
            scope="stores", rights=(a.RightHolders(right="r", who=()),), if_match=""
        ),
        Conflict,
    ),
    "policy.delete": Bad(lambda w: a.DeletePolicy(scope="values"), NoSuchPath),
    "tokens.issue": Bad(lambda w: a.IssueToken(subject="bob"), UsageError),
    "tokens.revoke": Bad(lambda w: a.RevokeToken(token_id="t", issuer="bob"), UsageError),
    "node.audit": Bad(lambda w: a.GetPolicy(scope="nowhere"), UsageError),
    "node.events": Bad(lambda w: a.GetPolicy(scope="nowhere"), UsageError),
    "node.set_name": Bad(lambda w: a.NameNode(name="a\nb"), UsageError),
    "node.status": Bad(lambda w: a.ListPeers(), PeerUnavailable),
    "node.store_types": Bad(lambda w: a.ListPeers(), PeerUnavailable),
    "forks.list": Bad(lambda w: a.ShowFork(id="zz"), NoSuchPath),
    "forks.show": Bad(lambda w: a.ShowFork(id="f0", count=1_001), LimitExceeded),
    "forks.export": Bad(lambda w: a.ExportFork(id="f0"), NoSuchPath),
    "node.reload": Bad(lambda w: a.ReloadSettings(), PeerUnavailable),
    "peers.list": Bad(lambda w: a.ListPeers(), PeerUnavailable),
    "peers.put": Bad(lambda w: a.AddPeer(address="127.0.0.1:1"), PeerUnavailable),
    "peers.remove": Bad(lambda w: a.RemovePeer(address="127.0.0.1:1"), PeerUnavailable),
    "stores.create": Bad(lambda w: a.CreateStore(store_type="no:kind"), UsageError),
    "stores.list": Bad(lambda w: a.ListStores(parent_id=NO_STORE), NoSuchPath),
    "stores.archive": Bad(
        lambda w: a.ArchiveStore(store_id=w.store, child_id=NO_STORE), NoSuchPath
    ),
    "stores.set_name": Bad(lambda w: a.NameStore(store_id=NO_STORE, name="x"), NoSuchPath),
    "stores.sync": Bad(lambda w: a.SyncStore(id=w.store), PeerUnavailable),
    "stores.witness_log": Bad(
        lambda w: a.ReadWitnessLog(store_id=w.store, limit=1_001), LimitExceeded
    ),
    "stores.intention": Bad(
        lambda w: a.GetIntention(store_id=w.store, hash_prefix=NO_HASH), NoSuchPath
    ),
    "stores.revoke": Bad(lambda w: a.RevokePeer(store_id=w.child, peer_key=NO_HASH), UsageError),
    "stores.query": Bad(
        lambda w: a.QueryStore(
            store_id=w.store, method="put", arguments=Map.of({"key": "k", "value": "w"})
        ),
        UsageError,
    ),
    "stores.branch": Bad(
        lambda w: a.InspectBranch(store_id=w.store, heads=w.tips()[:1]), UsageError
    ),
    "stores.join": Bad(lambda w: a.JoinStore(token="x"), DataLatticeError),
    "stores.subscribe": Bad(
        lambda w: a.SubscribeStream(store_id=w.store, stream_name="none"), UsageError
    ),
}

# These differ in the id alone.
for _name, _request in (
    ("stores.get", a.GetStore),
    ("stores.details", a.GetStoreDetails),
    ("stores.rebuild", a.RebuildStore),
    ("stores.get_name", a.GetStoreName),
    ("stores.tips", a.GetAuthorTips),
    ("stores.floating", a.ListFloating),
    ("stores.history", a.ReadHistory),
    ("stores.follow", a.FollowStore),
    ("stores.system", a.ListSystem),
    ("stores.peers", a.ListStorePeers),
    ("stores.strategy", a.GetStrategy),
    ("stores.invite", a.InvitePeer),
    ("stores.descriptor", a.GetDescriptor),
    ("stores.methods", a.ListMethods),
    ("stores.streams", a.ListStreams),
):
    BAD[_name] = Bad(lambda w, request=_request: request(id=NO_STORE), NoSuchPath)  # type: ignore[misc]

ONCE: dict[str, tuple[Make, Make]] = {
    "venue.invoke": (
        lambda w: a.InvokeOperation(operation="v/ops/echo/back", input=ONE, wait_ms=60_000),
        lambda w: a.InvokeOperation(operation="v/ops/echo/back", input=1, wait_ms=60_000),
    ),
    "venue.message": (
        lambda w: a.MessageJob(id=w.one_job, message=1),
        lambda w: a.MessageJob(id=w.one_job, message=2),
    ),
    "venue.schedule": (
        lambda w: a.ScheduleOperation(operation="v/ops/echo/back", input=ONE, after_ms=LATER_MS),
        lambda w: a.ScheduleOperation(operation="v/ops/echo/back", input=1, after_ms=LATER_MS),
    ),
    "queue.offer": (
        lambda w: a.OfferRecords(topic="log", values=("c",), partition=0),
        lambda w: a.OfferRecords(topic="log", values=("d",), partition=0),
    ),
    "kv.write": (
        lambda w: a.WriteKeys(
            database="shop",
            writes=(
                KeyWrite(key="n", operation=KeyOperation.INCR),
                KeyWrite(key="l", operation=KeyOperation.RPUSH, value="x" * 5_000),
            ),
        ),
        lambda w: a.WriteKeys(
            database="shop", writes=(KeyWrite(key="n", operation=KeyOperation.INCR, amount=1),)
        ),
    ),
    "stores.create": (
        lambda w: a.CreateStore(name="more", store_type="core:logstore", parent_id=w.store),
        lambda w: a.CreateStore(name="more", store_type="core:kvstore", parent_id=w.store),
    ),
    "stores.invite": (
        lambda w: a.InvitePeer(id=w.store),
        lambda w: a.InvitePeer(id=w.node.store("other", "kv").store.id),
    ),
    "stores.exec": (
        lambda w: a.ExecMethod(
            store_id=w.store, method="put", payload=PutRequest(key=b"k", value=b"w").encode()
        ),
        lambda w: a.ExecMethod(
            store_id=w.child, method="put", payload=PutRequest(key=b"k", value=b"w").encode()
        ),
    ),
}
"""Of each action of kind ONCE: a request that has an effect each time, and another one."""

for _node_request in (
    a.GetNodeHealth(),
    a.WaitForRoot(),
    a.StopNode(),
    a.DrainNode(),
    a.PullPeers(),
    a.GetHosting(),
    a.DecideHosting(owner="o", rule="host"),
    a.ForgetOwner(owner="o"),
    a.ForgetRoots(),
    a.ResolveFork(id="f", how="drop"),
    a.StartTask(heal=a.HealStore()),
    a.ListTasks(),
    a.GetTask(id=1),
    a.WatchTask(id=1),
    a.CancelTask(id=1),
):
    # No node runs in this world.
    BAD[_node_request.action.name] = Bad(lambda w, made=_node_request: made, PeerUnavailable)  # type: ignore[misc]

UNRUN = {"node.stop"}
"""Good cases that end the node: the daemon's tests have them."""
