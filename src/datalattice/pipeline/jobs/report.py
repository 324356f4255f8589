"""Base of the reports that jobs return."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class JobReport:
    """The result of a job."""

    def as_json(self) -> dict[str, object]:
        """Return the report as a JSON document."""
        return asdict(self)
