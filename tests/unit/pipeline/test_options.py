"""The kit of options: what all formats refuse in the same words."""

from __future__ import annotations

import pytest

from datalattice.errors import UsageError
from datalattice.pipeline.options import NAMED_MAX, check_there


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_an_error_lists_so_many_names(more: int) -> None:
    there = [f"t{i:03}" for i in range(NAMED_MAX + more)]
    check_there("topic", there, there)
    with pytest.raises(UsageError, match=r"topic='x' .* it has: t000, t001") as caught:
        check_there("topic", ["t001", "x"], set(there))
    assert str(caught.value).count("t0") == min(NAMED_MAX, len(there))
    assert str(caught.value).endswith("and 1 more") is (more == 1)


def test_where_nothing_is_there() -> None:
    with pytest.raises(UsageError, match="it has: none at all"):
        check_there("topic", ["x"], ())
