"""A strict reader of the text format of Prometheus, version 0.0.4, as a fixture."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
PAIR = re.compile(rf'({LABEL})="((?:[^"\\\n]|\\[\\n"])*)"(,|$)')
KINDS = {"counter", "gauge", "histogram", "summary", "untyped"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """A metric as it was read; samples by (suffix of the name, labels)."""

    kind: str
    help: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The value of a metric of one sample."""
        ((key, value),) = self.samples.items()
        assert key == ("", ())
        return value

    def by(self, label: str) -> dict[str, float]:
        """Return the values by a label that all samples have."""
        return {dict(labels)[label]: value for (_, labels), value in self.samples.items()}


@pytest.fixture
def parse() -> Callable[[str], dict[str, Family]]:
    """Read the text of a /metrics page."""
    return read_exposition


def read_exposition(text: str) -> dict[str, Family]:
    """Return the families of a text; any breach of the format is an AssertionError."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    name = ""
    lines = iter(text[:-1].split("\n"))
    for line in lines:
        if line.startswith("#"):
            word, name, help = line[2:].split(" ", 2)
            assert word == "HELP", line
            assert re.fullmatch(NAME, name), line
            assert name not in families, f"{name} comes twice"
            word, again, kind = next(lines)[2:].split(" ")
            assert (word, again) == ("TYPE", name)
            assert kind in KINDS
            families[name] = Family(kind, help)
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        assert found[1].startswith(name), f"{line} stands below {name}"
        samples = families[name].samples
        key = (found[1].removeprefix(name), _labels(found[2] or ""))
        assert key not in samples, line
        samples[key] = float(found[3])
    for name, family in families.items():
        _check(name, family)
    return families


def _labels(text: str) -> Labels:
    pairs: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        found = PAIR.match(text, place)
        assert found, text
        value = re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], found[2])
        pairs.append((found[1], value))
        place = found.end()
    assert len({name for name, _ in pairs}) == len(pairs), text
    return tuple(pairs)


def _check(name: str, family: Family) -> None:
    assert family.samples, f"{name} has no samples"
    if family.kind != "histogram":
        assert {suffix for suffix, _ in family.samples} == {""}, name
        assert (family.kind == "counter") == name.endswith("_total"), name
        return
    buckets = [
        (float(dict(labels)["le"]), value)
        for (suffix, labels), value in family.samples.items()
        if suffix == "_bucket"
    ]
    assert buckets == sorted(buckets), name
    assert [value for _, value in buckets] == sorted(value for _, value in buckets), name
    assert buckets[-1] == (float("inf"), family.samples["_count", ()]), name
    assert family.samples["_sum", ()] >= 0
