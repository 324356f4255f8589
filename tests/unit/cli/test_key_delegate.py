"""`lattice key delegate`: what it prints is a delegation, and wrong arguments are named."""

from __future__ import annotations

from typing import Any

import pytest

from datalattice.client.credentials import split_token
from datalattice.crypto import KeyPair
from datalattice.lattice import did_of

BOB, CAROL = (did_of(KeyPair(letter * 32).public_key) for letter in (b"b", b"c"))


def test_it_gives_paths_of_the_owner_and_passes_on_those_of_others(lattice: Any) -> None:
    lattice("key", "new", "alice")
    as_alice = ("--key", "alice", "--json")
    made = lattice("key", "delegate", BOB, "kv/shop=crud", "*=crud/read", *as_alice).document
    claims = split_token(made["delegation"]).claims
    assert (claims["iss"], claims["aud"]) == (made["did"], BOB)
    assert claims["exp"] - claims["nbf"] == 24 * 3_600
    assert claims["att"] == [
        {"with": f"{made['did']}/kv/shop", "can": "crud"},
        {"with": made["did"], "can": "crud/read"},
    ]
    text = made["delegation"]
    on = ("key", "delegate", CAROL, f"{BOB}/kv=crud", "--proof", text, "--for", "30d", *as_alice)
    claims = split_token(lattice(*on).document["delegation"]).claims
    assert claims["prf"] == [text]
    assert claims["att"] == [{"with": f"{BOB}/kv", "can": "crud"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([BOB, "kv/shop"], "a path and an ability, such as kv/shop=crud"),
        ([BOB, "=crud"], "a path and an ability, such as kv/shop=crud"),
        ([BOB, "kv/shop=write"], "an ability is one of *, crud, crud/read"),
        (["bob", "kv/shop=crud"], "audience: a DID such as did:key:"),
        ([BOB, "kv=crud", "--for", "31d"], "a delegation lives 1 to 2592000 s"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], said: str, lattice: Any) -> None:
    lattice("key", "new", "alice")
    ran = lattice("key", "delegate", *arguments, "--key", "alice")
    assert ran.code == 2
    assert said in ran.line()
