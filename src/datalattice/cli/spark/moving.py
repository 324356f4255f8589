"""Commands `lattice spark load`, `compact`, `export`: rows into a lattice, within it, out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datalattice.cli.command import SPARK, Call, command
from datalattice.cli.render import CommandResult
from datalattice.cli.spark.session import (
    report_of,
    spark_job,
)
from datalattice.errors import UsageError

app = typer.Typer()

SourceOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="Option of the source, NAME=VALUE. Repeatable."),
]
WriteIdOption = Annotated[
    str | None,
    typer.Option(
        "--write-id", help="A name for the write; a write of the same name is applied once only."
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="csv, json or parquet. Default: by the extension of the names."),
]
TopicOption = Annotated[str | None, typer.Option("--topic", help="Append to this topic.")]
DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="Write to this database; needs --key.")
]


@command(app, "load", ("dir", *SPARK))
def load(
    call: Call,
    files: Annotated[list[str], typer.Argument(help="Files or folders of rows.")],
    topic: TopicOption = None,
    database: DatabaseOption = None,
    format: FormatOption = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The column that is the key of a row.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help='Columns of CSV, such as "id BIGINT, n STRING".')
    ] = None,
    option: SourceOptions = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="Partitions of a new topic.", min=1)
    ] = None,
    drop_nulls: Annotated[
        bool, typer.Option("--drop-nulls", help="Omit fields that are NULL.")
    ] = False,
    write_id: WriteIdOption = None,
) -> CommandResult:
    """Write the rows of CSV, JSON lines or Parquet to a topic or database, each row as a map.

    All rows are written, or none. A node may be running.
    """
    from datalattice.pipeline import jobs

    # Before the folder gets a key, and before Spark starts, which takes seconds.
    jobs.check_load_target(topic, database, key, partitions)
    settings = parse_settings(option)
    # Absolute: workers of Spark have another working directory.
    folder = str(call.writable().path.absolute())
    with spark_job(call, "load") as job:
        report = jobs.load(
            job.spark,
            [absolute(file) for file in files],
            store=folder,
            topic=topic,
            database=database,
            format=format,
            key=key,
            schema=schema,
            options=settings,
            partitions=partitions,
            drop_nulls=drop_nulls,
            write_id=write_id,
            progress=job.progress,
        )
        document = {**report.as_json(), "seconds": job.seconds}
    return report_of(document)


@command(app, "compact", ("dir", "owner", "as_of", *SPARK))
def compact(
    call: Call,
    topic: Annotated[str, typer.Argument(help="The topic whose records are compacted.")],
    into_topic: Annotated[
        str | None, typer.Option("--into-topic", help="Write to this new topic.")
    ] = None,
    into_database: Annotated[
        str | None, typer.Option("--into-database", help="Write to this database.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Folder to read from. Default: the one that is written to."),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", help="Node to read from, tcp://HOST:PORT.")
    ] = None,
    keyless: Annotated[
        str, typer.Option("--keyless", help="Records without a key: drop or keep.")
    ] = "drop",
    write_id: WriteIdOption = None,
) -> CommandResult:
    """Write the latest record of each key of a topic to a new topic or a database.

    A record whose value is nil deletes its key. A node may be running.
    """
    from datalattice.pipeline import jobs

    folder = str(call.existing.path.absolute())
    # As a key, because workers do not know local names.
    owner = None if call.owner is None else call.owner_named(call.owner).hex()
    with spark_job(call, "compact") as job:
        report = jobs.compact(
            job.spark,
            store=folder,
            topic=topic,
            into_topic=into_topic,
            into_database=into_database,
            source=None if source is None else str(source.absolute()),
            node=node,
            as_of=call.as_of,
            owner=owner,
            keyless=keyless,
            write_id=write_id,
            progress=job.progress,
        )
        document = {**report.as_json(), "seconds": job.seconds}
    return report_of(document)


@command(app, "export", ("dir", *SPARK))
def export(
    call: Call,
    source: Annotated[
        str, typer.Argument(metavar="FORMAT", help="Format to read, such as lattice.queue.")
    ],
    target: Annotated[str, typer.Argument(help="Folder to write.")],
    to: Annotated[str, typer.Option("--to", help="parquet or delta.")] = "parquet",
    option: SourceOptions = None,
    mode: Annotated[
        str, typer.Option("--mode", help="If the target exists: error, append, overwrite.")
    ] = "error",
) -> CommandResult:
    """Write the rows of a format to Parquet files or a Delta Lake table.

    Reads the folder (--dir), unless --option store=..., path=... or node=... is given.
    """
    from datalattice.pipeline import jobs

    settings = parse_settings(option)
    if not {"store", "path", "node"} & {name.lower() for name in settings}:
        settings["store"] = str(call.existing.path.absolute())
    with spark_job(call, "export") as job:
        report = jobs.export(
            job.spark,
            source,
            absolute(target),
            to=to,
            options=settings,
            mode=mode,
            progress=job.progress,
        )
        document = {**report.as_json(), "seconds": job.seconds}
    return report_of(document)


def parse_settings(given: list[str] | None) -> dict[str, str]:
    """Return options given as NAME=VALUE by their names.

    Raises: UsageError: one does not have that form, or a name is repeated.
    """
    settings: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        # A repeated name is refused, because it is unclear which value is meant.
        if not name or not equals or name in settings:
            raise UsageError(f"--option is NAME=VALUE, each name once, got {text!r}")
        settings[name] = value
    return settings


def absolute(path: str) -> str:
    """Return a path that means the same in Spark's processes; an address stays as it is."""
    return path if "://" in path else str(Path(path).expanduser().absolute())
