"""Command: the decorator that makes a function a command, and the `Call` that it receives.

    @command(app, "get", READS)
    def get(call: Call, db: DbArgument, key: KeyArgument) -> CommandResult: ...

The decorator adds the shared options, prints the result, and closes everything that the command
opened through `call`.

Source: docs/cli.md "Options of every command"
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from datalattice.actions import whole_document
from datalattice.cli.render import (
    CommandResult,
    ProgressBar,
    print_notice,
    progress_bars,
    show,
    use_form,
)
from datalattice.cli.units import duration_s, reference
from datalattice.client import (
    DEFAULT_FOLDER,
    HOME_VARIABLE,
    Folder,
    connect,
    edit,
    editing,
    finish,
    folder_of,
    offline,
    open_store_reader,
    read_key,
    read_names,
    reading,
    resolve_owner,
    root_named,
    running,
    section_owners,
    try_change,
    waiting,
    write_key,
)
from datalattice.crypto import KeyPair
from datalattice.errors import (
    AlreadyExists,
    Corruption,
    MissingData,
    NoSuchPath,
    PeerUnavailable,
    UsageError,
)

if TYPE_CHECKING:
    from datalattice.actions import ActionRequest, StartTask
    from datalattice.cells import Keyword, Value
    from datalattice.client import Change, ControlClient, Editor, Node, Progress
    from datalattice.cursors import RootLattice
    from datalattice.protobuf import Message
    from datalattice.store import CellStore
    from datalattice.sync import LatticeReplica

T = TypeVar("T")
M = TypeVar("M", bound="Message")
Function = TypeVar("Function", bound=Callable[..., Any])

SHORT_KEY: Final = 16  # 64 bits: two keys share them only by intent
"""Hex digits of a public key in tables and sentences."""

NODE_START: Final = "start one with `lattice node start`"

FOLDER: Final = ("dir",)
"""A command on a folder."""

READS: Final = ("dir", "owner", "as_of")
"""A command that reads the data of one owner."""

PAST: Final = ("dir", "as_of")
"""A command that reads a root."""

WRITES: Final = ("dir", "wait", "offline")
"""A command that writes for the folder's owner."""

SPARK: Final = ("master", "memory", "package")
"""A command that runs a job on Spark."""


def _option(kind: Any, *names: str, help: str, **settings: Any) -> Any:
    return Annotated[
        kind,
        typer.Option(
            *names, help=help, show_default=False, rich_help_panel="Shared options", **settings
        ),
    ]


_HOME: Final = f"The folder: key, store and settings. Default: {DEFAULT_FOLDER}"
_WHOSE: Final = (
    "The owner: a key in hex, 4 or more of its first digits, a local name, or a DID. Default: "
    "yourself, else the only owner with such data."
)
_REF: Final = "Read a former root: HEAD~2, a pin, a hash, or a time."
_PATIENCE: Final = "Longest wait for another process that writes. Default: 10s."
_OFFLINE: Final = "If no node runs: write without first asking the peers in node.toml."
_MASTER: Final = (
    "Where Spark runs: local[N], spark://HOST:PORT, or sc://HOST:PORT (Spark Connect). Default: "
    "local, on all cores."
)
_MEMORY: Final = "Memory of the driver's JVM: a number and k, m, g or t. Default: 2g."
_PACKAGE: Final = (
    "Archive of this package for the workers of a cluster, as examples/cluster/pack.py makes it; "
    "with --master spark://..."
)
_SHAPE: Final = "Form of the results; lines: one JSON document on each line."
_SHAPES: Final = "text|table|json|lines"

_OPTIONS: Final[Mapping[str, Any]] = {
    "dir": _option(Path | None, "--dir", "-d", help=_HOME, envvar=HOME_VARIABLE),
    "owner": _option(str | None, "--owner", "-o", help=_WHOSE),
    "as_of": _option(str | None, "--as-of", help=_REF),
    "wait": _option(str | None, "--wait", help=_PATIENCE),
    "offline": _option(bool, "--offline", help=_OFFLINE),
    "master": _option(str | None, "--master", help=_MASTER),
    "memory": _option(str, "--memory", help=_MEMORY),
    "package": _option(Path | None, "--package", help=_PACKAGE),
    "output_form": _option(str | None, "--as", help=_SHAPE, metavar=_SHAPES),
    "json": _option(bool, "--json", help="The same as --as json."),
    "quiet": _option(bool, "--quiet", help="No notices and no progress; errors only."),
    "debug": _option(bool, "--debug", help="Print the traceback of an error."),
}
"""The options that commands share; `output_form` to `debug` belong to every command."""

