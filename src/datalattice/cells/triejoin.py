"""Trie join: walks two maps or two sets together, visiting only what differs.

Length: the walks over two tries share how nodes are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mypy_extensions import i64

from datalattice.cells.cell import Value, broken, deref, same, same_kid, surely_same
from datalattice.cells.trie import (
    TAG_MAP,
    Trie,
    assemble,
    common_digits,
    digit_at,
    key_at,
    new_leaf,
    new_node,
    position_of,
    put_entry,
    remove_entry,
    trie_of,
)
from datalattice.cells.work import Work
from datalattice.limits import HASH_BYTES, MAP_LEAF_MAX


class AbsentType:
    """The type of `ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = AbsentType()
"""Returned by a join that keeps no entry."""

JoinEntries = Callable[[Value, Value, Value, bool, bool], object]
"""(key, own value, other value, own present, other present) -> the value to keep, or ABSENT."""

_DIGITS: Final = [bytes((digit,)) for digit in range(16)]

EntryPair = tuple[bytes, object, bool, object, bool, object]
"""(key hash, key kid, own present, own value kid, other present, other value kid)."""


def differing(own: Trie, other: Trie, work: Work | None = None) -> Iterator[EntryPair]:
    """Yield the entries in which two tries of one tag differ; equal subtrees are skipped.

    Each leaf must start after the previous one. Otherwise a few shared cells could make the walk
    endless.
    """
    own._settle()
    other._settle()
    last = [b"", b""]
    stack: list[tuple[object, object, bytes]] = [(own, other, b"")]
    while stack:
        a_kid, b_kid, path = stack.pop()
        if surely_same(a_kid, b_kid):
            continue
        # All keys below share the digits of the path, so a child must fork after them.
        a = own if a_kid is own else _node_at(a_kid, own._tag, len(path))
        b = other if b_kid is other else _node_at(b_kid, own._tag, len(path))
        if work is not None:
            for node in (a, b):
                if node is not None:
                    work.enter(node)
                    work.spend(work.limits.compared * min(node._count, MAP_LEAF_MAX))
        if a is None or b is None or a._count <= MAP_LEAF_MAX or b._count <= MAP_LEAF_MAX:
            _check_order(a, last, 0, path)
            _check_order(b, last, 1, path)
            yield from _differing_entries(a, b, work)
        else:
            _pair_children(a, b, path, stack)


def arriving(
    own: Trie, other: Trie, work: Work | None = None
) -> Iterator[tuple[object, object, object]]:
    """Yield (key kid, own value kid or ABSENT, other's) of entries that own lacks or has changed.

    Of own only the parts are loaded in which other differs, however large own is.
    """
    own._settle()
    other._settle()
    last = [b"", b""]
    stack: list[tuple[object, object, bytes]] = [(own, other, b"")]
    while stack:
        a_kid, b_kid, path = stack.pop()
        # Entries that only own has are skipped.
        if b_kid is None or surely_same(a_kid, b_kid):
            continue
        a = own if a_kid is own else _node_at(a_kid, own._tag, len(path))
        b = other if b_kid is other else _node_at(b_kid, own._tag, len(path))
        assert b is not None
        if work is not None:
            if a is not None:
                work.enter(a)
            work.enter(b)
        if a is not None and a._count > MAP_LEAF_MAX and b._count > MAP_LEAF_MAX:
            _pair_children(a, b, path, stack)
            continue
        _check_order(b, last, 1, path)
        for digest, key, value in _entries(b, work):
            found: object = ABSENT
            if a is not None:
                leaf, at = a._find(digest)
                if work is not None and a._count > MAP_LEAF_MAX:
                    work.spend(work.limits.joined)
                if leaf is not None:
                    found = leaf._value(at) if leaf._tag == TAG_MAP else None
            if found is ABSENT or not same_kid(found, value):
                yield key, found, value


def _check_order(node: Trie | None, last: list[bytes], side: int, path: bytes) -> None:
    """Check that the keys of `node` start with `path` and come after the last ones of that side."""
    if node is None or not node._count:
        return
    # Each side by itself: keys of one side may come before those of the other.
    if node._any() <= last[side]:
        raise broken("the keys of a map or set are not in order")
    need_path(node._any(), path)
    last[side] = node._any()


def _node_at(kid: object, tag: i64, known: i64) -> Trie | None:
    """Return the node whose keys agree before digit `known`, None for no kid."""
    return None if kid is None else trie_of(kid, tag, 0, known - 1)


def _pair_children(
    a: Trie, b: Trie, path: bytes, stack: list[tuple[object, object, bytes]]
) -> None:
    """Push the pairs of subtrees of two nodes that can hold the same keys."""
    known: i64 = len(path)
    low: i64 = min(a._shift, b._shift)
    # Both nodes share more digits than the path, and these differ.
    if low > known and common_digits(a._any(), b._any(), known) < low:
        stack.append((a, None, path))  # no key in common
        stack.append((None, b, path))
        return
    path = path_to(path, a, low)
    # Backwards, since the stack gives the last pair first.
    for digit in range(15, -1, -1):
        bit: i64 = 1 << digit
        left: object = None
        right: object = None
        # A node that forks later is the only child under the digit of its keys.
        if a._shift == low:
            if a._mask & bit:
                left = a._open()[a._slot(digit)]
        elif digit_at(a._any(), low) == digit:
            left = a
        if b._shift == low:
            if b._mask & bit:
                right = b._open()[b._slot(digit)]
        elif digit_at(b._any(), low) == digit:
            right = b
        if left is not None or right is not None:
            stack.append((left, right, path + _DIGITS[digit]))


def _entries(node: Trie, work: Work | None) -> Iterator[tuple[bytes, object, object]]:
    for leaf in node._leaves(work):
        if work is not None:
            work.spend(work.limits.compared * leaf._count)
        hashes = leaf._keys()
        kids = leaf._open()
        if leaf._tag == TAG_MAP:
            for i in range(leaf._count):
                yield key_at(hashes, i), kids[2 * i], kids[2 * i + 1]
        else:
            for i in range(leaf._count):
                yield key_at(hashes, i), kids[i], None


def _differing_entries(a: Trie | None, b: Trie | None, work: Work | None) -> Iterator[EntryPair]:
    if b is None:
        if a is not None:
            for digest, key, value in _entries(a, work):
                yield digest, key, True, value, False, None
        return
    if a is None:
        for digest, key, value in _entries(b, work):
            yield digest, key, False, None, True, value
        return
    mine = {digest: (key, value) for digest, key, value in _entries(a, work)}
    for digest, key, value in _entries(b, work):
        found = mine.pop(digest, None)
        if found is None:
            yield digest, key, False, None, True, value
        elif not same_kid(found[1], value):
            yield digest, found[0], True, found[1], True, value
    for digest, (key, value) in mine.items():
        yield digest, key, True, value, False, None


class Joiner:
    """One merge of two tries of one type; `join` decides about entries, without it all are kept.

    The result reuses subtrees of either side wherever they equal it. So a merge costs only the
    difference, and reused subtrees stay stored and hashed.
    """

    def __init__(self, like: Trie, join: JoinEntries | None, work: Work | None = None) -> None:
        self._like = like
        self._work = work
        self._join = join
        self._width: i64 = 2 if like._tag == TAG_MAP else 1
        self._changes: int = 0  # entries in which the result differs from own so far

    def nodes(self, a: Trie, b: Trie, path: bytes) -> Trie:
        """Return the merge of two tries whose keys start with the digits of `path`.

        Returns `a` itself if b adds nothing.
        Raises: BadFormat: a key of b is not under its own digits, so pairing by digits would mix it
                up with another key.
        """
        if surely_same(a, b):
            return a
        a._settle()
        b._settle()
        work = self._work
        if work is not None:
            work.enter(a)
            work.enter(b)
        # A leaf takes the entries of the other side one by one; two nodes are paired by digit.
        if a._count <= MAP_LEAF_MAX:
            return self._into_leaf(a, b, path)
        if b._count <= MAP_LEAF_MAX:
            return self._put_leaf(a, b, path)
        known: i64 = len(path)
        low: i64 = min(a._shift, b._shift)
        if low > known:
            fork: i64 = common_digits(a._any(), b._any(), known)
            if fork < low:
                return self._apart(a, b, path, fork)
            path = path_to(path, a, low)
        # The usual case of replicas: the same keys nearly everywhere.
        if a._shift == b._shift and a._mask == b._mask:
            return self._aligned(a, b, path)
        return self._pairwise(a, b, path)

    def _aligned(self, a: Trie, b: Trie, path: bytes) -> Trie:
        """Return the merge of two nodes with children under the same digits, the usual case."""
        mine = a._open()
        theirs = b._open_like(mine)
        # The list is copied only if a child changes: a copy touches every sibling.
        places: list[int] = []
        changed: list[object] = []
        count: i64 = a._count
        all_theirs = True
        some_gone = False
        digit: i64 = -1
        more: i64 = 0  # entries that b has more than a
        for i in range(len(mine)):
            digit += 1
            while not a._mask & (1 << digit):
                digit += 1
            x = mine[i]
            y = theirs[i]
            if x is y or surely_same(x, y):
                continue
            mine_node = trie_of(x, self._like._tag, a._count, a._shift)
            theirs_node = trie_of(y, self._like._tag, b._count, b._shift)
            more += theirs_node._count - mine_node._count
            made = self.nodes(mine_node, theirs_node, path + _DIGITS[digit])
            if made is mine_node:
                # Trees that were never encoded are compared here.
                all_theirs = all_theirs and same(mine_node, theirs_node)
                continue
            all_theirs = all_theirs and made is theirs_node
            some_gone = some_gone or made._count == 0
            count += made._count - mine_node._count
            places.append(i)
            changed.append(y if made is theirs_node else made)
        _need_count(a, b, more)
        if not places:
            return a
        # Everything came from `other`, so its own tree is the result: stored and hashed already.
        if all_theirs:
            return b
        fresh = mine[:]
        for i in range(len(places)):
            fresh[places[i]] = changed[i]
        if not some_gone and count > MAP_LEAF_MAX:
            return new_node(self._like, count, a._shift, a._mask, fresh, a._sample)
        slots: list[object] = [None] * 16
        at: i64 = 0
        for under in range(16):
            if a._mask & (1 << under):
                kid = fresh[at]
                slots[under] = None if isinstance(kid, Trie) and kid._count == 0 else kid
                at += 1
        return assemble(self._like, count, a._shift, slots)

    def _pairwise(self, a: Trie, b: Trie, path: bytes) -> Trie:
        low: i64 = len(path)
        mine = _slots(a, low)
        theirs = _slots(b, low)
        count: i64 = a._count
        all_mine = True
        all_theirs = True
        covers = b._shift == low  # whether b has all entries of a so far
        more: i64 = 0
        for digit in range(16):
            x = mine[digit]
            y = theirs[digit]
            if y is None:
                all_theirs = all_theirs and x is None
                covers = covers and x is None
                continue
            if x is not None and surely_same(x, y):
                continue
            theirs_node = trie_of(y, self._like._tag, 0 if y is b else b._count, low)
            below = path + _DIGITS[digit]
            more += theirs_node._count
            if x is None:
                if self._work is not None:
                    self._work.enter(theirs_node)
                made = self.accept(theirs_node, None, below)
            else:
                mine_node = trie_of(x, self._like._tag, 0, low)
                more -= mine_node._count
                made = self.nodes(mine_node, theirs_node, below)
                if made is mine_node:
                    # Trees that were never encoded are compared here.
                    all_theirs = all_theirs and same(mine_node, theirs_node)
                    continue
                count -= mine_node._count
            count += made._count
            all_theirs = all_theirs and made is theirs_node
            if made._count:
                mine[digit] = y if made is theirs_node else made
                all_mine = False
            elif x is not None:
                mine[digit] = None
                all_mine = False
        # Only where b has every entry of a does the difference of the counts follow.
        if covers:
            _need_count(a, b, more)
        if all_mine:
            return a
        if all_theirs:
            return b
        return assemble(self._like, count, low, mine)

    def _apart(self, a: Trie, b: Trie, path: bytes, fork: i64) -> Trie:
        """Return the merge of two tries whose keys differ at `fork`, before either's shift."""
        # No key in common, yet a peer's entries are judged one by one.
        made = self.accept(b, None, path)
        if not made._count:
            return a
        slots: list[object] = [None] * 16
        slots[digit_at(a._any(), fork)] = a
        slots[digit_at(b._any(), fork)] = made
        return assemble(self._like, a._count + made._count, fork, slots)

    def _compare(self, entries: int) -> None:
        work = self._work
        if work is not None:
            work.spend(work.limits.compared * entries)

    def _decide(self, key: object, own: object, other: object, has: bool) -> object:
        """Return the kid to keep for an entry that own lacks or has with another value."""
        # Sets: elements have no values, so both sides' elements are kept.
        if self._join is None:
            self._changes += 1
            return None
        value = deref(other)
        mine = deref(own)
        work = self._work
        if work is not None:
            work.meet(other, value)
            work.meet(own, mine)
            work.spend(work.limits.joined)
        result = self._join(deref(key), mine, value, has, True)
        if result is ABSENT:
            self._changes += has
            return ABSENT
        # The very kid of own, so that its subtree is shared.
        if has and same_kid(own, result):
            return own
        self._changes += 1
        return other if result is value or same_kid(result, other) else result

    def accept(self, b: Trie, own: Trie | None, path: bytes) -> Trie:
        """Return the part of `b` to keep beside the leaf `own` (None: empty); `b` itself if all."""
        if b._count > MAP_LEAF_MAX:
            slots = _slots(b, b._shift)
            # All of b is read anyway, so reading its first key costs nothing more.
            need_path(b._any(), path)
            path = path_to(path, b, b._shift)
            count: i64 = 0
            total: i64 = 0
            whole = True
            for digit in range(16):
                kid = slots[digit]
                if kid is not None:
                    child = trie_of(kid, self._like._tag, b._count, b._shift)
                    if self._work is not None:
                        self._work.enter(child)
                    made = self.accept(child, own, path + _DIGITS[digit])
                    total += child._count
                    count += made._count
                    if made is not child:
                        whole = False
                        slots[digit] = made if made._count else None
            # "The counts of what the other side alone has add up" (docs/design/foreign-data.md
            # "Merges").
            if total != b._count:
                raise broken("the counts of a map or set do not add up")
            return b if whole else assemble(self._like, count, b._shift, slots)
        hashes = leaf_keys(b, path)
        self._compare(b._count)
        own_hashes = b"" if own is None else own._keys()
        aligned = own_hashes == hashes
        kids = b._open()
        results: list[object] = []
        same_as_b = True
        for i in range(b._count):
            at: i64 = i if aligned else position_of(own_hashes, key_at(hashes, i))
            mine: object = None
            if own is not None and at >= 0 and self._width == 2:
                mine = own._open()[at * 2 + 1]
            key = kids[i * self._width]
            theirs = kids[i * self._width + 1] if self._width == 2 else None
            result = theirs
            if at < 0 or (self._width == 2 and not same_kid(mine, theirs)):
                result = self._decide(key, mine, theirs, at >= 0)
            same_as_b = (
                same_as_b
                and result is not ABSENT
                and (result is theirs or same_kid(result, theirs))
            )
            results.append(result)
        if same_as_b:
            return b
        kept: list[bytes] = []
        entries: list[object] = []
        for i in range(b._count):
            if results[i] is not ABSENT:
                kept.append(key_at(hashes, i))
                entries.append(kids[i * self._width])
                if self._width == 2:
                    entries.append(results[i])
        return new_leaf(self._like, b"".join(kept), entries)

    def _add_own(self, a: Trie, b: Trie, made: Trie) -> Trie:
        """Return `made`, the kept part of b, with the entries of leaf `a` that b lacks."""
        hashes = a._keys()
        if b._count == a._count <= MAP_LEAF_MAX and b._keys() == hashes:
            return made
        kids = a._open()
        for i in range(a._count):
            digest = key_at(hashes, i)
            if b._find(digest)[0] is None:
                value = kids[i * self._width + 1] if self._width == 2 else None
                made = put_entry(made, digest, kids[i * self._width], value, 0)
        return made

    def _into_leaf(self, a: Trie, b: Trie, path: bytes) -> Trie:
        before = self._changes
        made = self.accept(b, a, path)
        # Nothing changed, so own itself is the result, which callers test by identity.
        if self._changes == before:
            return a
        return self._add_own(a, b, made)

    def _put_leaf(self, a: Trie, b: Trie, path: bytes) -> Trie:
        """Return node `a` merged with the entries of leaf `b` one by one."""
        hashes = leaf_keys(b, path)
        self._compare(b._count)
        kids = b._open()
        made = a
        for i in range(b._count):
            digest = key_at(hashes, i)
            leaf, at = a._find(digest)
            theirs = kids[i * self._width + 1] if self._width == 2 else None
            mine: object = None
            if leaf is not None:
                mine = leaf._value(at) if self._width == 2 else None
                # Equal entries are not passed to the join: a merge is idempotent.
                if self._width == 1 or same_kid(mine, theirs):
                    continue
            result = self._decide(kids[i * self._width], mine, theirs, leaf is not None)
            if result is ABSENT:
                if leaf is not None:
                    made = remove_entry(made, digest)
            else:
                made = put_entry(made, digest, kids[i * self._width], result, 0)
        return made


def _need_count(a: Trie, b: Trie, more: i64) -> None:
    """Check the count of `b`, which has all entries of `a` and `more` in the parts that differ.

    Equal parts have equal counts, so only the parts that differ are counted.
    Raises: BadFormat: the count is wrong.
    """
    if b._count - a._count != more:
        raise broken("the counts of a map or set do not add up")


def need_path(key: bytes, path: bytes) -> None:
    """Check that a key starts with the digits of `path`.

    Raises: BadFormat: it is under digits that are not its own, where no search would find it.
    """
    for i in range(len(path)):
        if digit_at(key, i) != path[i]:
            raise broken("a key of a map or set is under digits that are not its own")


def path_to(path: bytes, node: Trie, shift: i64) -> bytes:
    """Return `path` with the digits that all keys of `node` share before `shift`."""
    if len(path) >= shift:
        return path
    key = node._any()
    return path + bytes([digit_at(key, i) for i in range(len(path), shift)])


def leaf_keys(leaf: Trie, path: bytes) -> bytes:
    """Return the key hashes of a leaf after checking that all start with `path`.

    They are in order, so checking the first and the last suffices.
    """
    hashes = leaf._keys()
    if hashes:
        need_path(hashes, path)
        need_path(hashes[-HASH_BYTES:], path)
    return hashes


def _slots(node: Trie, shift: i64) -> list[object]:
    """Return the 16 children by digit at `shift`; a node that forks later is its own only child."""
    slots: list[object] = [None] * 16
    if node._shift > shift:
        slots[digit_at(node._any(), shift)] = node
        return slots
    kids = node._open()
    mask: i64 = node._mask
    at: i64 = 0
    for digit in range(16):
        if mask & (1 << digit):
            slots[digit] = kids[at]
            at += 1
    return slots
