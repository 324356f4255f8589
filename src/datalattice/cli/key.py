"""Commands `lattice key ...` and `lattice init`: key pairs, and local names of owners."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.render import CommandResult, listed
from datalattice.cli.units import duration_s
from datalattice.client import (
    Folder,
    OwnKeys,
    begin_folder,
    folder_of,
    forget_name,
    name_owner,
    owners_in,
    read_key,
    read_names,
    renew_identity,
    write_key,
)
from datalattice.client.credentials import ABILITIES, make_delegation, make_token
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.lattice import did_of

app = typer.Typer(help="Make and show key pairs. A public key names an owner in the lattice.")
identity_app = typer.Typer(help="The key that proves this node to peers and identifies it.")
app.add_typer(identity_app, name="identity", no_args_is_help=True)

NAME_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="The name of an owner's key. Default: the key that commands write under.",
        show_default=False,
    ),
]


def _key_file(folder: Folder, name: str) -> Path:
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):  # no `/` or `..`: it is a file name
        raise UsageError(
            f"a key's name is up to {NAME_MAX} letters, digits, dots, dashes and underscores, "
            f"beginning with a letter or digit; got {name!r}"
        )
    return folder.named_key_path(name)


def _describe(path: Path, name: str, key_pair: KeyPair) -> dict[str, object]:
    return {"name": name, "public_key": key_pair.public_key.hex(), "file": str(path)}


@command(app, "new", FOLDER)
def new(call: Call, name: NameArgument = None) -> CommandResult:
    """Make a key pair. An existing key is never replaced.

    Without a name it proves the node and owns its data. With a name it is a further owner that the
    node writes for. Commands write under the key named `owner` once there is one.
    """
    path = call.folder.identity_path if name is None else _key_file(call.folder, name)
    key_pair = KeyPair.generate()
    # "makes a key pair; never replaces one" (docs/cli.md "Commands"): without its former key, an
    # owner could never write to its data again.
    write_key(path, key_pair)
    made = _describe(path, name or "", key_pair)
    text = [f"public key  {made['public_key']}", f"file        {path}"]
    is_owner = name is not None and path == call.folder.key_path
    notices = ["commands in this folder write under this key from now on"] if is_owner else ()
    return CommandResult(made, text, notices=notices)


@command(app, "show", FOLDER)
def show_key(call: Call, name: NameArgument = None) -> CommandResult:
    """Print a public key. The private part is never printed."""
    path = call.folder.key_path if name is None else _key_file(call.folder, name)
    return _public(path, name or "")


@command(app, "list", FOLDER)
def list_keys(call: Call) -> CommandResult:
    """List the identity of the node and the keys of the owners it writes for."""
    folder = call.folder
    paths = {"": folder.identity_path} if folder.identity_path.exists() else {}
    paths.update((path.stem, path) for path in folder.named_key_paths())
    found = [_describe(path, name, read_key(path)) for name, path in paths.items()]
    if not found:
        return CommandResult([], [f"no keys in {folder.path}; make one with `lattice key new`"])
    columns = ("name", "public_key", "file")
    return listed(found, columns, name=lambda name: name or "(identity)")


@command(app, "name", FOLDER)
def name_key(
    call: Call,
    name: Annotated[str, typer.Argument(help="A local name, for this folder only.")],
    key: Annotated[
        str | None,
        typer.Argument(help="The owner: a key in hex, 4 or more of its first digits, or a DID."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the name.")] = False,
) -> CommandResult:
    """Give an owner a local name, which `--owner` and lists use. Peers never see it."""
    if remove == (key is not None):
        raise UsageError("give either the owner's key or --remove")
    if key is None:
        if not forget_name(call.folder, name):
            raise UsageError(f"there is no name {name!r}; `lattice key names` lists them")
        return CommandResult({"removed": name}, [f"removed {name}"])
    # "A unique prefix of 4 or more" digits is compared with the owners here.
    # A folder without a store has no owners to compare with; a full key or a DID works there too.
    known = owners_in(call.root()) if call.folder.store_path.is_dir() else []
    owner = call.owner_named(key, known)
    name_owner(call.folder, name, owner)
    return CommandResult({"name": name, "public_key": owner.hex()}, [f"{name}  {owner.hex()}"])


@command(app, "names", FOLDER)
def names(call: Call) -> CommandResult:
    """List the local names of owners."""
    found = sorted(read_names(call.folder).items())
    rows = [{"name": name, "public_key": key.hex()} for name, key in found]
    return listed(rows, ("name", "public_key"))


@command(app, "token", FOLDER)
def token(
    call: Call,
    service: Annotated[str, typer.Argument(help="The service: the DID of a node, or its URL.")],
    name: NameArgument = None,
    grant: Annotated[
        list[str] | None,
        typer.Option("--grant", help="Limit it to rights on a scope: 'rw lattice/kv'. Repeatable."),
    ] = None,
    life: Annotated[str, typer.Option("--for", help="How long it is valid, 1h at most.")] = "10m",
) -> CommandResult:
    """Print a token by which the owner of a key calls the service of a node.

    Send it as `Authorization: Bearer TOKEN`. Keep it secret until it expires.
    """
    pair = read_key(call.folder.key_path if name is None else _key_file(call.folder, name))
    text = make_token(
        pair,
        service,
        SystemClock().now_ms(),
        scopes=grant or None,  # none given: all rights of the owner
        life_s=round(duration_s(life)),
    )
    return CommandResult({"token": text, "did": did_of(pair.public_key)}, [text])


@command(app, "delegate", FOLDER)
def delegate(
    call: Call,
    audience: Annotated[str, typer.Argument(help="The DID that gets the rights.", metavar="DID")],
    given: Annotated[
        list[str],
        typer.Argument(
            help="The rights: a path and an ability, such as kv/shop=crud or fs/photos=crud/read; "
            "'*' as the path is all of the owner's data. A path may begin with another owner's "
            "DID; then --proof gives that owner's delegation.",
            metavar="PATH=ABILITY...",
        ),
    ],
    name: Annotated[str | None, typer.Option("--key", help="The name of the owner's key.")] = None,
    proof: Annotated[
        list[str] | None,
        typer.Option("--proof", help="A delegation of the rights that are passed on. Repeatable."),
    ] = None,
    life: Annotated[str, typer.Option("--for", help="How long it is valid, 30d at most.")] = "1d",
) -> CommandResult:
    """Let another DID use part of an owner's data; print the delegation that it sends along.

    It is sent as `Ucans: TEXT`, with the caller's own token.
    """
    pair = read_key(call.folder.key_path if name is None else _key_file(call.folder, name))
    owner = did_of(pair.public_key)
    resources: dict[str, str] = {}
    for text in given:
        # Split at the last `=`: a path may have one, an ability has none.
        path, equals, ability = text.rpartition("=")
        if not equals or not path:
            raise UsageError(
                f"expected a path and an ability, such as kv/shop=crud, got {text!r}; abilities "
                f"are {', '.join(ABILITIES)}"
            )
        # A path behind a DID passes on rights of another owner; any other path is below this one.
        named = owner if path == "*" else path if path.startswith("did:") else f"{owner}/{path}"
        resources[named] = ability
    made = make_delegation(
        pair,
        audience,
        resources,
        SystemClock().now_ms(),
        life_s=round(duration_s(life)),
        proofs=proof or (),
    )
    return CommandResult({"delegation": made, "did": owner, "audience": audience}, [made])


@command(identity_app, "show", FOLDER)
def show_identity(call: Call) -> CommandResult:
    """Print the public key that this node proves to peers, which they list in `allow`."""
    return _public(call.folder.identity_path, "")


@command(identity_app, "new", FOLDER)
def new_identity(call: Call) -> CommandResult:
    """Make this folder another node, which writes for the same owners as before.

    For a copy of a folder whose original stays in use. The node's own data is signed anew. A key
    that was both identity and owner's key stays as `keys/owner.key`.
    """
    return _both(renew_identity(call.folder))


@command(None, "init")
def init(
    call: Call,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder.")],
    owner_key: Annotated[
        Path | None,
        typer.Option(
            help="Key file of an existing owner, for a further device of theirs.",
            show_default=False,
        ),
    ] = None,
) -> CommandResult:
    """Make the keys of a new folder.

    Without --owner-key, one key both proves the node and owns its data.
    """
    # Read before the folder is made, so that a wrong file leaves nothing behind.
    owner = None if owner_key is None else read_key(owner_key)
    return _both(begin_folder(folder_of(directory), owner))


def _public(path: Path, name: str) -> CommandResult:
    found = _describe(path, name, read_key(path))
    return CommandResult(found, [str(found["public_key"])])


def _both(keys: OwnKeys) -> CommandResult:
    return CommandResult(
        {"identity": keys.identity.public_key.hex(), "owner": keys.owner.public_key.hex()}
    )
