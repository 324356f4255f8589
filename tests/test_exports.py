"""The public names: every package lists what it exports, and what it lists is there."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import datalattice

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "datalattice"


def all_modules() -> list[str]:
    """Return the dotted names of the package and everything in it."""
    names = ["datalattice"]
    names += [info.name for info in pkgutil.walk_packages(datalattice.__path__, "datalattice.")]
    return [name for name in names if not name.endswith(("__main__", "__mypyc"))]


def all_packages() -> list[str]:
    names = [
        ".".join(("datalattice", *path.parent.relative_to(PACKAGE).parts))
        for path in PACKAGE.rglob("__init__.py")
    ]
    return sorted(names)


def exports_of(module: ModuleType) -> list[str]:
    """Return what a package lists; one that only groups others lists nothing."""
    return list(getattr(module, "__all__", ()))


@pytest.mark.parametrize("name", all_modules())
def test_every_module_imports_and_says_what_it_is(name: str) -> None:
    module = importlib.import_module(name)
    if not (module.__file__ or "").endswith(".so"):  # compiled modules carry no docstring
        assert (module.__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize("name", all_packages())
def test_every_package_lists_exactly_the_names_it_imports_for_users(name: str) -> None:
    module = importlib.import_module(name)
    exports = exports_of(module)
    assert len(set(exports)) == len(exports), "a name is listed twice"
    missing = [export for export in exports if not hasattr(module, export)]
    assert not missing, f"{name}.__all__ lists names that are not there: {missing}"
    unlisted = sorted(imported_names(name) - set(exports))
    assert not unlisted, f"{name} imports names of ours that its __all__ leaves out: {unlisted}"


def imported_names(package: str) -> set[str]:
    """Return the public names that a package file takes from its own modules."""
    path = PACKAGE.joinpath(*package.split(".")[1:], "__init__.py")
    return {
        alias.asname or alias.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package + ".")
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_")
    }


def test_the_top_level_offers_the_names_that_type_checkers_see_there() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    homes = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    # `import *` keeps the builtin `open`.
    assert (set(homes) | {"__version__"}) - {"open"} == set(datalattice.__all__)
    for name, home in homes.items():
        assert getattr(datalattice, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        datalattice.nothing  # noqa: B018


def test_the_version_is_the_distribution_s() -> None:
    assert importlib.metadata.version("datalattice") == datalattice.__version__


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
