"""Commands `lattice db ...`: databases of keys, their values and structures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Annotated, Any, Final, TypeVar

import typer

from datalattice.apps.kv import GC_AGE, KV_SECTION, Database, KeyChange
from datalattice.cells import Index, Map, Signed, Value
from datalattice.cli.command import READS, WRITES, Call, command
from datalattice.cli.render import CommandResult, Listing, Records, listed
from datalattice.cli.units import duration_s, duration_text
from datalattice.cli.values import InOption, parse_value, value_json, value_text
from datalattice.client import open_store_reader
from datalattice.cursors import RootLattice
from datalattice.errors import NoSuchPath, UsageError
from datalattice.lattice import root_lattice

T = TypeVar("T")

app = typer.Typer(
    help="Databases: keys with values, hashes, sets, sorted sets, lists and counters. Every write "
    "is signed and on disk."
)

NUMBERS: Final = {"ignore_unknown_options": True}
"""For commands with negative numbers, which look like options."""

WATCH_S: Final = 0.25  # a person sees no delay, and an idle watch costs little
"""Pause between two looks of `watch` for a new root."""

_LISTING: Final = "lattice db list"

DbArgument = Annotated[str, typer.Argument(metavar="DB", help="The database's name.")]
KeyArgument = Annotated[str, typer.Argument(help="The key.")]
MembersArgument = Annotated[list[str], typer.Argument(help="The members.")]
LeftOption = Annotated[bool, typer.Option("--left", help="Use the front of the list.")]
PrefixArgument = Annotated[str, typer.Argument(help="Only keys that begin with this.")]


def databases_of(root: Value) -> list[tuple[bytes, str]]:
    """Return (public key of the owner, name) of the databases in a root value.

    A foreign owner may have stored values under invalid names, which are left out.
    """
    section = root.get(KV_SECTION) if isinstance(root, Index) else None
    found: list[tuple[bytes, str]] = []
    for owner, cell in section.entries() if isinstance(section, Map) else ():
        stores = cell.value if isinstance(cell, Signed) else None  # owners' data is always signed
        if isinstance(owner, bytes) and isinstance(stores, Map):
            found += [(owner, name) for name in stores if isinstance(name, str) and name]
    return sorted(found)


def _read(call: Call, name: str, cursor: RootLattice | None = None) -> Database:
    """Return a database to read from."""
    at = cursor or call.cursor()
    # "Reading takes your own, else the only owner's" (docs/cli.md).
    holders = [one for one, held in databases_of(at.get()) if held == name]
    return Database.at(at, call.holder(holders, f"database {name!r}", _LISTING), name)


def _edit(call: Call, name: str, change: Callable[[Database], T]) -> T:
    """Make one change of a database of our own."""
    # Only the folder's own owner, whose key is here to sign.
    return call.edit(lambda cursor, keys: change(Database.at(cursor, keys.public_key, name)))


def _said(key: str, name: str, result: object) -> CommandResult:
    """Return the result of a write for printing."""
    text = str(result).lower() if isinstance(result, bool) else str(result)
    return CommandResult({"key": key, name: result}, [text])


# --- reading --------------------------------------------------------------------------------------


@command(app, "list", READS)
def list_(call: Call) -> CommandResult:
    """List the databases of all owners here, or of one."""
    cursor = call.cursor()
    held = databases_of(cursor.get())
    owners = call.chosen_owners(sorted({owner for owner, _ in held}))
    rows = [
        {"owner": owner.hex(), "database": name, "keys": len(Database.at(cursor, owner, name))}
        for owner, name in held
        if owner in owners
    ]
    return listed(rows, ("owner", "database", "keys"), owner=call.short_owner)


@command(app, "keys", READS)
def keys(
    call: Call,
    db: DbArgument,
    prefix: PrefixArgument = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Type and time to live too.")] = False,
) -> CommandResult:
    """List the keys of a database, in order."""
    database = _read(call, db)
    rows: list[dict[str, Any]] = [
        {"key": key, "type": entry.type_name, "ttl_ms": _left(database.ttl(key))}
        for key, entry in database.scan(prefix)
    ]
    if not long:
        return CommandResult(rows, [row["key"] for row in rows])
    shown = [(row["key"], row["type"], _ttl_text(row["ttl_ms"])) for row in rows]
    return CommandResult(rows, [Listing(("key", "type", "ttl"), shown)])


def _left(left: timedelta | None) -> int | None:
    return None if left is None else left // timedelta(milliseconds=1)


def _ttl_s(text: str) -> float:
    # "A duration is a number and `ms`, `s`, `m`, `h`, `d` or `w`" (docs/cli.md).
    if duration_s(text) < 0.001:
        raise UsageError(f"a key expires after 1ms or more, such as 90s; got {text!r}")
    return duration_s(text)


def _ttl_text(ttl_ms: int | None) -> str:
    return "never" if ttl_ms is None else duration_text(ttl_ms)


@command(app, "get", READS)
def get(call: Call, db: DbArgument, key: KeyArgument) -> CommandResult:
    """Print the value of a key, or its fields, members, members with scores, elements or total.

    Exit code 1 if there is no such key.
    """
    database = _read(call, db)
    kind = _live_type(database, db, key)
    document, text = _held(database, key, kind)
    ttl_ms = _left(database.ttl(key))
    return CommandResult({"key": key, "type": kind, "value": document, "ttl_ms": ttl_ms}, text)


def _live_type(database: Database, name: str, key: str) -> str:
    """Return the type of a key. Raises: NoSuchPath: there is no such key."""
    kind = database.type(key)
    # Exit code 1: "or absent: a key, a record, a path" (docs/cli.md "Exit codes").
    if kind is None:
        raise NoSuchPath(f"database {name} has no key {key!r}; `lattice db keys {name}` lists them")
    return kind


def _held(database: Database, key: str, kind: str) -> tuple[object, list[str | Listing]]:
    """Return the contents of a key, for JSON and for people."""
    if kind == "hash":
        pairs = [(value_text(name), value) for name, value in database.hgetall(key).entries()]
        document: object = {name: value_json(value) for name, value in pairs}
        rows = [(name, value_text(value)) for name, value in pairs]
        return document, [Listing(("field", "value"), rows)]
    if kind == "zset":
        # A list, because a member need not be a text, as names of a JSON object are.
        scored = database.zitems(key)
        document = [
            {"member": value_json(one), "score": _score_json(score)} for one, score in scored
        ]
        ranked = [(score, value_text(one)) for one, score in scored]
        return document, [Listing(("score", "member"), ranked)]
    if kind in ("set", "list"):
        held: Iterable[Value] = database.smembers(key) if kind == "set" else database.lrange(key)
        members = list(held)
        return [value_json(one) for one in members], [value_text(one) for one in members]
    if kind == "counter":
        total = database.count(key)
        return total, [str(total)]
    value = database[key]
    return value_json(value), [value_text(value)]


def _score_json(score: float) -> object:
    """Return a score for JSON, which has no infinite numbers."""
    return score if math.isfinite(score) else ("Infinity" if score > 0 else "-Infinity")


@command(app, "type", READS)
def type_(call: Call, db: DbArgument, key: KeyArgument) -> CommandResult:
    """Print the type of a key: value, hash, set, zset, list, counter, or none."""
    kind = _read(call, db).type(key)
    return CommandResult({"key": key, "type": kind}, [kind or "none"])


@command(app, "ttl", READS)
def ttl(call: Call, db: DbArgument, key: KeyArgument) -> CommandResult:
    """Print the time until a key expires, or never. Exit code 1 if there is no such key."""
    database = _read(call, db)
    _live_type(database, db, key)
    left = _left(database.ttl(key))
    return CommandResult({"key": key, "ttl_ms": left}, [_ttl_text(left)])


@command(app, "hget", READS)
def hget(
    call: Call,
    db: DbArgument,
    key: KeyArgument,
    field: Annotated[str, typer.Argument(help="The field.")],
) -> CommandResult:
    """Print one field of a hash. Exit code 1 if there is no such field."""
    value = _read(call, db).hget(key, field)
    if value is None:
        raise NoSuchPath(f"key {key!r} has no field {field!r}")
    document = {"key": key, "field": field, "value": value_json(value)}
    return CommandResult(document, [value_text(value)])


@command(app, "watch", ("dir", "owner"))
def watch(
    call: Call,
    db: DbArgument,
    prefix: PrefixArgument = "",
    count: Annotated[
        int | None, typer.Option("--count", help="End after this many changes.", show_default=False)
    ] = None,
    span: Annotated[
        str | None, typer.Option("--for", help="End after this time: 90s, 2h.", show_default=False)
    ] = None,
) -> Records:
    """Print changes by any writer as they happen, until Ctrl-C."""
    if count is not None and count < 1:  # 0 would wait for ever
        raise UsageError(f"--count is 1 or more, got {count}")
    seconds = None if span is None else duration_s(span)
    # Reads the store, so that it works with or without a node.
    store = call.enter(open_store_reader(call.existing))
    cursor = RootLattice(root_lattice(), store.root())
    changes = call.enter(_read(call, db, cursor).watch(prefix))

    def seen_changes() -> Iterator[KeyChange]:
        give_up_s = None if seconds is None else time.monotonic() + seconds
        seen = 0
        while True:
            # The reader shows the newest durable root, whoever wrote it.
            cursor.adopt(lambda _seen: store.root())
            for change in changes.poll():
                yield change
                seen += 1
                if seen == count:  # checked before the next poll, which may wait for ever
                    return
            left_s = WATCH_S if give_up_s is None else give_up_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, WATCH_S))

    return Records(seen_changes(), _change_document, _change_text, is_live=True)


def _change_document(change: KeyChange) -> dict[str, object]:
    value = None if change.deleted else value_json(change.value)
    return {"key": change.key, "type": change.type, "value": value}


def _change_text(change: KeyChange) -> str:
    if change.deleted:
        return f"{change.key}\tdeleted"
    return f"{change.key}\t{change.type}\t{value_text(change.value)}"


# --- writing --------------------------------------------------------------------------------------


@command(app, "set", WRITES)
def set_(
    call: Call,
    db: DbArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="The value.")],
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", help="Time until the key expires: 90s, 2h.", show_default=False),
    ] = None,
    form: InOption = "text",
) -> CommandResult:
    """Set the value of a key, replacing any value. The first write makes the database."""
    cell = parse_value(value, form)  # first: a malformed value must not make a folder and a key
    ttl_s = None if ttl is None else _ttl_s(ttl)
    _edit(call, db, lambda database: database.set(key, cell, ttl_s))
    return CommandResult({"key": key, "value": value_json(cell)}, [])


@command(app, "del", WRITES)
def del_(
    call: Call,
    db: DbArgument,
    names: Annotated[list[str], typer.Argument(metavar="KEYS", help="The keys.")],
) -> CommandResult:
    """Delete keys; print how many existed."""

    def change(database: Database) -> int:
        with database.batch() as batch:  # all keys or none
            return sum([batch.delete(key) for key in names])

    gone = _edit(call, db, change)
    return CommandResult({"deleted": gone}, [str(gone)])


@command(app, "expire", WRITES)
def expire(
    call: Call,
    db: DbArgument,
    key: KeyArgument,
    span: Annotated[str, typer.Argument(metavar="IN", help="Time until then: 90s, 2h, 1d.")],
) -> CommandResult:
    """Let a key expire; print whether the key exists."""
    ttl_s = _ttl_s(span)
    return _said(key, "done", _edit(call, db, lambda database: database.expire(key, ttl_s)))


@command(app, "persist", WRITES)
def persist(call: Call, db: DbArgument, key: KeyArgument) -> CommandResult:
    """Remove the expiry of a key; print whether it had one."""
    return _said(key, "done", _edit(call, db, lambda database: database.persist(key)))


@command(app, "hset", WRITES)
def hset(
    call: Call,
    db: DbArgument,
    key: KeyArgument,
    pairs: Annotated[list[str], typer.Argument(metavar="FIELD VALUE ...", help="Fields, values.")],
    form: InOption = "text",
) -> CommandResult:
    """Set fields of a hash; print how many are new."""
    if len(pairs) % 2:
        raise UsageError(f"hset takes a value after each field; {pairs[-1]!r} has none")
    fields = {
        name: parse_value(value, form) for name, value in zip(pairs[::2], pairs[1::2], strict=True)
    }
    return _said(key, "new", _edit(call, db, lambda database: database.hset_many(key, fields)))


@command(app, "hdel", WRITES)
def hdel(
    call: Call,
    db: DbArgument,
    key: KeyArgument,
    fields: Annotated[list[str], typer.Argument(help="The fields.")],
) -> CommandResult:
    """Remove fields of a hash; print how many existed."""
    return _said(key, "removed", _edit(call, db, lambda database: database.hdel(key, *fields)))


def _member_command(name: str, counted: str, change: Callable[..., int], help: str) -> None:
    """Make a command that changes the members of a key. counted: names its result in JSON."""

    def run(
        call: Call,
        db: DbArgument,
        key: KeyArgument,
        members: MembersArgument,
        form: InOption = "text",
    ) -> CommandResult:
        cells = [parse_value(one, form) for one in members]
        return _said(key, counted, _edit(call, db, lambda database: change(database, key, *cells)))

    run.__doc__ = help
    command(app, name, WRITES)(run)


_member_command("sadd", "new", Database.sadd, "Add members to a set; print how many are new.")
_member_command(
    "srem", "removed", Database.srem, "Remove members from a set; print how many existed."
)
_member_command(
    "zrem", "removed", Database.zrem, "Remove members from a sorted set; print how many existed."
)


@command(app, "zadd", WRITES, context_settings=NUMBERS)
def zadd(
    call: Call,
    db: DbArgument,
    key: KeyArgument,
    score: Annotated[float, typer.Argument(help="The score.")],
    member: Annotated[str, typer.Argument(help="The member.")],
    form: InOption = "text",
) -> CommandResult:
    """Add a member to a sorted set, or change its score; print 1 if it is new, else 0."""
    cell = parse_value(member, form)
    return _said(key, "new", _edit(call, db, lambda database: database.zadd(key, score, cell)))


@command(app, "push", WRITES)
def push(
    call: Call,
    db: DbArgument,
    key: KeyArgument,
    values: Annotated[list[str], typer.Argument(help="The values.")],
    left: LeftOption = False,
    form: InOption = "text",
) -> CommandResult:
    """Append values to a list; print its length. --left prepends them, one by one."""
    cells = [parse_value(one, form) for one in values]

    def change(database: Database) -> int:
        return database.lpush(key, *cells) if left else database.rpush(key, *cells)

    return _said(key, "length", _edit(call, db, change))


@command(app, "pop", WRITES)
def pop(call: Call, db: DbArgument, key: KeyArgument, left: LeftOption = False) -> CommandResult:
    """Remove the last element of a list and print it. Exit code 1 if the list is empty."""

    def change(database: Database) -> CommandResult:
        # Read and removed in one edit, so that no other writer takes the same element.
        if database.llen(key) == 0:
            raise NoSuchPath(f"the list {key!r} has no elements")
        value = database.lpop(key) if left else database.rpop(key)
        return CommandResult({"key": key, "value": value_json(value)}, [value_text(value)])

    return _edit(call, db, change)


@command(app, "incr", WRITES, context_settings=NUMBERS)
def incr(
    call: Call,
    db: DbArgument,
    key: KeyArgument,
    amount: Annotated[int, typer.Argument(help="The amount; negative numbers subtract.")] = 1,
) -> CommandResult:
    """Add to a counter; print the total of all replicas."""
    return _said(key, "total", _edit(call, db, lambda database: database.incr(key, amount)))


@command(app, "gc", WRITES)
def gc(
    call: Call,
    db: DbArgument,
    min_age: Annotated[
        str, typer.Option("--min-age", help="Remove only entries at least this old: 90s, 2h, 1d.")
    ] = f"{GC_AGE // timedelta(hours=1)}h",
) -> CommandResult:
    """Forget tombstones and expired keys; print how many. First let all replicas sync."""
    # A replica that has not seen a tombstone yet would bring the deleted key back, hence the age.
    age_s = duration_s(min_age)
    gone = _edit(call, db, lambda database: database.gc(age_s))
    return CommandResult({"database": db, "forgotten": gone}, [str(gone)])
