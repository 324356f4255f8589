"""Adapter `sql`: one SELECT over tables of lattice data, in DuckDB.

The tables are copied into a database in memory that lives as long as the query. It has no access to
files, network and extensions, and its settings are locked before the query runs. It runs in a
thread of the venue: a crash of DuckDB would be a crash of the venue.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from datalattice.client.settings import VenueSqlConfig
from datalattice.errors import LimitExceeded, Unauthorized, UsageError
from datalattice.pipeline import BATCH_RECORDS_MAX, record_batch, row_bytes
from datalattice.service.venue import (
    JobCaller,
    JobContext,
    Json,
    OperationFailed,
    OperationMetadata,
    PlainAdapter,
    VenueOperation,
    caller_of,
)
from datalattice.service.venue.adapters.inputs import members, sub_operation, text_member
from datalattice.service.venue.adapters.plans import check_size
from datalattice.service.venue.adapters.tables import TableRows, TableSource

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

QUERY_CHARS_MAX: Final = 65_536
"""Longest query, in characters."""

SQL_TABLES_MAX: Final = 16
"""Most tables of a query."""

_INTERRUPT_S: Final = 0.05
"""Seconds between interrupts of a stopped query, which may not have begun to run."""

_MEMBERS: Final = ("query", "tables", "parameters", "maxRows")
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class SqlAdapter(PlainAdapter):
    """Runs `sql:query`. Raises: UsageError: the package duckdb or pyarrow is not installed."""

    name = "sql"

    def __init__(self, tables: TableSource, limits: VenueSqlConfig | None = None) -> None:
        self.check_packages()
        import duckdb

        self._duckdb: Final = duckdb
        self._tables: Final = tables
        self._limits: Final = limits or VenueSqlConfig()
        self._turns: Final = asyncio.Semaphore(self._limits.at_once)
        self._threads: Final = ThreadPoolExecutor(self._limits.at_once, "venue-sql")
        # To parse a text can run a part of it: IMPORT DATABASE reads a file, and its failure aborts
        # a transaction. So it happens in a database of its own, which reaches no file.
        self._parser: Final[duckdb.DuckDBPyConnection] = duckdb.connect(
            ":memory:", config=self._config()
        )
        self._parser.execute("SET enable_external_access=false")

    @staticmethod
    def check_packages() -> None:
        """Raise UsageError if the package duckdb or pyarrow is not installed."""
        try:
            for name in ("duckdb", "pyarrow"):  # `record_batch` needs pyarrow
                import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"sql operations need {error.name}: pip install 'datalattice[venue]'"
            ) from error

    def operations(self) -> Sequence[VenueOperation]:
        """Return the operation `sql/query`."""
        properties: dict[str, Json] = {
            "query": {"type": "string"},
            "tables": {"type": "object", "additionalProperties": {"type": "object"}},
            "parameters": {"type": ["array", "object"]},
            "maxRows": {"type": "integer", "minimum": 1, "maximum": self._limits.rows},
        }
        metadata: OperationMetadata = {
            "name": "SQL query",
            "description": "One SELECT over topics and databases",
            "operation": {
                "adapter": "sql:query",
                "input": {"type": "object", "properties": properties, "required": ["query"]},
            },
        }
        return [VenueOperation("sql/query", metadata, has_effects=False)]

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse a malformed input, and any query other than one SELECT."""
        self._request(meta, input)

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Return `columns` (name and type), `rows`, and `truncated`: whether there are more rows.

        Raises: OperationFailed: the query fails or takes too long, or the caller may not read a
                table. LimitExceeded: tables or result are too long.
        """
        request = self._request(meta, input)
        async with self._turns:
            query = await self._in_thread(
                _Query, self._duckdb, self._config(), request, self._limits
            )
            call = self._in_thread(self._answer, caller_of(job), query)
            try:
                async with asyncio.timeout(self._limits.time_s):
                    return await asyncio.shield(call)
            except TimeoutError:
                raise OperationFailed(
                    f"the query took more than {self._limits.time_s:g} s"
                ) from None
            finally:
                # Close the database only after its thread has ended.
                while not call.done():
                    query.stop()
                    await asyncio.wait([call], timeout=_INTERRUPT_S)
                # Retrieved, since asyncio logs an exception that is not.
                call.exception()
                query.close()

    def _in_thread(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def close(self) -> None:
        """End the threads when their queries have ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._parser.close()

    def _config(self) -> dict[str, Any]:
        return {
            "memory_limit": f"{self._limits.memory_bytes}B",
            "threads": self._limits.threads,
            "temp_directory": "",  # a query that needs more memory fails instead of using the disk
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
        }

    def _answer(self, caller: JobCaller, query: _Query) -> Json:
        try:
            for name, source in query.request.tables.items():
                query.load(name, self._tables.open(caller, source))
        except Unauthorized as error:
            # Its text alone is the error of the job, without the name of a class.
            raise OperationFailed(str(error)) from error
        return query.answer()

    def _request(self, meta: OperationMetadata, given: Json) -> _SqlRequest:
        sub_operation(meta, ["query"])
        fields = members(given, _MEMBERS)
        query = text_member(fields, "query")
        if len(query) > QUERY_CHARS_MAX:
            raise UsageError(f"`query` has at most {QUERY_CHARS_MAX} characters, got {len(query)}")
        tables = fields.get("tables") or {}
        if not isinstance(tables, dict) or len(tables) > SQL_TABLES_MAX:
            raise UsageError(f"`tables` is an object of at most {SQL_TABLES_MAX} tables by name")
        for name, source in tables.items():
            if not _TABLE.fullmatch(name):
                raise UsageError(
                    f"the name of a table is a letter and up to 62 letters and digits, got {name!r}"
                )
            self._tables.check(source)
        if len({name.lower() for name in tables}) < len(tables):
            raise UsageError("`tables`: two names differ only in case, which SQL ignores")
        parameters = fields.get("parameters")
        if not isinstance(parameters, (list, dict, type(None))):
            raise UsageError("`parameters` is a list, or an object by name")
        rows = fields.get("maxRows", self._limits.rows)
        if not isinstance(rows, int) or isinstance(rows, bool) or not 0 < rows <= self._limits.rows:
            raise UsageError(f"`maxRows` is 1 to {self._limits.rows}, got {rows!r}")
        self._check_statement(query)
        return _SqlRequest(query, tables, parameters, rows)

    def _check_statement(self, query: str) -> None:
        """Refuse any text other than one SELECT; it is parsed, and reaches nothing."""
        try:
            # A cursor is a connection of its own, so that threads parse at the same time.
            with self._parser.cursor() as parser:
                found = parser.extract_statements(query)
        except self._duckdb.Error as error:
            raise UsageError(f"`query`: {_first_line(error)}") from None
        kinds = [statement.type for statement in found]
        if kinds != [self._duckdb.StatementType.SELECT]:
            names = ", ".join(kind.name for kind in kinds) or "none"
            raise UsageError(f"`query` is one SELECT statement, got {names}")


