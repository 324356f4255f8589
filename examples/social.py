"""A social network in one file: posts, follows and profiles that merge, each signed by its author.

`python examples/social.py` runs two users on two nodes, who follow each other and end up with the
same data. docs/tutorial.md builds this file step by step.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Self

from datalattice import KeyPair, Keyword, Map, UsageError, value_hash
from datalattice.cells import Index, Value
from datalattice.clock import Clock, SystemClock, next_stamp
from datalattice.cursors import LatticeCursor
from datalattice.lattice import (
    IndexLattice,
    KeyedLattice,
    LWWLattice,
    MapLattice,
    OwnerLattice,
    register_section,
    root_lattice,
)
from datalattice.node import NodeServer, open_node
from datalattice.store import MemoryStore

SOCIAL: Final = Keyword("social")
FEED, FOLLOWS, PROFILE = Keyword("feed"), Keyword("follows"), Keyword("profile")
TEXT, TIMESTAMP, DELETED = Keyword("text"), Keyword("timestamp"), Keyword("deleted")
REPLY_TO, REPLY_DID, ACTIVE = Keyword("reply-to"), Keyword("reply-did"), Keyword("active")

# How one user's data merges: the later version of a post, a follow or a profile wins.
USER: Final = KeyedLattice(
    {FEED: IndexLattice(LWWLattice()), FOLLOWS: MapLattice(LWWLattice()), PROFILE: LWWLattice()}
)

# Each user's data is under their public key and signed: only they can write there.
register_section(SOCIAL, OwnerLattice(USER))


class Post(NamedTuple):
    """A post as readers see it."""

    author: bytes
    key: bytes
    text: str
    time_ms: int
    reply_to: Value


def post_key(time_ms: int) -> bytes:
    """Return the key of a post: its time, so that a feed is in the order of time."""
    return time_ms.to_bytes(8, "big")


def time_of(value: Value) -> int:
    """Return the time of a post, a follow or a profile."""
    stamp = value.get(TIMESTAMP) if isinstance(value, Map) else None
    return stamp if isinstance(stamp, int) else 0


class Social:
    """One user's posts, follows and profile, over a cursor on their data."""

    def __init__(self, cursor: LatticeCursor, owner: bytes, clock: Clock | None = None) -> None:
        self._cursor = cursor
        self._owner = owner
        self._clock = clock or SystemClock()

    @classmethod
    def at(cls, root: LatticeCursor, owner: bytes, clock: Clock | None = None) -> Self:
        """Return the data of `owner`, a public key, below a root; this writes nothing."""
        return cls(root.path(SOCIAL, owner, "value"), owner, clock)

    def post(self, text: str, reply_to: Post | None = None) -> bytes:
        """Publish a text and return its key."""
        chosen = b""
        now_ms = self._clock.now_ms()

        def add(feed: Value) -> Value:
            nonlocal chosen
            assert isinstance(feed, Index)
            time_ms = now_ms
            while post_key(time_ms) in feed:  # two posts in one millisecond
                time_ms += 1
            chosen = post_key(time_ms)
            made = Map.of([(TEXT, text), (TIMESTAMP, time_ms)])
            if reply_to is not None:
                made = made.put(REPLY_TO, reply_to.key).put(REPLY_DID, reply_to.author)
            return feed.put(chosen, made)

        self._cursor.path(FEED).update(add)
        return chosen

    def delete(self, key: bytes) -> None:
        """Mark a post as deleted; it stays in the feed, so that the mark reaches all nodes."""

        def marked(post: Value) -> Value:
            if not isinstance(post, Map):
                raise UsageError(f"there is no post 0x{key.hex()}")
            now_ms = next_stamp(self._clock.now_ms(), time_of(post))
            return post.put(DELETED, now_ms).put(TIMESTAMP, now_ms)

        self._cursor.path(FEED, key).update(marked)

    def posts(self) -> list[Post]:
        """Return the posts that are not deleted, the latest first."""
        feed = self._cursor.get(FEED)
        found = []
        for key, post in feed.entries() if isinstance(feed, Index) else ():
            if not isinstance(post, Map) or DELETED in post:
                continue
            text, reply = post.get(TEXT), post.get(REPLY_TO)
            if isinstance(key, bytes) and isinstance(text, str):
                found.append(Post(self._owner, key, text, int.from_bytes(key, "big"), reply))
        return found[::-1]

    def follow(self, user: bytes, *, active: bool = True) -> None:
        """Follow a user, by public key."""

        def changed(record: Value) -> Value:
            stamp = next_stamp(self._clock.now_ms(), time_of(record))
            return Map.of([(TIMESTAMP, stamp), (ACTIVE, active)])

        self._cursor.path(FOLLOWS, user).update(changed)

    def unfollow(self, user: bytes) -> None:
        """Stop following a user: a record, so that it wins over an older follow."""
        self.follow(user, active=False)

    def following(self) -> set[bytes]:
        """Return the users that this user follows."""
        follows = self._cursor.get(FOLLOWS)
        records = follows.entries() if isinstance(follows, Map) else ()
        active = {user for user, one in records if isinstance(one, Map) and one.get(ACTIVE) is True}
        return {user for user in active if isinstance(user, bytes)}

    def set_profile(self, **fields: str) -> None:
        """Replace the profile by these fields."""

        def changed(profile: Value) -> Value:
            stamp = next_stamp(self._clock.now_ms(), time_of(profile))
            return Map.of([*((Keyword(k), text) for k, text in fields.items()), (TIMESTAMP, stamp)])

        self._cursor.path(PROFILE).update(changed)

    def profile(self, field: str) -> Value:
        """Return a field of the profile."""
        return self._cursor.get(PROFILE, Keyword(field))


def timeline(root: LatticeCursor, owner: bytes, limit: int = 50) -> list[Post]:
    """Return the latest posts of a user and of all they follow, the latest first."""
    users = {owner} | Social.at(root, owner).following()
    posts = [post for user in users for post in Social.at(root, user).posts()]
    return sorted(posts, key=lambda post: (post.time_ms, post.author), reverse=True)[:limit]


async def met(here: NodeServer, there: NodeServer) -> None:
    """Make what both wrote durable, and wait until each has everything."""
    await asyncio.gather(here.sync(), there.sync())
    both = value_hash(root_lattice().merge(here.cursor.get(), there.cursor.get()))
    for node in (here, there):
        await node.wait_until(lambda node: node.root_hash == both)


async def main() -> None:
    """Two users on two nodes write at the same time and see the same afterwards."""
    ann, bob = KeyPair.generate(), KeyPair.generate()
    async with (
        open_node(MemoryStore(), key_pair=ann, port=0) as a,
        open_node(MemoryStore(), key_pair=bob, port=-1, peers=[str(a.address)]) as b,
    ):
        at_ann = Social.at(a.cursor, ann.public_key)
        at_bob = Social.at(b.cursor, bob.public_key)
        at_ann.set_profile(name="Ann")
        at_bob.set_profile(name="Bob")
        at_ann.follow(bob.public_key)
        at_bob.follow(ann.public_key)
        at_ann.post("Hello from Ann")
        at_bob.post("Hello from Bob")
        await met(a, b)
        at_bob.post("Hello back", reply_to=Social.at(b.cursor, ann.public_key).posts()[0])
        await met(a, b)
        for post in timeline(a.cursor, ann.public_key):
            name = Social.at(a.cursor, post.author).profile("name")
            print(f"{name}: {post.text}{' (a reply)' if post.reply_to else ''}")
        print(f"both have {a.root_hash.hex()[:16]}: {a.root_hash == b.root_hash}")


if __name__ == "__main__":
    asyncio.run(main())
