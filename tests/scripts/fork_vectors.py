"""Write `lattice-forks.json`: forked values of each lattice, which is the greater, and their join.

    python tests/scripts/fork_vectors.py tests/vectors/lattice-forks.json

The pairs come from fixed seeds, so the file stays the same until a rule changes; then the diff
shows which answers have changed.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from datalattice.cells import Value, encode_message, value_hash
from datalattice.conformance.forks import ANSWERS, FORK_KIND, FORK_LATTICES
from datalattice.lattice import Walk, verdict
from datalattice.testing.branches import BRANCH_WRITES, bad, diverged_states

PAIRS = 12


def cell(value: Value) -> dict[str, str]:
    """Return a value as the vectors write it: a message with all its cells, and its hash."""
    return {"message": encode_message(value).hex(), "hash": value_hash(value).hex()}


def vectors() -> list[dict[str, object]]:
    """Return all vectors."""
    found: list[dict[str, object]] = []
    for name, write in BRANCH_WRITES.items():
        lattice = FORK_LATTICES[name]
        pairs = [diverged_states(lattice, write, random.Random(seed)) for seed in range(PAIRS)]
        pairs += [(own, bad(other)) for own, other in pairs[:2]]
        pairs.append((pairs[0][0], pairs[0][0]))  # equal values: neither is the greater
        for own, other in pairs:
            found.append(
                {
                    "id": f"lattice-forks-{len(found) + 1:03}",
                    "kind": FORK_KIND,
                    "lattice": name,
                    "own": cell(own),
                    "other": cell(other),
                    "greater": ANSWERS[verdict(lattice.latest(own, other, Walk()))],
                    "join": cell(lattice.merge(own, other)),
                }
            )
    return found


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("path", type=Path)
    options = parser.parse_args()
    lines = ",\n".join(json.dumps(one) for one in vectors())
    head = '{"format": "forks-1", "group": "lattice-forks", "vectors": [\n'
    options.path.write_text(f"{head}{lines}\n]}}\n")


if __name__ == "__main__":
    main()
