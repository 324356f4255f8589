"""Imported: what commands say of a root that was taken in, and of what of it was not."""

from __future__ import annotations

from typing import Any, Final

from typer.exceptions import Exit

from datalattice.cli.render import counted, print_lines, print_notice, print_pairs, show

EXIT_SHORT: Final = 1
"""Exit code of an import of which some was not taken."""


def tell_imported(document: dict[str, Any], *, json: bool) -> None:
    """Print what `import_into` did; end with code 1 when it left something out."""
    show(json, document, lambda: _print(document))
    if document["forked"]:
        print_notice(
            f"{counted(document['forked'], 'slot')} forked: one of two branches stands; "
            "`lattice forks list` has the others that are kept"
        )
    if document["dropped"]:
        print_notice(f"not taken: {counted(document['dropped'], 'part')}; the rest is merged")
        raise Exit(EXIT_SHORT)


def _print(document: dict[str, Any]) -> None:
    shown = {name: one for name, one in document.items() if one not in (None, "")}
    del shown["reports"]
    print_pairs(shown)
    for one in document["reports"]:
        more = f" (and {one['count'] - 1} more)" if one["count"] > 1 else ""
        print_lines([f"{one['kind']}: {one['text']}{more}"])
