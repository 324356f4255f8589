"""The rules of a folder: kept, versioned, and never half written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datalattice.errors import Conflict, NoSuchPath, StoreFull, UsageError
from datalattice.service.access import (
    ANONYMOUS,
    AUTHENTICATED,
    NO_VERSION,
    POLICY_FILE,
    PUBLIC,
    Policies,
    Policy,
    decide,
)
from datalattice.service.access.policies import POLICY_BYTES_MAX, RULES_MAX
from datalattice.testing.callers import ALICE_DID, BOB_DID
from datalattice.testing.disk import SimDisk, SimulatedCrash


def written(folder: Path, document: object) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / POLICY_FILE).write_text(text)


def test_a_rule_is_kept(tmp_path: Path) -> None:
    policies = Policies(tmp_path, Policy(frozenset([ALICE_DID])))
    put = policies.put("lattice/kv", {"r": [PUBLIC], "w": [BOB_DID, ALICE_DID]})
    again = Policies(tmp_path, Policy(reading=AUTHENTICATED))
    assert again.get("lattice/kv") == put == policies.get("lattice/kv")
    assert decide(again.policy, ANONYMOUS, "r", "lattice/kv/x").is_allowed
    assert not decide(again.policy, ANONYMOUS, "r", "lattice").is_allowed
    assert policies.policy.admins == {ALICE_DID}
    assert json.loads((tmp_path / POLICY_FILE).read_text())["rules"]["lattice/kv"]["r"] == [PUBLIC]


def test_a_policy_that_was_taken_does_not_change(tmp_path: Path) -> None:
    policies = Policies(tmp_path)
    before = policies.policy
    policies.put("values", {"r": []})
    assert decide(before, ANONYMOUS, "r", "values").is_allowed
    assert not decide(policies.policy, ANONYMOUS, "r", "values").is_allowed


def test_a_write_says_which_version_it_replaces(tmp_path: Path) -> None:
    policies = Policies(tmp_path)
    first = policies.put("values", {"r": [PUBLIC]}, NO_VERSION)
    with pytest.raises(Conflict, match="values"):
        policies.put("values", {"r": []}, NO_VERSION)
    second = policies.put("values", {"r": [ALICE_DID]}, first.version)
    assert second.version != first.version
    for stale in (first.version, NO_VERSION, "x"):
        with pytest.raises(Conflict):
            policies.put("values", {"r": []}, stale)
        with pytest.raises(Conflict):
            policies.delete("values", stale)
    assert policies.get("values") == second
    assert policies.put("values", {"r": [PUBLIC]}).version == first.version  # of the same text
    policies.delete("values", first.version)
    with pytest.raises(NoSuchPath, match="no rule"):
        policies.get("values")
    with pytest.raises(NoSuchPath):
        policies.delete("values")


def test_the_rule_that_decides_is_shown(tmp_path: Path) -> None:
    policies = Policies(tmp_path)
    policies.put("lattice", {"r": [PUBLIC], "w": [ALICE_DID]})
    policies.put("lattice/kv", {"w": []})
    found = policies.inherited("lattice/kv/x")
    assert {right: one.scope for right, one in found.items()} == {"r": "lattice", "w": "lattice/kv"}
    assert policies.inherited("values") == {}


def test_a_wrong_rule_changes_nothing(tmp_path: Path) -> None:
    policies = Policies(tmp_path)
    for scope, rule in (("other", {}), ("values", {"z": []}), ("values", {"r": ["alice"]})):
        with pytest.raises(UsageError):
            policies.put(scope, rule)
    assert not (tmp_path / POLICY_FILE).exists()


def test_rules_are_bounded(tmp_path: Path) -> None:
    rules = {f"values/{number}": {"r": [PUBLIC]} for number in range(RULES_MAX)}
    written(tmp_path, {"version": 1, "rules": rules})
    policies = Policies(tmp_path)
    policies.put("values/0", {"r": []})
    with pytest.raises(UsageError, match=f"at most {RULES_MAX} scopes"):
        policies.put("values", {"r": []})
    policies.delete("values/0")
    policies.put("values", {"r": []})
    written(tmp_path, {"version": 1, "rules": {**rules, "values": {}}})
    with pytest.raises(UsageError, match="at most"):
        Policies(tmp_path)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([], "members version and rules"),
        ({"version": 1}, "members version and rules"),
        ({"version": 2, "rules": {}}, "version is 1, got 2"),
        ({"version": 1, "rules": []}, "rules is an object"),
        ({"version": 1, "rules": {"other": {}}}, "a scope begins with"),
        ({"version": 1, "rules": {"values": []}}, "the rule of values"),
        ({"version": 1, "rules": {"values": {"r": "public"}}}, "list of names"),
        ({"version": 1, "rules": {"values": {"read": []}}}, "a right is one of"),
        ('{"version": 1, "rules": {"values": {"r": []}, "values": {}}}', "twice"),
        (" " * (POLICY_BYTES_MAX + 1), "bytes"),
    ],
    ids=range(12),
)
def test_a_file_that_is_wrong_stops_the_start_and_is_named(
    tmp_path: Path, document: object, reason: str
) -> None:
    written(tmp_path, document)
    with pytest.raises(UsageError, match=reason) as caught:
        Policies(tmp_path)
    assert POLICY_FILE in str(caught.value)


def test_a_file_is_read_again_or_the_old_rules_stay(tmp_path: Path) -> None:
    policies = Policies(tmp_path)
    written(tmp_path, {"version": 1, "rules": {"values": {"r": []}}})
    take = policies.prepare(Policy(frozenset([BOB_DID])))
    assert (policies.policy.admins, policies.policy.rules) == (frozenset(), {})
    take()
    assert policies.policy.admins == {BOB_DID}
    assert policies.get("values").rule == {"r": ()}
    written(tmp_path, "{")
    with pytest.raises(UsageError):
        policies.prepare(Policy())
    assert policies.policy.admins == {BOB_DID}
    assert policies.get("values").rule == {"r": ()}


def test_a_rule_that_is_set_while_the_file_is_read_again_stays(tmp_path: Path) -> None:
    policies = Policies(tmp_path)
    take = policies.prepare(Policy(frozenset([BOB_DID])))
    policies.put("values", {"r": []})
    take()
    assert policies.policy.admins == {BOB_DID}
    assert policies.get("values").rule == {"r": ()}


def test_a_disk_that_is_full_keeps_the_old_rules() -> None:
    disk = SimDisk(1)
    disk.create_folder("d")
    disk.capacity = 4_096
    policies = Policies("d", disk=disk)
    policies.put("values", {"r": [PUBLIC]})
    many = [f"did:key:z{number}" for number in range(900)]
    with pytest.raises(StoreFull):
        policies.put("values", {"r": many})
    assert policies.get("values").rule == {"r": (PUBLIC,)}
    assert Policies("d", disk=disk).get("values").rule == {"r": (PUBLIC,)}


@pytest.mark.parametrize("at", range(1, 6))
def test_a_crash_leaves_the_old_rules_or_the_new_ones(at: int) -> None:
    disk = SimDisk(at)
    disk.create_folder("d")
    Policies("d", disk=disk).put("values", {"r": [PUBLIC]})
    disk.crash_at = disk.steps + at
    try:
        Policies("d", disk=disk).put("values", {"r": [ALICE_DID]})
        was_answered = True
    except SimulatedCrash:
        was_answered = False
    disk.restart(power_failure=True)
    found = Policies("d", disk=disk).get("values").rule["r"]
    assert found == (ALICE_DID,) if was_answered else found in ((ALICE_DID,), (PUBLIC,))
