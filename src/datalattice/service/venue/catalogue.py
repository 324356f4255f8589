"""Catalogue: the operations of a venue, and the resolution of references to operations.

Source: COG-7 "Operations"; docs/design/venue.md "References".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from datalattice.apps.grid import asset_id, parse_asset_id, split_did_url
from datalattice.cells import Map
from datalattice.errors import DataLatticeError, NoSuchPath, UsageError
from datalattice.service.venue.adapter import (
    Adapter,
    Json,
    OperationMetadata,
    RecoveryRule,
    VenueOperation,
)
from datalattice.service.venue.schemas import InputSchemas

PATH_PREFIX: Final = "v/ops/"


@dataclass(frozen=True, slots=True)
class ResolvedOperation:
    """An operation that can run here.

    asset: the id of its definition. given: the reference if it was a name, "" for an id.
    has_effects, rule: as those of `VenueOperation`.
    """

    asset: bytes
    metadata: OperationMetadata
    adapter: Adapter
    has_effects: bool
    rule: RecoveryRule
    given: str = ""
    schemas: InputSchemas = field(default_factory=InputSchemas, compare=False, repr=False)

    def check(self, input: Json) -> None:
        """Check an input before a job is made. Raises: UsageError, LimitExceeded: it is refused."""
        self.schemas.check(self.asset, operation_of(self.metadata), input)
        self.adapter.check(self.metadata, input)

    @property
    def name(self) -> str:
        """The name in its metadata, or ""."""
        name = self.metadata.get("name")
        return name if isinstance(name, str) else ""

    @property
    def secrets(self) -> frozenset[str]:
        """The members that records hide in inputs and outputs."""
        fields = operation_of(self.metadata).get("secretFields")
        return frozenset(map(str, fields)) if isinstance(fields, list) else frozenset()

    @property
    def secret_inputs(self) -> frozenset[str]:
        """The members that records hide in inputs: `secrets`, and the `writeOnly` ones."""
        schema = operation_of(self.metadata).get("input")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        known = properties.items() if isinstance(properties, dict) else ()
        # "writeOnly": the word of JSON Schema for what is given and never shown.
        hidden = {
            name for name, one in known if isinstance(one, dict) and one.get("writeOnly") is True
        }
        return self.secrets | hidden


def operation_of(metadata: OperationMetadata) -> dict[str, Any]:
    """Return the member `operation` of metadata; empty if there is none."""
    operation = metadata.get("operation")
    return operation if isinstance(operation, dict) else {}


def metadata_text(metadata: OperationMetadata) -> str:
    """Return the text of an operation's asset; equal metadata gives an equal text."""
    return json.dumps(metadata, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


class DefinedElsewhere(NoSuchPath):
    """A reference is to an operation of the venue `did`. asset: its id; None: it is a name."""

    def __init__(
        self, text: str, did: str = "", path: str = "", asset: bytes | None = None
    ) -> None:
        super().__init__(text)
        self.did: Final = did
        self.path: Final = path
        self.asset: Final = asset


class Catalogue:
    """The operations that the adapters of a venue offer. `find` may wait for the disk."""

    def __init__(
        self,
        did: str,
        adapters: Iterable[Adapter],
        find: Callable[[bytes], str | None],
    ) -> None:
        """find: returns the metadata text of an asset.

        Raises: UsageError: two adapters, or two operations, have one name.
        """
        self._did: Final = did
        self._find: Final = find
        self._adapters: Final[dict[str, Adapter]] = {}
        self._paths: Final[dict[str, VenueOperation]] = {}
        self._offered: Final[dict[str, VenueOperation]] = {}
        self._ids: Final[dict[str, bytes]] = {}
        self._schemas: Final = InputSchemas()
        for adapter in adapters:
            if adapter.name in self._adapters:
                raise UsageError(f"two adapters have the name {adapter.name!r}")
            self._adapters[adapter.name] = adapter
            for operation in adapter.operations():
                if operation.path in self._paths:
                    raise UsageError(f"two operations have the path {operation.path!r}")
                self._paths[operation.path] = operation
                self._ids[operation.path] = asset_id(metadata_text(operation.metadata))
                named = operation_of(operation.metadata).get("adapter", "")
                # Several operations may name one adapter; assets of others that name it, too, get
                # the effects and the rule of the first.
                self._offered.setdefault(str(named), operation)

    def publish(self, register: Callable[[str], bytes]) -> None:
        """Register every operation as an asset."""
        for operation in self._paths.values():
            register(metadata_text(operation.metadata))

    def operations(self) -> dict[str, tuple[bytes, VenueOperation]]:
        """Return asset id and operation by path, in the order of paths."""
        return {
            PATH_PREFIX + path: (self._ids[path], self._paths[path]) for path in sorted(self._paths)
        }

    def resolve(self, reference: str) -> ResolvedOperation:
        """Return the operation of a reference.

        reference: "v/ops/json/merge", an asset id in any form, or either below a DID.
        Raises: UsageError: it is malformed, or its operation cannot run here. NoSuchPath: there is
                no such operation. DefinedElsewhere: the reference has the DID of another venue.
        """
        path, did = reference, self._did
        if reference.startswith("did:"):
            url = split_did_url(reference)
            path = (url.path or "").removeprefix("/")
            did = url.did
            # "no fallback from one name space to another"
            if did != self._did and not path.startswith("a/"):
                raise DefinedElsewhere(
                    f"operation: {path} is in the catalogue of {did}, not of this venue", did, path
                )
        if path.startswith(PATH_PREFIX):
            name = path.removeprefix(PATH_PREFIX)
            if name not in self._paths:
                raise NoSuchPath(f"operation: the catalogue has no {path}")
            operation = self._paths[name]
            return self._runnable(self._ids[name], operation.metadata, reference)
        try:
            asset = parse_asset_id(path)
        except UsageError:
            raise UsageError(
                f"operation: a path {PATH_PREFIX}... or an asset id, got {reference!r:.80}"
            ) from None
        try:
            return self.of_asset(asset)
        except NoSuchPath as error:
            if did == self._did:
                raise
            raise DefinedElsewhere(str(error), did, path, asset) from None

    def known(self, reference: str) -> ResolvedOperation | None:
        """Return the operation of a path of the catalogue without waiting; None: it has none."""
        name = reference.removeprefix(PATH_PREFIX)
        if name == reference or name not in self._ids:
            return None
        return self._runnable(self._ids[name], self._paths[name].metadata, reference)

    def of_asset(self, asset: bytes) -> ResolvedOperation:
        """Return the operation that an asset defines; raises as `resolve`."""
        text = self._find(asset)
        if text is None:
            raise NoSuchPath(f"operation: this node holds no asset {asset.hex()}")
        return self.of_text(asset, text)

    def of_text(self, asset: bytes, text: str) -> ResolvedOperation:
        """Return the operation that a metadata text defines; raises as `resolve`."""
        return self._runnable(asset, json.loads(text), "")

    def of_record(self, record: Map) -> tuple[ResolvedOperation | None, str]:
        """Return the operation of a job and "", or None and why it cannot run here."""
        try:
            # By its asset: the name may mean another operation by now.
            return self.of_asset(bytes.fromhex(str(record.get("op")))), ""
        # A job whose operation is gone must not keep the venue from starting.
        except (DataLatticeError, ValueError) as error:
            return None, f"its operation cannot be resolved: {error}"

    def _runnable(self, asset: bytes, metadata: OperationMetadata, given: str) -> ResolvedOperation:
        named = operation_of(metadata).get("adapter")
        if not isinstance(named, str):
            raise UsageError(f"operation: the asset {asset.hex()} is not an operation")
        adapter = self._adapters.get(named.partition(":")[0])
        if adapter is None:
            known = ", ".join(sorted(self._adapters)) or "none"
            raise UsageError(f"operation: there is no adapter for {named!r:.80}; known: {known}")
        offered = self._offered.get(named)
        # An adapter declares the effects of its operations; for an unknown one assume the worst.
        has_effects = offered is None or offered.has_effects
        rule = RecoveryRule.FAIL if offered is None else offered.rule
        # "The rule is `operation.recover` of the asset, else the adapter's" (docs/design/venue.md).
        declared = operation_of(metadata).get("recover")
        if declared is not None:
            if declared not in RecoveryRule._value2member_map_:
                accepted = ", ".join(RecoveryRule)
                raise UsageError(f"operation: `recover` is one of {accepted}, got {declared!r:.80}")
            rule = RecoveryRule(declared)
        return ResolvedOperation(asset, metadata, adapter, has_effects, rule, given, self._schemas)
