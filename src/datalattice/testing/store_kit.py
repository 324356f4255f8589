"""Store kit: the rules for every store of cells, as one call for any implementation."""

from __future__ import annotations

import threading
from collections.abc import Callable

from datalattice.cells import (
    Index,
    Map,
    Value,
    Vector,
    decode,
    encode,
    missing,
    novelty,
    same,
    value_hash,
)
from datalattice.errors import MissingData, StoreClosed, UsageError
from datalattice.store import PRIVATE_KEY, Store

# Long enough to be a cell of its own.
LONG = "a text that is too long to stand inside its parent " * 4


def check_store(make: Callable[[], Store], *, announces_all: bool = False) -> None:
    """Assert that stores keep the protocol. `make` returns a new, empty store.

    announces_all: commits announce the whole root: such a store is no node's.
    Raises: AssertionError: it does not; the text says which rule.
    """
    for rule in (
        _keeps_a_root_and_its_cells,
        _returns_the_novelty_alone,
        _moves_the_root_by_compare_and_set,
        _keeps_any_value_as_root,
        _writes_the_same_root_once,
        _loads_children_through_itself,
        _names_what_is_missing,
        _announces_what_a_root_reaches,
        _takes_commits_from_many_threads,
        _refuses_bad_arguments,
    ):
        store = make()  # a new store for each rule
        try:
            rule(store)
        finally:
            store.close()
    if not announces_all:
        store = make()  # only where a part can be private
        _keeps_the_private_part_of_a_root(store)
        store.close()
    _refuses_use_after_close(make())


def records(start: int, count: int) -> Vector:
    """Return a vector of long texts, each a cell of its own."""
    return Vector.of([f"{number} {LONG}" for number in range(start, start + count)])


def _refused(call: Callable[[], object], error: type[Exception] = UsageError) -> bool:
    try:
        call()
    except (error, TypeError):  # a compiled store refuses a wrong type by itself
        return True
    return False


def _keeps_a_root_and_its_cells(store: Store) -> None:
    assert store.root_hash() is None, "a new store has no root"
    assert store.root() is None, "root() of a new store is None"
    value = records(0, 100)
    hashes = [hash for hash, _, _ in novelty(value)]  # before the commit: afterwards nothing is new
    done = store.commit(value)
    assert done.root_hash == value_hash(value) == store.root_hash(), (
        "commit, the value and root_hash agree on the root"
    )
    assert same(store.root(), value), "root() returns the committed value"
    assert missing(store.root()) == [], "every cell below the root can be loaded"
    for hash in hashes:
        encoding = store.get_encoding(hash)
        assert encoding is not None, "get_encoding returns every committed cell"
        assert value_hash(store.load(hash)) == hash == value_hash(decode(encoding)), (
            "load and get_encoding return the cell with its hash"
        )
        assert hash in store, "`in` finds every committed cell"
    assert store.get_encodings(hashes[::-1]) == [store.get_encoding(h) for h in hashes[::-1]]
    assert [value_hash(v) for v in store.get_many(hashes)] == hashes, (
        "get_many returns the values in the order of the hashes"
    )
    assert store.has_many([*hashes, bytes(32)]) == set(hashes)


def _returns_the_novelty_alone(store: Store) -> None:
    value = records(0, 500)
    first = store.commit(value)
    assert len(first.novelty) > 500, "the novelty of the first root is all its cells"
    value = value.append(LONG)
    second = store.commit(value)
    # A path of the tree, not the value.
    assert 1 < len(second.novelty) < 10, "the novelty of the second root is only the changed path"
    assert second.novelty[-1][0] == second.root_hash, "the root is the last cell of the novelty"
    assert second.sequence > first.sequence, "each commit has a greater sequence number"
    top = store.root()  # loaded again: behind references of the store
    assert isinstance(top, Vector)
    third = store.commit(top.append(LONG + "!"))
    assert len(third.novelty) < 10, "cells of a loaded value are not in the novelty"


