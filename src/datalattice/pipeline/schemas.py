"""The columns of a format in Spark's DDL, as Spark's schema, and as Arrow's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from datalattice.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def ddl(types: Mapping[str, str], never_null: Collection[str] = ()) -> str:
    """Return columns as Spark's DDL; Spark looks for no NULL in the columns of `never_null`."""
    return ", ".join(
        f"`{name}` {kind}{' NOT NULL' if name in never_null else ''}"
        for name, kind in types.items()
    )


def check_schema(schema: StructType, types: Mapping[str, str], format: str, options: str) -> None:
    """Check that a schema, which a user may have given, equals the format's schema.

    options: the options that choose columns and types, named in the error.
    Raises: UsageError: the schemas differ.
    """
    # "A user-defined schema is refused" (docs/spark.md): options choose the columns.
    given = [(field.name, field.dataType.simpleString().upper()) for field in schema.fields]
    if given != [(name, kind.replace(" ", "")) for name, kind in types.items()]:
        columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
        raise UsageError(
            f"the rows of {format} are ({columns}): omit schema(), and choose columns and "
            f"types with the options {options}"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
