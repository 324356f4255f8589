"""Laws of an index's bulk operations: many entries in one pass, and the entries under a prefix."""

from __future__ import annotations

from hypothesis import given, strategies as st

from datalattice.cells import ABSENT, Index, Value, encode_message, same

KEYS = st.lists(st.sampled_from([0, 1, 16, 17, 255]), max_size=4).map(bytes)
ENTRIES = st.dictionaries(KEYS, st.integers(0, 2), max_size=14)


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
