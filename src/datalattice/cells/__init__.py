"""Cells: immutable values with canonical binary encoding and Merkle references.

Primitive values are plain Python objects (None, bool, int, float, str, bytes); classes exist only
for types that Python lacks. Every value has one encoding and is named by its SHA3-256.

Source: CAD002; CAD003; CAD006; docs/cells.md.
"""

from __future__ import annotations

from datalattice.cells.blobedit import (
    STAGED_BYTES,
    BlobBuilder,
    Stage,
    blob_from,
    blob_length,
    blob_overwrite,
    blob_ranges,
    blob_truncate,
)
from datalattice.cells.blobs import TAG_BLOB, TAG_TEXT, Blob, Text, make_blob, make_text
from datalattice.cells.cell import (
    TAG_REF,
    Cell,
    CellSink,
    Loader,
    Ref,
    UncachedLoader,
    Value,
    encode,
    is_embedded,
    same,
    text_bytes,
    unchanged,
    value_hash,
)
from datalattice.cells.columnar import columns
from datalattice.cells.comparing import PathChange, arrivals, arriving_names, changes
from datalattice.cells.convert import refusal, to_cell, to_cells, to_python
from datalattice.cells.encodedtext import EncodedReader, has_no_branch, json_in_utf8, utf8_text
from datalattice.cells.facts import FACTS_MAX, Fact, Facts, KnownFacts
from datalattice.cells.holes import NO_HOLES, Hole, Holes
from datalattice.cells.html import html_table, html_words, to_html
from datalattice.cells.index import EMPTY_INDEX, Index, key_bytes
from datalattice.cells.indexparts import IndexPart
from datalattice.cells.indexranges import index_between, index_bounds, index_joined
from datalattice.cells.jsonmarks import marked_text
from datalattice.cells.jsonstream import read_json, write_json
from datalattice.cells.jsontree import from_json
from datalattice.cells.maps import EMPTY_MAP, EMPTY_SET, Map, Set
from datalattice.cells.message import (
    MessageCells,
    branch_kids,
    decode,
    decode_message,
    decode_parts,
    decode_trusted,
    encode_message,
    references,
)
from datalattice.cells.rendering import render
from datalattice.cells.runs import (
    REF_BYTES,
    ElementRun,
    FetchCell,
    FetchCells,
    element_runs,
    vector_count,
)
from datalattice.cells.scalars import (
    Address,
    Char,
    Extension,
    Flag,
    Keyword,
    NanBits,
    Scalar,
    Symbol,
    make_extension,
)
from datalattice.cells.scan import branch_hashes, branch_places, may_refer, read_vlq, skip_kid
from datalattice.cells.shapes import (
    CellList,
    Column,
    DoubleColumn,
    IntegerColumn,
    KidColumn,
    Shape,
    StringColumn,
    TruthColumn,
    as_kid,
    cell_as_kid,
    shape_of,
)
from datalattice.cells.sound import check_cell, learn_cell, learn_cells, validate
from datalattice.cells.tagged import Coded, Record, Signed, Syntax
from datalattice.cells.text import brief, to_json, to_text
from datalattice.cells.textreader import from_text
from datalattice.cells.triejoin import ABSENT, Join
from datalattice.cells.vectors import (
    EMPTY_LIST,
    EMPTY_VECTOR,
    TAG_VECTOR,
    List,
    Vector,
    vector_fork_offset,
    vector_last_difference,
    vector_overlap_differences,
)
from datalattice.cells.walk import (
    EncodedCell,
    close_cells,
    difference,
    inline_signed,
    memory_size,
    missing,
    novelty,
)
from datalattice.cells.work import UNBOUNDED, SlotPairs, Work

NIL_HASH = value_hash(None)
"""The value hash of None."""

__all__ = [
    "ABSENT",
    "EMPTY_INDEX",
    "EMPTY_LIST",
    "EMPTY_MAP",
    "EMPTY_SET",
    "EMPTY_VECTOR",
    "FACTS_MAX",
    "NIL_HASH",
    "NO_HOLES",
    "REF_BYTES",
    "STAGED_BYTES",
    "TAG_BLOB",
    "TAG_REF",
    "TAG_TEXT",
    "TAG_VECTOR",
    "UNBOUNDED",
    "Address",
    "Blob",
    "BlobBuilder",
    "Cell",
    "CellList",
    "CellSink",
    "Char",
    "Coded",
    "Column",
    "DoubleColumn",
    "ElementRun",
    "EncodedCell",
    "EncodedReader",
    "Extension",
    "Fact",
    "Facts",
    "FetchCell",
    "FetchCells",
    "Flag",
    "Hole",
    "Holes",
    "Index",
    "IndexPart",
    "IntegerColumn",
    "Join",
    "Keyword",
    "KidColumn",
    "KnownFacts",
    "List",
    "Loader",
    "Map",
    "MessageCells",
    "NanBits",
    "PathChange",
    "Record",
    "Ref",
    "Scalar",
    "Set",
    "Shape",
    "Signed",
    "SlotPairs",
    "Stage",
    "StringColumn",
    "Symbol",
    "Syntax",
    "Text",
    "TruthColumn",
    "UncachedLoader",
    "Value",
    "Vector",
    "Work",
    "arrivals",
    "arriving_names",
    "as_kid",
    "blob_from",
    "blob_length",
    "blob_overwrite",
    "blob_ranges",
    "blob_truncate",
    "branch_hashes",
    "branch_kids",
    "branch_places",
    "brief",
    "cell_as_kid",
    "changes",
    "check_cell",
    "close_cells",
    "columns",
    "decode",
    "decode_message",
    "decode_parts",
    "decode_trusted",
    "difference",
    "element_runs",
    "encode",
    "encode_message",
    "from_json",
    "from_text",
    "has_no_branch",
    "html_table",
    "html_words",
    "index_between",
    "index_bounds",
    "index_joined",
    "inline_signed",
    "is_embedded",
    "json_in_utf8",
    "key_bytes",
    "learn_cell",
    "learn_cells",
    "make_blob",
    "make_extension",
    "make_text",
    "marked_text",
    "may_refer",
    "memory_size",
    "missing",
    "novelty",
    "read_json",
    "read_vlq",
    "references",
    "refusal",
    "render",
    "same",
    "shape_of",
    "skip_kid",
    "text_bytes",
    "to_cell",
    "to_cells",
    "to_html",
    "to_json",
    "to_python",
    "to_text",
    "unchanged",
    "utf8_text",
    "validate",
    "value_hash",
    "vector_count",
    "vector_fork_offset",
    "vector_last_difference",
    "vector_overlap_differences",
    "write_json",
]
