"""Commands `lattice key ...`: make and show key pairs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from datalattice.cli.folder import DirOption, Folder, JsonOption, folder_of, read_key, write_key
from datalattice.cli.render import print_lines, results, show, table
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError

app = typer.Typer(help="Make and show key pairs. A public key names an owner in the lattice.")

NAME_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="A further key's name. Without it: the node's own key.", show_default=False
    ),
]


def _key_file(folder: Folder, name: str | None) -> Path:
    if name is None:
        return folder.key_path
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise UsageError(
            f"a key's name is up to {NAME_MAX} letters, digits, dots, dashes and underscores, "
            f"beginning with a letter or digit; got {name!r}"
        )
    return folder.keys_path / name


def _describe(path: Path, name: str, key_pair: KeyPair) -> dict[str, object]:
    return {"name": name, "public_key": key_pair.public_key.hex(), "file": str(path)}


@app.command("new")
def new(name: NameArgument = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """Make a key pair. A key that is there already is never replaced."""
    path = _key_file(folder_of(dir), name)
    key_pair = KeyPair.generate()
    write_key(path, key_pair)
    made = _describe(path, name or "", key_pair)
    show(
        json,
        made,
        lambda: print_lines([f"public key  {made['public_key']}", f"file        {path}"]),
    )


@app.command("show")
def show_key(name: NameArgument = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """Print a public key. The private part is never printed."""
    path = _key_file(folder_of(dir), name)
    found = _describe(path, name or "", read_key(path))
    show(json, found, lambda: print_lines([str(found["public_key"])]))


@app.command("list")
def list_keys(dir: DirOption = None, json: JsonOption = False) -> None:
    """List the node's own key and the named ones."""
    folder = folder_of(dir)
    found = []
    if folder.key_path.exists():
        found.append(_describe(folder.key_path, "", read_key(folder.key_path)))
    if folder.keys_path.is_dir():
        paths = sorted(folder.keys_path.iterdir())
        found += [_describe(path, path.name, read_key(path)) for path in paths]

    def text() -> None:
        if not found:
            print_lines([f"no keys in {folder.path}; make one with `lattice key new`"])
            return
        rows = [(entry["name"] or "(node)", entry["public_key"], entry["file"]) for entry in found]
        results().print(table(("name", "public key", "file"), rows))

    show(json, found, text)
