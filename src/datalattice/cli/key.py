"""Commands `lattice key ...`: make and show key pairs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from datalattice.cli.folder import DirOption, Folder, JsonOption, folder_of, read_key, write_key
from datalattice.cli.render import print_lines, print_pairs, results, show, table
from datalattice.client import OwnKeys, begin_folder, renew_identity
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError

app = typer.Typer(help="Make and show key pairs. A public key names an owner in the lattice.")
identity_app = typer.Typer(help="The key that proves this node to others, and tells it apart.")
app.add_typer(identity_app, name="identity", no_args_is_help=True)

NAME_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="The name of an owner's key. Without it: the key that commands write under.",
        show_default=False,
    ),
]


def _key_file(folder: Folder, name: str) -> Path:
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise UsageError(
            f"a key's name is up to {NAME_MAX} letters, digits, dots, dashes and underscores, "
            f"beginning with a letter or digit; got {name!r}"
        )
    return folder.named_key_path(name)


def _describe(path: Path, name: str, key_pair: KeyPair) -> dict[str, object]:
    return {"name": name, "public_key": key_pair.public_key.hex(), "file": str(path)}


@app.command("new")
def new(name: NameArgument = None, dir: DirOption = None, json: JsonOption = False) -> None:
    """Make a key pair. A key that is there already is never replaced.

    Without a name it proves the node and owns its data; one with a name joins the keys of owners
    that the node writes for.
    """
    folder = folder_of(dir)
    path = folder.identity_path if name is None else _key_file(folder, name)
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
    folder = folder_of(dir)
    path = folder.key_path if name is None else _key_file(folder, name)
    found = _describe(path, name or "", read_key(path))
    show(json, found, lambda: print_lines([str(found["public_key"])]))


@app.command("list")
def list_keys(dir: DirOption = None, json: JsonOption = False) -> None:
    """List the identity of the node and the keys of the owners it writes for."""
    folder = folder_of(dir)
    found = []
    if folder.identity_path.exists():
        found.append(_describe(folder.identity_path, "", read_key(folder.identity_path)))
    found += [_describe(path, path.stem, read_key(path)) for path in folder.named_key_paths()]

    def text() -> None:
        if not found:
            print_lines([f"no keys in {folder.path}; make one with `lattice key new`"])
            return
        rows = [
            (entry["name"] or "(identity)", entry["public_key"], entry["file"]) for entry in found
        ]
        results().print(table(("name", "public key", "file"), rows))

    show(json, found, text)


@identity_app.command("show")
def show_identity(dir: DirOption = None, json: JsonOption = False) -> None:
    """Print the public key that this node proves to others: what they list in `allow`."""
    path = folder_of(dir).identity_path
    found = _describe(path, "", read_key(path))
    show(json, found, lambda: print_lines([str(found["public_key"])]))


@identity_app.command("new")
def new_identity(dir: DirOption = None, json: JsonOption = False) -> None:
    """Make this folder another node, which writes for the same owners as before.

    For a copy of a folder whose original goes on running. What is the node's own is signed anew;
    a key that was identity and owner's key stays as `keys/owner.key`.
    """
    _show_keys(json, renew_identity(folder_of(dir)))


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder.")],
    owner_key: Annotated[
        Path | None,
        typer.Option(
            help="Key file of the owner to write for: a further device of theirs.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make the keys of a new folder.

    Without an owner's key one key does both: it proves the node, and owns its data.
    """
    owner = None if owner_key is None else read_key(owner_key)
    _show_keys(json, begin_folder(folder_of(directory), owner))


def _show_keys(json: bool, keys: OwnKeys) -> None:
    document = {
        "identity": keys.identity.public_key.hex(),
        "owner": keys.owner.public_key.hex(),
    }
    show(json, document, lambda: print_pairs(document))
