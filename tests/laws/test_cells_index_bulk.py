"""Laws of an index's bulk operations: many entries in one pass, and the entries under a prefix."""

from __future__ import annotations

from hypothesis import given, strategies as st

from datalattice.cells import ABSENT, Index, Map, Value, encode_message, missing, same
from datalattice.store import MemoryStore

KEYS = st.lists(st.sampled_from([0, 1, 16, 17, 255]), max_size=4).map(bytes)
ENTRIES = st.dictionaries(KEYS, st.integers(0, 2), max_size=14)

LONG_KEYS = st.lists(st.sampled_from([0, 1, 16, 17, 255]), max_size=6).map(bytes)
TEXTS = st.sampled_from([0, 1, 30, 120, 200]).map(lambda size: "t" * size)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "commit", "keep", "remove"]), LONG_KEYS, TEXTS)
    | st.tuples(st.just("many"), st.dictionaries(LONG_KEYS, TEXTS, max_size=12), st.just("")),
    max_size=12,
)


@given(ENTRIES, ENTRIES)
def test_many_entries_put_at_once_are_those_put_one_by_one(
    held: dict[bytes, int], new: dict[bytes, int]
) -> None:
    index = Index.of(held)
    single = index
    for key, value in new.items():
        single = single.put(key, value)
    many = index.put_many(new)
    assert encode_message(many) == encode_message(single)
    assert len(many) == len({**held, **new})
    assert list(many.entries()) == sorted({**held, **new}.items())
    if same(many, index):
        assert many is index


@given(ENTRIES, KEYS)
def test_the_entries_under_a_prefix_are_those_that_begin_with_it(
    held: dict[bytes, int], prefix: bytes
) -> None:
    under = Index.of(held).under(prefix)
    wanted = {key: value for key, value in held.items() if key.startswith(prefix)}
    assert same(under, Index.of(wanted))
    assert dict(under.entries()) == wanted


@given(ENTRIES, ENTRIES)
def test_a_merge_puts_and_removes_in_one_pass(
    held: dict[bytes, int], other: dict[bytes, int]
) -> None:
    def join(_key: Value, _own: Value, new: Value, _there: bool, _new: bool) -> Value:
        return ABSENT if new == 0 else new

    wanted = dict(held)
    for key, new in other.items():
        if new == 0 and held.get(key) != 0:
            wanted.pop(key, None)
        else:
            wanted[key] = new
    merged = Index.of(held).merge_with(Index.of(other), join)
    assert same(merged, Index.of(wanted))


@given(st.dictionaries(LONG_KEYS, TEXTS, max_size=60), STEPS)
def test_writes_to_a_stored_index_give_the_bytes_of_one_built_at_once(
    held: dict[bytes, str], steps: list[tuple[str, bytes | dict[bytes, str], str]]
) -> None:
    """Nodes are closed, edited, opened by a second read, kept open by a small commit, or new."""
    store = MemoryStore()
    store.commit(Map.of([("index", Index.of(held))]))

    def stored() -> Index:
        root = store.root()
        assert isinstance(root, Map)
        assert missing(root) == []
        found = root["index"]
        assert isinstance(found, Index)
        return found

    index, wanted = stored(), dict(held)
    for step, key, text in steps:
        if isinstance(key, dict):
            index = index.put_many(key)
            wanted.update(key)
        elif step == "put":
            index = index.put(key, text)
            wanted[key] = text
        elif step == "remove":
            index = index.remove(key)
            wanted.pop(key, None)
        elif step == "get":
            assert index.get(key) == wanted.get(key)
            keys = [key, *held, b"", key + b"\x01", key]
            assert index.get_many(keys) == [wanted.get(one) for one in keys]
        else:
            before = index
            store.commit(Map.of([("index", index)]))
            index = stored() if step == "commit" else before
        assert len(index) == len(wanted)
    assert encode_message(index) == encode_message(Index.of(wanted))
    assert list(index.entries()) == sorted(wanted.items())
    store.commit(Map.of([("index", index)]))
    assert encode_message(stored()) == encode_message(index)
