"""Report: what a job returns when it is done."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job did."""

    def as_json(self) -> dict[str, object]:
        """Return the report as a JSON document."""
        return asdict(self)