_ALWAYS: Final = ("output_form", "json", "quiet", "debug")
_DEFAULTS: Final[Mapping[str, object]] = {
    **dict.fromkeys(("offline", "json", "quiet", "debug"), False),
    "memory": "2g",
}

SHARED_FLAGS: Final = frozenset({"--offline", "--json", "--quiet", "--debug"})
SHARED_VALUES: Final = frozenset({"--dir", "-d", "--owner", "-o", "--as-of", "--as", "--wait"})
"""Names of the shared options, which may also stand before the command."""


def command(
    app: typer.Typer | None, name: str, options: tuple[str, ...] = (), **settings: Any
) -> Callable[[Function], Function]:
    """Make a function a command of a group, or (app None) one that `main.COMMANDS` names.

    options: the shared options that it takes besides those of output: `READS` and so on.
    """

    def mark(function: Function) -> Function:
        # Kept on the function: `prepared` makes the parameters when the command runs.
        function.__dict__["shared_options"] = options
        if app is not None:
            app.command(name, **settings)(function)
        return function

    return mark


def prepared(function: Callable[..., Any]) -> Callable[..., int]:
    """Return a command as a function for typer, with its own parameters and the shared options.

    Only the command that runs is prepared, because preparing all would slow every start.
    """
    signature = inspect.signature(function, eval_str=True)  # evaluates the annotations
    _, *own = signature.parameters.values()
    names = (*function.__dict__["shared_options"], *_ALWAYS)
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS.get(name),
            annotation=_OPTIONS[name],
        )
        for name in names
    ]

    def run(**given: Any) -> int:
        chosen = {name: given.pop(name) for name in names}
        # First, so that the notices of the command obey --quiet and --json.
        use_form(chosen.pop("output_form"), json=chosen.pop("json"), quiet=chosen.pop("quiet"))
        del chosen["debug"]  # `_Failed` reads it, because an error may come before parsing
        # Closed after printing: records are read from the store while they are printed.
        with ExitStack() as resources:
            call = Call(resources, **chosen)
            # Contexts end with this command: a program may run several in one process.
            resources.enter_context(offline(call.offline))
            if call.wait is not None:
                resources.enter_context(waiting(duration_s(call.wait)))
            return show(function(call, **given))

    parameters = [*own, *shared]
    # Typer reads parameters from the signature.
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    # One line a paragraph: typer keeps line ends, and breaks lines where the terminal ends.
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(function.__doc__ or ""))
    run.__doc__ = text.replace("[", r"\[")  # else typer reads `[hosting]` as markup and omits it
    run.__name__ = function.__name__
    return run


