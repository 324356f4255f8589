"""Commands `lattice db ...`: databases of keys, their values and structures."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final

import typer

from datalattice.apps.kv import GC_AGE, Database, KeyChange
from datalattice.cells import Value
from datalattice.cli.databases import (
    choose_database,
    databases_of,
    edit_database,
    reading_database,
)
from datalattice.cli.folder import SHORT_KEY, DirOption, JsonOption, existing_folder
from datalattice.cli.render import (
    print_json_line,
    print_lines,
    results,
    show,
    table,
)
from datalattice.cli.values import Form, parse_value, value_json, value_text
from datalattice.client import open_reader, reading
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import root_lattice

app = typer.Typer(
    help="Databases: keys with values, hashes, sets, sorted sets, lists and counters. Every write "
    "is signed and on disk."
)

NUMBERS: Final = {"ignore_unknown_options": True}
"""For commands with numbers below 0, which look like options."""

WATCH_S: Final = 0.25
"""How often `watch` looks whether the store has a new root."""

DbArgument = Annotated[str, typer.Argument(metavar="DB", help="The database's name.")]
KeyArgument = Annotated[str, typer.Argument(help="The key.")]
MembersArgument = Annotated[list[str], typer.Argument(help="The members.")]
ValuesArgument = Annotated[list[str], typer.Argument(help="The values.")]
OwnerOption = Annotated[
    str | None,
    typer.Option(
        "--owner",
        "-o",
        help="Whose database: a public key in hex. Default: your own, else the only one there is.",
        show_default=False,
    ),
]
FormOption = Annotated[Form, typer.Option("--as", help="How values are written.")]
TtlOption = Annotated[
    int | None,
    typer.Option("--ttl", help="Milliseconds until the key expires.", show_default=False),
]


def _say(as_json: bool, key: str, name: str, result: object) -> None:
    """Print what a write returned."""
    show(as_json, {"key": key, name: result}, lambda: print_lines([_plain(result)]))


def _plain(result: object) -> str:
    return str(result).lower() if isinstance(result, bool) else str(result)


# --- reading --------------------------------------------------------------------------------------


@app.command("list")
def list_(dir: DirOption = None, json: JsonOption = False) -> None:
    """List databases: everybody's that are here."""
    found: list[dict[str, object]] = []
    with reading(existing_folder(dir)) as root:
        cursor = RootLattice(root_lattice(), root)
        for owner, name in databases_of(root):
            keys = len(Database.at(cursor, owner, name))
            found.append({"owner": owner.hex(), "database": name, "keys": keys})

    def text() -> None:
        rows = [(str(one["owner"])[:SHORT_KEY], one["database"], one["keys"]) for one in found]
        results().print(table(("owner", "database", "keys"), rows))

    show(json, found, text)


@app.command("keys")
def keys(
    db: DbArgument,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin with this.")] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Type and time to live too.")] = False,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """List the keys of a database, in order."""
    with reading_database(dir, db, owner) as database:
        rows = [
            {"key": key, "type": entry.type_name, "ttl_ms": _left(database.ttl(key))}
            for key, entry in database.scan(prefix)
        ]

    def text() -> None:
        if long:
            shown = [(row["key"], row["type"], row["ttl_ms"]) for row in rows]
            results().print(table(("key", "type", "expires in ms"), shown))
        else:
            print_lines([str(row["key"]) for row in rows])

    show(json, rows, text)


def _left(left: timedelta | None) -> int | None:
    return None if left is None else left // timedelta(milliseconds=1)