def _moves_the_root_by_compare_and_set(store: Store) -> None:
    one, two = Vector.of([1]), Vector.of([2])
    assert store.commit(one, value_hash(two)) is None, (
        "a commit that expects another root returns None"
    )
    assert store.root_hash() is None, "a refused commit leaves the root unchanged"
    assert store.commit(one, None) is not None, "expecting None fits a store without a root"
    assert store.commit(two, None) is None, "expecting None does not fit once there is a root"
    assert store.commit(two, value_hash(one)) is not None, "expecting the hash of the root fits"
    assert same(store.root(), two), "a commit that fits moves the root"


def _keeps_any_value_as_root(store: Store) -> None:
    # Embedded values are roots, too.
    for value in (None, 5, True, 1.5, "short", LONG * 100, b"b" * 5000, Map.of([("k", LONG)])):
        done = store.commit(value)
        assert store.root_hash() == done.root_hash == value_hash(value), "any value can be the root"
        assert same(store.root(), value), "root() returns any kind of value unchanged"
        assert store.announced(done.root_hash), "the root is announced"


def _writes_the_same_root_once(store: Store) -> None:
    first = store.commit(records(0, 3))
    again = store.commit(records(0, 3))
    # An unchanged root makes no record.
    assert again.sequence == first.sequence, "an unchanged root is not written again"


def _loads_children_through_itself(store: Store) -> None:
    value = Map.of([("deep", Map.of([("deeper", records(0, 40))]))])
    wanted = encode(value)
    store.commit(value)
    deep = value["deep"]
    assert isinstance(deep, Map)
    deeper = deep["deeper"]
    assert isinstance(deeper, Vector)
    assert deeper[39] == f"39 {LONG}", "a committed value reads the same through the store"
    assert encode(value) == wanted, "a committed value keeps its encoding"


def _names_what_is_missing(store: Store) -> None:
    store.commit(records(0, 20))
    absent = bytes(31) + b"x"  # no cell has this hash
    assert store.get(absent, "none") == "none", "get returns its default for an absent cell"
    assert store.get_encoding(absent) is None, "get_encoding returns None for an absent cell"
    assert not store.has(absent), "has is False for an absent cell"
    assert not store.announced(absent), "an absent cell is not announced"
    assert store.missing([absent, store.root_hash() or b""]) == [absent], (
        "missing returns the absent hashes"
    )
    for call in (store.load, _load_many(store)):
        named: tuple[bytes, ...] = ()
        try:
            call(absent)
        except MissingData as error:
            named = error.hashes
        assert named == (absent,), "MissingData names the absent hash"


def _load_many(store: Store) -> Callable[[bytes], object]:
    return lambda hash: store.get_many([hash])


def _announces_what_a_root_reaches(store: Store) -> None:
    value = Vector.of([records(start, 12) for start in range(0, 600, 100)])
    hashes = {hash for hash, _, _ in novelty(value)} | {value_hash(value)}
    loose = records(700, 3)
    # Reached by no root.
    loose_hashes = {hash for hash, _, _ in novelty(loose)} | {value_hash(loose)}
    assert store.put(value, loose) == len(hashes | loose_hashes), (
        "put returns the number of new cells"
    )
    assert store.put(value) == 0, "put does not count stored cells"
    for _ in range(2):  # staged in memory, then on the disk
        assert all(store.has(hash) for hash in hashes), "staged cells can be read"
        assert not any(store.announced(hash) for hash in hashes), "staged cells are not announced"
        store.sync()
    store.commit(Vector.of([0]))
    assert not any(store.announced(hash) for hash in hashes), (
        "a root that does not reach staged cells announces none"
    )
    part = value[0]
    # The loaded part refers to cells that are staged.
    below = {hash for hash, _, _ in novelty(part)}  # loaded: behind references of the store
    store.commit(Vector.of([part, LONG]))
    reached = {hash for hash in hashes if store.announced(hash)}
    assert below <= reached, "cells that the root reaches are announced"
    assert len(reached) == 13, "only the cells that the root reaches are announced"
    assert value_hash(value) not in reached, "a cell above the reached ones stays unannounced"
    store.commit(Map.of([("all", value)]))
    assert all(store.announced(hash) for hash in hashes), (
        "a later root announces the cells that it reaches"
    )
    assert not any(store.announced(hash) for hash in loose_hashes), (
        "cells that no root reaches stay unannounced"
    )


