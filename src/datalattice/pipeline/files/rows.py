"""The rows of a task: one for each file or chunk. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.apps.dlfs import (
    DriveNode,
    FileContent,
    PathNames,
    join_path,
    live_entries,
    read_node as node_of,
)
from datalattice.arrow import (
    Row,
    ValueFormat,
    bytes_range,
    check_content_size,
    micros,
    to_column_value,
)
from datalattice.cells import Loader, Value, blob_length, decode
from datalattice.errors import BadFormat
from datalattice.pipeline.files.globs import States
from datalattice.pipeline.files.options import FilesOptions
from datalattice.pipeline.files.plan import (
    DriveDirectory,
    FilesTask,
    chunk_count,
    directory_of,
    index_of,
    is_divided,
)


def rows(task: FilesTask, options: FilesOptions, loader: Loader) -> Iterator[Row]:
    """Yield the rows of a task. Runs in tasks.

    Raises: LimitExceeded: a content is too long. BadFormat: a node is malformed. MissingData.
    """
    reading = _FileRows(task, options)
    for part in task.parts:
        if isinstance(part, DriveDirectory):
            for _, after in part.piece:
                states = None if options.glob.is_plain else options.glob.start
                for name in part.names:
                    states = None if states is None else options.glob.step(states, name)
                found = live_entries(directory_of(after, loader), index_of(part.entries, loader))
                yield from reading.below(part.names, found, states, is_deep=part.is_deep)
        else:
            yield from reading.file(part.names, decode(part.node, loader), part.first, part.stop)


class _FileRows:
    """Makes the rows of one task."""

    def __init__(self, task: FilesTask, options: FilesOptions) -> None:
        self._options: Final = options
        self._owner: Final = task.owner
        self._drive: Final = task.drive

    def below(
        self,
        names: PathNames,
        entries: Iterator[tuple[str, Value, DriveNode]],
        states: States | None,
        *,
        is_deep: bool,
    ) -> Iterator[Row]:
        """Yield the rows of the files among entries, and of all below them if `is_deep`."""
        glob = self._options.glob
        stack = [(names, entries, states)]
        while stack:
            here, found, states = stack[-1]
            for name, child, node in found:
                after = None if states is None else glob.step(states, name)
                if node.is_directory:
                    if is_deep and (after is None or glob.may_go_on(after)):
                        stack.append(((*here, name), live_entries(child), after))
                        break
                elif after is None or glob.is_end(after):
                    assert node.data is not None
                    # Long files have tasks of their own, if the planner has listed this directory.
                    if is_deep or not is_divided(blob_length(node.data), self._options):
                        yield from self.file((*here, name), child)
            else:
                stack.pop()

    def file(
        self, names: PathNames, value: Value, first: int = 0, stop: int | None = None
    ) -> Iterator[Row]:
        """Yield the rows of a file: one, or one for each of its chunks."""
        node = node_of(value)
        if node is None or node.data is None:
            raise BadFormat(f"{join_path(names)} is not a file")
        size = blob_length(node.data)
        columns: dict[str, object] = {
            "owner": self._owner,
            "drive": self._drive,
            "path": to_column_value(join_path(names), ValueFormat.STRING),  # names may not be UTF-8
            "size": size,
            "modified": micros(node.utime),
        }
        chunk_bytes = self._options.chunk_bytes
        if chunk_bytes is None:
            # "A longer file is an error": a row is in memory several times.
            if self._options.with_content:
                check_content_size(
                    f"the file {join_path(names)} of drive {self._drive!r}",
                    size,
                    self._options.content_bytes_max,
                    ", or read it in chunks (chunkBytes)",
                )
                columns["content"] = bytes_range(node.data, 0, size)
            yield self._row(columns)
            return
        # Without `stop` a directory's task reads a short file to its end.
        for chunk in range(first, chunk_count(size, chunk_bytes) if stop is None else stop):
            yield self._row({**columns, **_chunk(node.data, size, chunk, chunk_bytes)})

    def _row(self, columns: dict[str, object]) -> Row:
        return [columns[name] for name in self._options.columns]


def _chunk(content: FileContent, size: int, chunk: int, chunk_bytes: int) -> dict[str, object]:
    start = chunk * chunk_bytes
    return {"chunk": chunk, "content": bytes_range(content, start, min(start + chunk_bytes, size))}