@app.command("get")
def get(
    db: DbArgument,
    key: KeyArgument,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print what a key holds: a value, fields, members, members with scores, elements, a total."""
    with reading_database(dir, db, owner) as database:
        kind = database.type(key)
        if kind is None:
            raise UsageError(f"database {db} has no key {key!r}; `lattice db keys {db}` lists them")
        document, lines = _held(database, key, kind)
        ttl_ms = _left(database.ttl(key))
    show(
        json,
        {"key": key, "type": kind, "value": document, "ttl_ms": ttl_ms},
        lambda: print_lines(lines),
    )


def _held(database: Database, key: str, kind: str) -> tuple[object, list[str]]:
    """Return what a key holds, for JSON and as lines."""
    if kind == "hash":
        pairs = list(database.hgetall(key).entries())
        document: object = {value_text(name): value_json(value) for name, value in pairs}
        return document, [f"{value_text(name)}\t{value_text(value)}" for name, value in pairs]
    if kind == "zset":
        scored = database.zitems(key)
        document = [
            {"member": value_json(one), "score": _score_json(score)} for one, score in scored
        ]
        return document, [f"{score}\t{value_text(one)}" for one, score in scored]
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


@app.command("type")
def type_(
    db: DbArgument,
    key: KeyArgument,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print the type of a key: value, hash, set, zset, list, counter, or none."""
    with reading_database(dir, db, owner) as database:
        kind = database.type(key)
    show(json, {"key": key, "type": kind}, lambda: print_lines([kind or "none"]))


@app.command("ttl")
def ttl(
    db: DbArgument,
    key: KeyArgument,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print the milliseconds until a key expires: -1 never, -2 there is no key."""
    with reading_database(dir, db, owner) as database:
        left = _left(database.ttl(key))
        absent = -1 if key in database else -2
    _say(json, key, "ttl_ms", absent if left is None else left)


@app.command("hget")
def hget(
    db: DbArgument,
    key: KeyArgument,
    field: Annotated[str, typer.Argument(help="The field.")],
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print one field of a hash."""
    with reading_database(dir, db, owner) as database:
        value = database.hget(key, field)
        if value is None:
            raise UsageError(f"key {key!r} has no field {field!r}")
        document = {"key": key, "field": field, "value": value_json(value)}
        text = value_text(value)
    show(json, document, lambda: print_lines([text]))


@app.command("watch")
def watch(
    db: DbArgument,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin with this.")] = "",
    count: Annotated[
        int | None, typer.Option("--count", help="End after so many changes.", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", help="End after so many seconds.", show_default=False)
    ] = None,
    owner: OwnerOption = None,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Print changes as they come, written by anybody, until Ctrl-C."""
    folder = existing_folder(dir)
    if (count is not None and count < 1) or (seconds is not None and seconds < 0):
        raise UsageError("--count is 1 or more, --for 0 seconds or more")
    give_up_s = None if seconds is None else time.monotonic() + seconds
    with open_reader(folder) as store:
        cursor = RootLattice(root_lattice(), store.root())
        database = Database.at(cursor, choose_database(folder, cursor.get(), db, owner), db)
        told = 0
        with database.watch(prefix) as changes:
            while True:
                cursor.adopt(lambda _seen: store.root())
                for change in changes.poll():
                    _print_change(change, json)
                    told += 1
                    if told == count:
                        return
                left = WATCH_S if give_up_s is None else give_up_s - time.monotonic()
                if left <= 0:
                    return
                time.sleep(min(left, WATCH_S))


def _print_change(change: KeyChange, as_json: bool) -> None:
    if as_json:
        value = None if change.deleted else value_json(change.value)
        print_json_line({"key": change.key, "type": change.type, "value": value})
    elif change.deleted:
        print_lines([f"{change.key}\tdeleted"])
    else:
        print_lines([f"{change.key}\t{change.type}\t{value_text(change.value)}"])


def _span(ttl_ms: int | None) -> float | None:
    return None if ttl_ms is None else ttl_ms / 1_000


# --- writing --------------------------------------------------------------------------------------


@app.command("set")
def set_(
    db: DbArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="The value.")],
    ttl_ms: TtlOption = None,
    form: FormOption = Form.TEXT,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Set a value; it replaces anything under the key. The database is made if there is none."""
    cell = parse_value(value, form)
    edit_database(dir, db, lambda database: database.set(key, cell, _span(ttl_ms)))
    show(json, {"key": key, "value": value_json(cell)}, lambda: None)


@app.command("del")
def del_(
    db: DbArgument,
    names: Annotated[list[str], typer.Argument(metavar="KEYS", help="The keys.")],
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Delete keys; print how many there were."""

    def change(database: Database) -> int:
        with database.batch() as batch:
            return sum([batch.delete(key) for key in names])

    gone = edit_database(dir, db, change)
    show(json, {"deleted": gone}, lambda: print_lines([str(gone)]))


@app.command("expire")
def expire(
    db: DbArgument,
    key: KeyArgument,
    ttl_ms: Annotated[int, typer.Argument(help="Milliseconds until it expires.")],
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Let a key expire; print whether there is one."""
    _say(
        json,
        key,
        "done",
        edit_database(dir, db, lambda database: database.expire(key, ttl_ms / 1_000)),
    )


@app.command("persist")
def persist(
    db: DbArgument, key: KeyArgument, dir: DirOption = None, json: JsonOption = False
) -> None:
    """Take the expiry from a key; print whether there was one."""
    _say(json, key, "done", edit_database(dir, db, lambda database: database.persist(key)))


@app.command("hset")
def hset(
    db: DbArgument,
    key: KeyArgument,
    pairs: Annotated[list[str], typer.Argument(metavar="FIELD VALUE ...", help="Fields, values.")],
    form: FormOption = Form.TEXT,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Set fields of a hash; print how many are new."""
    if len(pairs) % 2:
        raise UsageError("hset takes a value after each field")
    fields = {
        name: parse_value(value, form) for name, value in zip(pairs[::2], pairs[1::2], strict=True)
    }
    _say(json, key, "new", edit_database(dir, db, lambda database: database.hset_many(key, fields)))


@app.command("hdel")
def hdel(
    db: DbArgument,
    key: KeyArgument,
    fields: Annotated[list[str], typer.Argument(help="The fields.")],
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Remove fields of a hash; print how many there were."""
    _say(json, key, "removed", edit_database(dir, db, lambda database: database.hdel(key, *fields)))


@app.command("sadd")
def sadd(
    db: DbArgument,
    key: KeyArgument,
    members: MembersArgument,
    form: FormOption = Form.TEXT,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Add members to a set; print how many are new."""
    cells = [parse_value(one, form) for one in members]
    _say(json, key, "new", edit_database(dir, db, lambda database: database.sadd(key, *cells)))


@app.command("srem")
def srem(
    db: DbArgument,
    key: KeyArgument,
    members: MembersArgument,
    form: FormOption = Form.TEXT,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Remove members from a set; print how many there were."""
    cells = [parse_value(one, form) for one in members]
    _say(json, key, "removed", edit_database(dir, db, lambda database: database.srem(key, *cells)))


@app.command("zadd", context_settings=NUMBERS)
def zadd(
    db: DbArgument,
    key: KeyArgument,
    score: Annotated[float, typer.Argument(help="The score.")],
    member: Annotated[str, typer.Argument(help="The member.")],
    form: FormOption = Form.TEXT,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Add a member to a sorted set, or give it another score; print 1 when it is new."""
    cell = parse_value(member, form)
    _say(json, key, "new", edit_database(dir, db, lambda database: database.zadd(key, score, cell)))


@app.command("zrem")
def zrem(
    db: DbArgument,
    key: KeyArgument,
    members: MembersArgument,
    form: FormOption = Form.TEXT,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Remove members from a sorted set; print how many there were."""
    cells = [parse_value(one, form) for one in members]
    _say(json, key, "removed", edit_database(dir, db, lambda database: database.zrem(key, *cells)))


@app.command("push")
def push(
    db: DbArgument,
    key: KeyArgument,
    values: ValuesArgument,
    left: Annotated[bool, typer.Option("--left", help="In front, each in turn.")] = False,
    form: FormOption = Form.TEXT,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Append values to a list; print its length."""
    cells = [parse_value(one, form) for one in values]

    def change(database: Database) -> int:
        return database.lpush(key, *cells) if left else database.rpush(key, *cells)

    _say(json, key, "length", edit_database(dir, db, change))


@app.command("pop")
def pop(
    db: DbArgument,
    key: KeyArgument,
    left: Annotated[bool, typer.Option("--left", help="The first element.")] = False,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Take the last element from a list and print it; exit code 2 when there is none."""

    def change(database: Database) -> tuple[object, str]:
        if database.llen(key) == 0:
            raise UsageError(f"the list {key!r} has no elements")
        value = database.lpop(key) if left else database.rpop(key)
        return value_json(value), value_text(value)

    document, text = edit_database(dir, db, change)
    show(json, {"key": key, "value": document}, lambda: print_lines([text]))


@app.command("incr", context_settings=NUMBERS)
def incr(
    db: DbArgument,
    key: KeyArgument,
    amount: Annotated[int, typer.Argument(help="How much; below 0 counts down.")] = 1,
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Count; print the total of all replicas."""
    _say(json, key, "total", edit_database(dir, db, lambda database: database.incr(key, amount)))


@app.command("gc")
def gc(
    db: DbArgument,
    min_age_ms: Annotated[
        int, typer.Option("--min-age", help="Only what is as many milliseconds old.")
    ] = GC_AGE // timedelta(milliseconds=1),
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Forget tombstones and expired keys; print how many. Only when all replicas have synced."""
    gone = edit_database(dir, db, lambda database: database.gc(min_age_ms / 1_000))
    show(json, {"database": db, "forgotten": gone}, lambda: print_lines([str(gone)]))