@dataclass(frozen=True, slots=True)
class _SqlRequest:
    query: str
    tables: dict[str, Json]
    parameters: Json
    rows: int


class _Query:
    """One query in its own database."""

    def __init__(
        self, module: Any, config: dict[str, Any], request: _SqlRequest, limits: VenueSqlConfig
    ) -> None:
        self._duckdb: Final = module
        self._connection: Final[duckdb.DuckDBPyConnection] = module.connect(
            ":memory:", config=config
        )
        self.request: Final = request
        self._limits: Final = limits
        self._stopped = False
        self._loaded_rows = 0
        self._loaded_bytes = 0
        # Else a name in a query could read a variable of this program.
        self._connection.execute("SET python_enable_replacements=false")
        self._connection.execute("SET enable_external_access=false")

    def stop(self) -> None:
        """Stop loading and interrupt the query; call it again until the thread has ended."""
        self._stopped = True
        self._connection.interrupt()

    def close(self) -> None:
        """Drop the database."""
        self._connection.close()

    def load(self, name: str, table: TableRows) -> None:
        """Copy a table into the database."""
        columns = re.sub(r"(\w+) (\w+)", r'"\1" \2', table.columns)  # `offset` is a word of SQL
        # A name has no quote (`_TABLE`), so it cannot end its own text.
        self._connection.execute(f'CREATE TABLE "{name}" ({columns})')
        rows = self._counted(table.rows)
        while some := list(islice(rows, BATCH_RECORDS_MAX)):
            self._connection.register("_loaded", record_batch(some, table.columns))
            self._connection.execute(f'INSERT INTO "{name}" SELECT * FROM _loaded')  # noqa: S608
            self._connection.unregister("_loaded")

    def _counted(self, rows: Iterator[Any]) -> Iterator[Any]:
        for row in rows:
            # Counted as it is read, so that a long table ends at the bound.
            self._loaded_rows += 1
            self._loaded_bytes += row_bytes(row)
            if self._loaded_rows > self._limits.table_rows:
                raise LimitExceeded(f"tables have at most {self._limits.table_rows} rows in all")
            if self._loaded_bytes > self._limits.table_bytes:
                raise LimitExceeded(f"tables have at most {self._limits.table_bytes} bytes in all")
            if self._stopped:
                raise OperationFailed("the query was stopped")
            yield row

    def answer(self) -> Json:
        """Run the query; return its result."""
        connection = self._connection
        # After the tables are loaded and before the query runs: it cannot change a setting.
        connection.execute("SET lock_configuration=true")
        if self._stopped:
            raise OperationFailed("the query was stopped")
        try:
            connection.execute(self.request.query, self.request.parameters)
            # One row more than returned, to know whether the result is truncated.
            found = connection.fetchmany(self.request.rows + 1)
        except self._duckdb.PermissionException:  # its text has paths of this machine
            raise OperationFailed(
                "SQL: the query uses a file or a setting; it may use only its tables"
            ) from None
        except (self._duckdb.Error, TypeError) as error:
            raise OperationFailed(f"SQL: {_first_line(error)}") from None
        rows: list[Json] = [
            [_as_json(value) for value in row] for row in found[: self.request.rows]
        ]
        result: Json = {
            "columns": [
                {"name": column[0], "type": str(column[1])}
                for column in connection.description or ()
            ],
            "rows": rows,
            "truncated": len(found) > self.request.rows,
        }
        # "Rows, of the result, whose JSON has at most 4 Mi characters" (docs/venue-operations.md).
        check_size(result)
        return result


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:500]


def _as_json(value: Any) -> Json:
    """Return a value of a row as JSON.

    Times are ISO 8601, durations seconds, bytes hex; decimals, infinities and NaN are texts.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _as_json(one) for name, one in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return str(value)  # Decimal and UUID
