"""The public names: every package says which names are for its users, and they are there."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize("name", all_modules())
def test_every_module_imports_and_says_what_it_is(name: str) -> None:
    module = importlib.import_module(name)
    if not (module.__file__ or "").endswith(".so"):  # compiled modules carry no docstring
        assert (module.__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize("name", [name for name in all_packages() if "." in name])
def test_every_package_offers_what_it_imports_from_its_modules_and_says_so(name: str) -> None:
    """`from m import X as X` is how a module says that a name is for its users (PEP 484)."""
    module = importlib.import_module(name)
    aliases = list(imported_names(name))
    missing = [alias.name for alias in aliases if not hasattr(module, alias.asname or alias.name)]
    assert not missing, f"{name} offers names that are not there: {missing}"
    unsaid = [alias.name for alias in aliases if alias.asname is None]
    assert not unsaid, f"{name} imports names of ours without `as`: {unsaid}"


def imported_names(package: str) -> Iterator[ast.alias]:
    """Yield the public names that a package file takes from its own modules."""
    path = PACKAGE.joinpath(*package.split(".")[1:], "__init__.py")
    modules = {path.stem for path in path.parent.iterdir()}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    for node in [*tree.body, *lazy]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package + "."):
            yield from node.names
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (alias for alias in node.names if alias.name not in modules)


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
