"""Requests as JSON documents and as texts: values that Python reads and a field does not accept."""

import pytest

from datalattice.actions import QueryStore, WriteKeys, from_document, read_text
from datalattice.errors import UsageError


def test_a_number_beyond_64_bits_is_refused_by_name() -> None:
    document = {"database": "shop", "writes": [{"key": "k", "score": 10**400}]}
    with pytest.raises(UsageError, match=r"writes\[0\]\.score is a number of 64 bits"):
        from_document(WriteKeys, document)


def test_a_text_that_is_nested_too_deeply_is_refused_by_name() -> None:
    (field,) = [one for one in QueryStore.declared() if one.name == "arguments"]
    with pytest.raises(UsageError, match="arguments is nested deeper"):
        read_text(field, "[" * 100_000)