@dataclass(slots=True)
class Call:
    """One run of a command. Everything it opens is closed after its result is printed."""

    resources: ExitStack
    dir: Path | None = None
    owner: str | None = None
    as_of: str | None = None
    wait: str | None = None
    offline: bool = False
    master: str | None = None
    memory: str = ""
    package: Path | None = None
    _names: dict[str, bytes] | None = field(default=None, init=False)
    _cursor: RootLattice | None = field(default=None, init=False)

    @property
    def folder(self) -> Folder:
        """The folder: `--dir`, else DATALATTICE_HOME, else `~/.datalattice`."""
        return folder_of(self.dir)

    @property
    def filled(self) -> Folder:
        """The folder, if it has a store or weaver stores. Raises: UsageError: it has neither."""
        folder = self.folder
        return folder if (folder.path / "weaver").is_dir() else self.existing

    @property
    def existing(self) -> Folder:
        """The folder, if it has a store. Raises: UsageError: it has none."""
        folder = self.folder
        # A reading command makes no folder, so that a misspelled `--dir` is an error.
        if not folder.store_path.is_dir():
            raise UsageError(
                f"{folder.path} is not a node's folder: it has no store; name another with --dir, "
                "or begin with a write such as `lattice db set`, `lattice fs put` or "
                "`lattice queue offer`"
            )
        return folder

    def enter(self, resource: AbstractContextManager[T]) -> T:
        """Enter a context that is left when the command ends."""
        return self.resources.enter_context(resource)

    def bar(self, label: str, total: int | None = None) -> ProgressBar:
        """Show a progress bar until the command ends; on a terminal only."""
        return self.enter(progress_bars(transient=True)).add(label, total)

    # --- reading ----------------------------------------------------------------------------

    def store(self) -> CellStore:
        """Return the folder's store, open for reading; print notices of damage in its history."""
        store = self.enter(open_store_reader(self.existing))
        for damage in store.history.damage:  # the rest of the history can be read
            print_notice(f"{damage}; the history goes on without it")
        return store

    def named(self, store: CellStore, *refs: str) -> list[bytes]:
        """Return the hashes of the roots that texts name; later explain missing cells below them.

        Raises: UsageError: a text names no root.
        """
        self.enter(explaining_gaps(store, *refs))
        return [root_named(store, reference(ref)) for ref in refs]

    def root(self) -> Value:
        """Return the root to read: the newest, or that of `--as-of`."""
        # "`--as-of REF` on every reading command"
        if self.as_of is None:
            return self.enter(reading(self.existing))
        store = self.store()
        (hash,) = self.named(store, self.as_of)
        return store.load(hash)

    def cursor(self) -> RootLattice:
        """Return a cursor on the root to read."""
        from datalattice.cursors import RootLattice
        from datalattice.lattice import root_lattice

        # Kept, so that a command sees one root throughout, even if others write meanwhile.
        if self._cursor is None:
            self._cursor = RootLattice(root_lattice(), self.root())
        return self._cursor

    # --- owners -----------------------------------------------------------------------------

    def owners(self, section: Keyword) -> list[bytes]:
        """Return the owners with data in a section of the root to read, in order."""
        return section_owners(self.cursor().get(), section)

    def own(self) -> bytes | None:
        """Return the public key of the folder's default owner; None: the folder has no key."""
        path = self.folder.key_path
        return read_key(path).public_key if path.exists() else None

    def owner_named(self, text: str, known: Iterable[Value] = ()) -> bytes:
        """Return the public key that a text means: hex, a prefix, a local name, a DID or `own`.

        Raises: UsageError: it means no owner, or is a prefix of several.
        """
        found = resolve_owner(text, own=self.own(), names=self._local_names(), owners=known)
        if not isinstance(found, bytes):  # sections have entries by public key
            raise UsageError(f"{text} is a DID without a public key; name an owner by its key")
        return found

    def holder(self, holders: list[bytes], what: str, listing: str) -> bytes:
        """Return the owner whose data is read: the named one, else our own, else the only one.

        holders: owners that have `what`. listing: the command that lists `what`.
        Raises: NoSuchPath: the named owner has none, or no owner has. UsageError: several have.
        """
        if self.owner is not None:
            wanted = self.owner_named(self.owner, holders)
            if wanted not in holders:
                raise NoSuchPath(f"owner {wanted.hex()} has no {what} here")
            return wanted
        # "Reading commands take own data, else the only owner's."
        own = self.own()
        if own in holders:
            assert own is not None
            return own
        if not holders:
            raise NoSuchPath(f"there is no {what} here; `{listing}` lists them")
        if len(holders) > 1:
            names = ", ".join(map(self.short_owner, holders))
            raise UsageError(f"{len(holders)} owners have a {what} ({names}); choose with --owner")
        # "and say so on standard error: a person sees it, a program must not guess"
        print_notice(f"this is the {what} of {self.short_owner(holders[0])}")
        return holders[0]

    def chosen_owners(self, owners: list[bytes]) -> list[bytes]:
        """Return the owners that a list shows: all, or the one of `--owner`."""
        # "`all` where several can be read": lists show all owners unless one is named.
        if self.owner in (None, "all"):
            return owners
        assert self.owner is not None
        wanted = self.owner_named(self.owner, owners)
        return [one for one in owners if one == wanted]

    def short_owner(self, owner: bytes | str) -> str:
        """Return an owner (key, or its hex) for people: the local name, else `SHORT_KEY` digits."""
        if isinstance(owner, str):
            owner = bytes.fromhex(owner)
        named = (name for name, key in self._local_names().items() if key == owner)
        return next(named, owner.hex()[:SHORT_KEY])

    def _local_names(self) -> dict[str, bytes]:
        if self._names is None:
            self._names = read_names(self.folder)
        return self._names

    # --- writing ----------------------------------------------------------------------------

    def writable(self) -> Folder:
        """Return the folder for a write; a key is made if it has none and no node runs in it."""
        folder = self.folder
        # "The first write makes the folder and its key." (docs/cli.md)
        if self._needs_key():
            key_pair = KeyPair.generate()
            with contextlib.suppress(AlreadyExists):  # another first write made one meanwhile
                write_key(folder.identity_path, key_pair)
                print_notice(f"made the key {key_pair.public_key.hex()} in {folder.path}")
        return folder

    def _needs_key(self) -> bool:
        # A node that runs without a key would not read a new one: the error of the write says that
        # it must be restarted.
        folder = self.folder
        return not folder.key_path.exists() and running(folder.path) is None

    def edit(self, change: Change[T]) -> T:
        """Make one change of our own data; return what it returned, once it is on disk."""
        # Tried first where it would make the folder: a change that is refused must not make one.
        if self._needs_key():
            try_change(change)
        return edit(self.writable(), change)

    def node_handle(self, *, makes_folder: bool = True) -> Node:
        """Open the folder as a program does, until the command ends; return the node.

        makes_folder: whether the command may be the first write to a folder.
        Raises: UsageError: the folder has no data, and the command makes no folder.
        """
        from datalattice.client import open as open_node

        # "wait up to 10 s (`--wait`) for another process that is writing" (docs/cli.md)
        wait_s = 10.0 if self.wait is None else duration_s(self.wait)
        if not makes_folder:
            _ = self.filled  # raises where there is no data
        return self.enter(open_node(self.writable().path, wait=wait_s))

    def editing(self) -> AbstractContextManager[Editor]:
        """Return a context with an editor of our own data."""
        return editing(self.writable())

    # --- the running node -------------------------------------------------------------------

    def node(self, remedy: str = NODE_START) -> ControlClient:
        """Return a client of the node that runs in the folder.

        Raises: PeerUnavailable: none does; the text ends with `remedy`.
        """
        client = connect(self.folder.path)
        if client is None:
            raise PeerUnavailable(f"no node runs in {self.folder.path}; {remedy}")
        return self.enter(client)

    def on_replica(
        self,
        request: ActionRequest[M],
        alone: Callable[[LatticeReplica], M],
        *,
        fenced: bool = False,
    ) -> M:
        """Perform an action in the running node; without one call `alone` with the replica.

        fenced: whether it writes for owners, so that peers are asked first.
        """
        from datalattice.client import replica_of

        client = connect(self.existing.path)
        # "A store has one writer. While a node runs that is the node" (docs/design/control.md).
        if client is None:
            with replica_of(self.existing, fenced=fenced) as replica:
                return alone(replica)
        with client:
            return client.call(request)

    def finish(
        self, task: StartTask, alone: Callable[[Progress], Message], title: str
    ) -> dict[str, Any]:
        """Run a task in the running node, or without one here; return its result as JSON values.

        alone: runs it in this process, and reports its progress. title: of the progress bar.
        Raises: as the task.
        """
        bar = self.bar(title)
        client = connect(self.folder.path)
        if client is None:
            return whole_document(alone(bar.to))  # no node runs: this process is the writer
        with client:
            return whole_document(finish(client, task, bar.to))


@contextlib.contextmanager
def explaining_gaps(store: CellStore, *names: str) -> Any:
    """Within the context, turn MissingData below a former root into Corruption with a remedy."""
    try:
        yield
    except MissingData as error:
        raise Corruption(
            f"{store.path}: {' or '.join(names)} is incomplete ({error}); it was collected or is "
            "damaged: `lattice disk check` says which"
        ) from error


__all__ = [
    "FOLDER",
    "PAST",
    "READS",
    "SHORT_KEY",
    "WRITES",
    "Call",
    "CommandResult",
    "command",
    "explaining_gaps",
    "prepared",
]
