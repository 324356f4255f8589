"""The table `[hosting]` of node.toml: what it takes, and what every mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from datalattice.client.settings import load_settings, parse_owner, parse_size
from datalattice.errors import UsageError
from datalattice.sync import HostingPolicy, UnsignedPolicy

KEY = "Ab" * 32


def loaded(folder: Path, text: str) -> HostingPolicy:
    path = folder / "node.toml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, {}, {}).config.hosting


def test_a_table_sets_the_policy_and_what_it_leaves_out_is_the_default(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        f"""
        node.port = 1
        [hosting]
        sections = [":queue", "kv"]
        owners = "known"
        allow = ["{KEY}", "did:web:example.org"]
        owner_bytes = "1.5 GB"
        reserve_bytes = 12
        unsigned.data = {{ from = "none", strangers_bytes = "64 MB" }}
        """,
    )
    assert found == HostingPolicy(
        sections=("queue", "kv"),
        owners="known",
        allow=(KEY.lower(), "did:web:example.org"),
        owner_bytes=1_500_000_000,
        reserve_bytes=12,
        unsigned={"data": UnsignedPolicy("none", 64_000_000)},
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("owner = 'any'", "there is no setting 'owner'; did you mean"),
        ("owners = 'some'", "owners is any or known, got 'some'"),
        ("owner_bytes = 'much'", "owner_bytes is a number of bytes, or a text such as"),
        ("owner_bytes = -1", "owner_bytes is a number of bytes, or a text such as"),
        ("owner_cells = '5'", "owner_cells is a number, got '5'"),
        ("owner_cells = -5", "owner_cells is at least 0, got -5"),
        ("sections = 'queue'", "sections is a list of texts, got 'queue'"),
        ("allow = [' x']", "an owner is a public key of 64 hex digits or a DID"),
        ("unsigned = 5", "unsigned is a table"),
        ("unsigned.data = 5", "unsigned.data is a table"),
        ("unsigned.data = { fom = 'any' }", "did you mean from?"),
        ("unsigned.data = { from = 'friends' }", "from is any, known or none, got 'friends'"),
    ],
)
def test_a_mistake_names_its_line_and_what_is_accepted(
    tmp_path: Path, table: str, says: str
) -> None:
    with pytest.raises(UsageError) as raised:
        loaded(tmp_path, f"[hosting]\n{table}")
    assert "node.toml line 1: [hosting]: " in str(raised.value)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_hosting_is_a_table_and_not_a_value(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hosting is a table"):
        loaded(tmp_path, "hosting = 5")


@pytest.mark.parametrize(
    ("text", "size"),
    [(0, 0), (1 << 60, 1 << 60), ("7", 7), ("7 B", 7), ("64MB", 64_000_000), ("0.5 kB", 500)],
)
def test_sizes_are_numbers_or_texts_with_a_unit(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", [-1, (1 << 60) + 1, True, None, "", "5 XB", "-5 MB", "1e3"])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="a size is a number of bytes"):
        parse_size(text)


def test_keys_are_compared_in_small_digits_and_other_names_as_they_are() -> None:
    assert parse_owner("0x" + KEY) == parse_owner(KEY) == KEY.lower()
    assert parse_owner("did:web:Example.org") == "did:web:Example.org"
