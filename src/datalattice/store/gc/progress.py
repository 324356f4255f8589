"""Progress: how far a log had come when, so that a collection knows which cells are young.

A sample says: everything up to this position was written at or before this time, and this was the
root then. At most one a second is taken while packs are published. Older samples are thinned, so an
age is known to within a fraction of itself. Samples are stored in the index, which is derived:
where they are lost, all cells count as written when the store was opened.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from datalattice.store.log.hashindex import Position

SAMPLE_MS: Final = 1_000
"""Least time between two samples."""

SAMPLES_MAX: Final = 256
"""Samples are thinned when there are more."""

AGE_PARTS: Final = 8
"""After thinning, two samples are apart by at most this part (1/8) of their age."""

_SAMPLE: Final = struct.Struct(">QQIIIB32s")


class ProgressSample(NamedTuple):
    """How far a log had come at a time."""

    time_ms: int
    position: Position
    root: bytes | None


class ProgressSamples:
    """The samples of one store, the oldest first."""

    def __init__(self, data: bytes | None, behind: Position) -> None:
        """Read what `pack` returned; samples beyond the position `behind` are ignored."""
        self._samples: list[ProgressSample] = []
        self._latest: ProgressSample | None = None
        if data is not None and len(data) % _SAMPLE.size == 0:
            for fields in _SAMPLE.iter_unpack(data):
                time_ms, sequence, segment, offset, trailer, has_root, root = fields
                # Samples beyond it are of packs that a crash cut.
                if sequence <= behind.sequence:
                    position = Position(sequence, segment, offset, trailer)
                    self._samples.append(
                        ProgressSample(time_ms, position, root if has_root else None)
                    )

    def note(self, now_ms: int, position: Position, root: bytes | None) -> None:
        """Add a sample of how far the log has come."""
        samples = self._samples
        now = ProgressSample(now_ms, position, root)
        latest, self._latest = self._latest, now
        last_ms = max(one.time_ms for one in (*samples[-1:], latest or now))
        if now_ms < last_ms:
            # The clock was set back: earlier times cannot be compared with present ones.
            samples.clear()
        elif (
            latest is not None
            and now_ms - latest.time_ms >= SAMPLE_MS
            and (not samples or samples[-1] is not latest)
        ):
            # Without it the age of a burst's last packs would be that of its first.
            samples.append(latest)  # the end of a burst
        if not samples or now_ms - samples[-1].time_ms >= SAMPLE_MS:
            samples.append(now)
        if len(samples) > SAMPLES_MAX:
            self._thin(now_ms)

    def _thin(self, now_ms: int) -> None:
        kept = [self._samples[-1]]
        for sample in reversed(self._samples[:-1]):
            if (kept[-1].time_ms - sample.time_ms) * AGE_PARTS >= now_ms - sample.time_ms:
                kept.append(sample)
        self._samples = kept[::-1]

    def _all(self) -> list[ProgressSample]:
        latest = self._latest
        return [*self._samples, *([] if latest is None else [latest])]

    def before(self, time_ms: int) -> ProgressSample | None:
        """Return the last sample that was taken at or before a time, None when there is none."""
        found = [sample for sample in self._all() if sample.time_ms <= time_ms]
        return found[-1] if found else None

    def pack(self) -> bytes:
        """Return the samples as bytes."""
        return b"".join(
            _SAMPLE.pack(
                sample.time_ms,
                sample.position.sequence,
                sample.position.segment,
                sample.position.offset,
                sample.position.trailer or 0,
                sample.root is not None,
                sample.root or bytes(32),
            )
            for sample in self._all()
        )
