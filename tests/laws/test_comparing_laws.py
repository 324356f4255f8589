"""Laws of changes: applied to what was before, they give what came after."""

from __future__ import annotations

from hypothesis import given, strategies as st

from datalattice.cells import ABSENT, Map, Value, Vector, changes, encode, same
from datalattice.testing.strategies import small_maps, values


def applied(value: Value, path: tuple[Value, ...], after: Value) -> Value:
    """Return `value` with what a change says at its path; Vectors shrink and grow at their end."""
    if not path:
        return after
    key = path[0]
    if isinstance(value, Map):
        if len(path) == 1 and after is ABSENT:
            return value.remove(key)
        return value.put(key, applied(value.get(key), path[1:], after))
    assert isinstance(value, Vector)
    assert type(key) is int
    if len(path) == 1 and after is ABSENT:
        return Vector.of(value.to_list(0, min(key, len(value))))
    inner = applied(value.get(key), path[1:], after)
    return value.append(inner) if key == len(value) else value.set(key, inner)


def nested() -> st.SearchStrategy[Value]:
    leaves = st.integers(0, 3)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(small_maps(elements=inner), st.lists(inner).map(Vector.of)),
        max_leaves=20,
    )


@given(nested(), nested())
def test_changes_lead_from_one_value_to_the_other(before: Value, after: Value) -> None:
    found = list(changes(before, after))
    value = before
    for path, mine, theirs in found:
        assert mine is not ABSENT or theirs is not ABSENT
        value = applied(value, path, theirs)
    assert same(value, after)
    paths = [path for path, _, _ in found]
    assert len(paths) == len({encode(Vector.of(path)) for path in paths}), "each path once"


@given(values(), values())
def test_any_two_values_differ_exactly_where_they_differ(before: Value, after: Value) -> None:
    found = list(changes(before, after))
    assert bool(found) is not same(before, after)
    assert list(changes(before, before)) == []
