"""Invite tokens: text that survives being copied, or is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from datalattice.crypto import SeededEntropy
from datalattice.errors import BadFormat, UsageError
from datalattice.weaver.invite import TOKEN_CHARACTERS_MAX, InviteToken
from datalattice.weaver.storeid import new_store_id, parse_store_id, store_id_text

TOKEN = InviteToken(b"s" * 16, b"x" * 32, b"k" * 32, ("tls://host:18888",))

tokens = st.builds(
    InviteToken,
    store_id=st.binary(min_size=16, max_size=16),
    secret=st.binary(max_size=40),
    inviter=st.binary(min_size=32, max_size=32),
    addresses=st.lists(st.text(max_size=30), max_size=3).map(tuple),
)


@given(tokens)
def test_a_token_reads_back(token: InviteToken) -> None:
    assert InviteToken.from_text(token.to_text()) == token


@given(st.integers(0, 10_000), st.sampled_from("123456789ABCabc"))
def test_a_changed_character_is_noticed(position: int, character: str) -> None:
    text = TOKEN.to_text()
    at = position % len(text)
    changed = text[:at] + character + text[at + 1 :]
    if changed != text:
        with pytest.raises(BadFormat, match=r"checksum|version"):
            InviteToken.from_text(changed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "too short"),
        ("1", "too short"),
        ("0OIl", "is not a character of an invite token"),
        (f"tls://{'ab' * 32}@127.0.0.1:18888", "addresses of a node"),
        ("1" * TOKEN_CHARACTERS_MAX, "checksum"),
        ("1" * (TOKEN_CHARACTERS_MAX + 1), "at most 4096 characters"),
    ],
)
def test_text_that_is_no_token_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(BadFormat, match=reason):
        InviteToken.from_text(text)


def test_a_token_without_a_store_is_not_written() -> None:
    with pytest.raises(UsageError, match="names a store by 16 bytes"):
        InviteToken(b"", b"x", b"k" * 32).to_text()


def test_store_ids_are_uuids_of_version_4() -> None:
    store_id = new_store_id(SeededEntropy(1))
    text = store_id_text(store_id)
    assert (text[14], text[19]) in {("4", digit) for digit in "89ab"}
    assert parse_store_id(text) == parse_store_id(text.upper()) == store_id
    for wrong in (text[:-1], text.replace("-", ""), text[:-1] + "g", "", text + "-"):
        with pytest.raises(UsageError, match="a store id is a UUID such as"):
            parse_store_id(wrong)