def _keeps_the_private_part_of_a_root(store: Store) -> None:
    own, both, shared = records(0, 20), records(100, 20), records(200, 20)
    # By identity: values may be equal.
    hashes = {id(one): {hash for hash, _, _ in novelty(one)} for one in (own, both, shared)}
    seen = records(300, 20)
    seen_hashes = {hash for hash, _, _ in novelty(seen)}

    def served(value: Value) -> set[bool]:
        return {store.announced(hash) for hash in hashes[id(value)]}

    # Private and shared by the rest at once.
    store.commit(Index.of([(PRIVATE_KEY, Vector.of([own, both])), ("data", both)]))
    root = store.root_hash() or b""
    assert store.has(root), "a root with a private part is stored"
    assert not store.announced(root), "a root with a private part is not announced"
    assert served(own) == {False}, "cells of the private part alone are not announced"
    assert served(both) == {True}, "cells that a public part shares are announced"
    store.commit(Index.of([(PRIVATE_KEY, shared), ("data", both)]))
    assert served(own) == {False}, "replaced private cells stay unannounced"
    present = store.root()
    assert isinstance(present, Index), "the root is an Index"
    store.commit(Index.of([("data", Vector.of([present.get(PRIVATE_KEY)]))]))
    assert served(shared) == {True}, "private cells are announced once a public part has them"
    store.commit(Index.of([(PRIVATE_KEY, both), ("data", 1)]))
    assert served(both) == {True}, "announced cells stay announced when they become private"
    value = Index.of([(PRIVATE_KEY, seen)])
    store.commit(value, announced=[value.remove(PRIVATE_KEY), seen[3]])
    assert {hash for hash in seen_hashes if store.announced(hash)} == {value_hash(seen[3])}, (
        "only the values named by `announced` are announced"
    )
    store.commit(value, announced=[value])
    assert store.announced(value_hash(value)), "`announced=[root]` announces the root itself"
    assert all(map(store.announced, seen_hashes)), (
        "`announced=[root]` announces all cells below the root"
    )


def _takes_commits_from_many_threads(store: Store) -> None:
    failures: list[BaseException] = []

    def add(name: str) -> None:
        try:
            for number in range(10):  # few: a compare-and-set that fails is tried again
                while True:
                    before = store.root_hash()
                    root = store.root() if before is not None else Map.of({})
                    if value_hash(root) != (before or value_hash(Map.of({}))):
                        continue  # another thread was between the two calls
                    assert isinstance(root, Map)
                    value = root.put(f"{name}{number}", LONG + name)
                    if store.commit(value, before) is not None:
                        break
        except BaseException as error:  # noqa: BLE001 - told to the test's thread
            failures.append(error)

    threads = [threading.Thread(target=add, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, f"commits of several threads failed: {failures}"
    root = store.root()
    assert isinstance(root, Map)
    assert len(root) == 40, "every commit of every thread is in the root"


def _refuses_bad_arguments(store: Store) -> None:
    for hash in (b"", b"x" * 31, "text"):  # a hash of another length would be an empty answer
        assert _refused(lambda hash=hash: store.get_encoding(hash)), "a hash is 32 bytes"  # type: ignore[misc]
        assert _refused(lambda hash=hash: store.has(hash)), "a hash is 32 bytes"  # type: ignore[misc]
    assert _refused(lambda: store.commit(object())), "only values can be committed"


def _refuses_use_after_close(store: Store) -> None:
    store.commit(records(0, 5))
    store.close()
    store.close()  # closing twice is allowed
    for call in (
        store.root,
        store.root_hash,
        store.sync,
        lambda: store.commit(1),
        lambda: store.put(1),
        lambda: store.has(bytes(32)),
        lambda: store.get_encoding(bytes(32)),
    ):
        assert _refused(call, StoreClosed), "a closed store is refused"
