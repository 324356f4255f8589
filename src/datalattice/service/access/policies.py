"""Policies: the rules of a folder, stored in one file.

    {"version": 1, "rules": {"lattice/kv": {"r": ["public"], "w": ["did:key:..."]}}}

Each change replaces the file durably; edit it by hand only while no node runs.

Source: docs/design/access.md "What is allowed".
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from datalattice.crypto import sha3_256
from datalattice.errors import Conflict, NoSuchPath, UsageError
from datalattice.service.access.policy import NO_RULES, Policy, PolicyRule, checked_rule
from datalattice.service.access.scopes import RIGHTS, covering, split_scope
from datalattice.store import Disk, RealDisk, replace_file

POLICY_FILE: Final = "access.json"
RULES_MAX: Final = 1_000
"""Most scopes with a rule."""

POLICY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longest file of rules, in bytes."""

NO_VERSION: Final = ""
"""The version of an absent rule."""

_FORMAT: Final = 1


class StoredRule(NamedTuple):
    """A rule, its scope, and its version for If-Match."""

    scope: str
    rule: PolicyRule
    version: str


class Policies:
    """The policy of a folder. Any thread may call a method.

    base: the part of the policy from the settings: all but the rules.
    Raises: UsageError: the file is invalid; the text names it and the fault.
    """

    def __init__(
        self, folder: str | os.PathLike[str], base: Policy | None = None, disk: Disk | None = None
    ) -> None:
        self._disk = RealDisk() if disk is None else disk
        self._path = f"{os.fspath(folder)}/{POLICY_FILE}"
        self._base = Policy() if base is None else base
        self._lock = threading.Lock()
        self._policy = self._with(self._read())

    @property
    def policy(self) -> Policy:
        """The present policy, immutable; each change makes a new one."""
        return self._policy

    def prepare(self, base: Policy) -> Callable[[], None]:
        """Read the file again, with another base; return the function that applies both.

        Raises: UsageError: as the constructor.
        """
        # "A reload reads and checks everything first: each part returns a function that puts its
        # settings in force" (docs/design/service.md).
        before, rules = self._policy, self._read()

        def take() -> None:
            with self._lock:
                self._base = base
                # Rules that were set after the file was read are newer than the file's.
                self._policy = self._with(rules if self._policy is before else self._policy.rules)

        return take

    def get(self, scope: str) -> StoredRule:
        """Return the rule of a scope.

        Raises: NoSuchPath: it has no rule of its own. UsageError: the scope is invalid.
        """
        split_scope(scope)
        rule = self._policy.rules.get(scope)
        if rule is None:
            raise NoSuchPath(f"the scope {scope} has no rule of its own")
        return StoredRule(scope, rule, _version(rule))

    def inherited(self, scope: str) -> dict[str, StoredRule]:
        """Return by right the stored rule that decides on a scope, without the defaults."""
        split_scope(scope)
        rules = self._policy.rules
        found: dict[str, StoredRule] = {}
        for right in RIGHTS:
            one = next((one for one in covering(scope) if right in rules.get(one, {})), None)
            if one is not None:
                found[right] = StoredRule(one, rules[one], _version(rules[one]))
        return found

    def put(
        self, scope: str, rights: Mapping[str, object], expected: str | None = None
    ) -> StoredRule:
        """Set the rule of a scope, durably.

        expected: the version that the rule must have, `NO_VERSION` for no rule; None: any.
        Raises: Conflict: it has another version. UsageError: the rule or the scope is invalid, or
                there are too many rules. StoreFull, StoreFailed: the disk refuses.
        """
        split_scope(scope)
        rule = checked_rule(rights)
        with self._lock:
            rules = dict(self._expecting(scope, expected))
            rules[scope] = rule
            # Checked when writing and when reading, so that each written file can be read.
            if len(rules) > RULES_MAX:
                raise UsageError(f"a folder has rules for at most {RULES_MAX} scopes; delete one")
            self._write(rules)
        return StoredRule(scope, rule, _version(rule))

    def delete(self, scope: str, expected: str | None = None) -> None:
        """Remove the rule of a scope, durably: the scope above decides again.

        Raises: NoSuchPath: it has none. Conflict, StoreFull, StoreFailed: as `put`.
        """
        self.get(scope)
        with self._lock:
            rules = dict(self._expecting(scope, expected))
            if rules.pop(scope, None) is not None:  # else another caller has just removed it
                self._write(rules)

    def _expecting(self, scope: str, expected: str | None) -> Mapping[str, PolicyRule]:
        """Return the present rules.

        Raises: Conflict: the version of the scope is not the expected one.
        """
        rules = self._policy.rules
        if expected is not None:
            rule = rules.get(scope)
            if expected != (NO_VERSION if rule is None else _version(rule)):
                raise Conflict(f"the rule of {scope} has been changed; read it again")
        return rules

    def _with(self, rules: Mapping[str, PolicyRule]) -> Policy:
        return replace(self._base, rules=MappingProxyType(dict(rules)))

    def _read(self) -> Mapping[str, PolicyRule]:
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return NO_RULES
        try:
            size = file.size()
            # Before reading: the path may name any file.
            if size > POLICY_BYTES_MAX:
                raise UsageError(f"{self._path}: has {size} bytes, at most {POLICY_BYTES_MAX}")
            data = file.read(0, size)
        finally:
            file.close()
        try:
            return _rules_of(data)
        except UsageError as error:
            raise UsageError(f"{self._path}: {error}") from error

    def _write(self, rules: Mapping[str, PolicyRule]) -> None:
        document = {"version": _FORMAT, "rules": rules}
        data = f"{json.dumps(document, indent=2, sort_keys=True)}\n".encode()
        if len(data) > POLICY_BYTES_MAX:  # else `_read` would refuse it
            raise UsageError(
                f"the rules of a folder have at most {POLICY_BYTES_MAX} bytes, got {len(data)}"
            )
        # Written new, synced and renamed: a crash leaves the old rules or the new ones.
        replace_file(self._disk, self._path, [data])
        self._policy = self._with(rules)  # only durable rules decide


def _rules_of(data: bytes) -> dict[str, PolicyRule]:
    try:
        document = json.loads(data, object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}") from error
    # An unknown member could restrict access, so it is refused and not skipped.
    if not isinstance(document, dict) or set(document) != {"version", "rules"}:
        raise UsageError("the document is an object with the members version and rules")
    if document["version"] != _FORMAT:
        raise UsageError(f"version is {_FORMAT}, got {document['version']!r}")
    rules = document["rules"]
    if not isinstance(rules, dict) or len(rules) > RULES_MAX:
        raise UsageError(f"rules is an object of at most {RULES_MAX} scopes")
    found: dict[str, PolicyRule] = {}
    for scope, rights in rules.items():
        split_scope(scope)
        if not isinstance(rights, dict):
            raise UsageError(f"the rule of {scope} is an object of rights")
        found[scope] = checked_rule(rights)
    return found


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    # If a scope had two rules, the author could mean the one that Python drops.
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the member {twice!r:.80} comes twice")
    return found


def _version(rule: PolicyRule) -> str:
    # A hash of the content, so that a repeated PUT gives the version that it expects.
    text = json.dumps({right: list(who) for right, who in rule.items()}, sort_keys=True)
    return sha3_256(text.encode()).hex()[:32]
