"""Cells: immutable values with canonical binary encoding and Merkle references.

Primitive values are plain Python objects (None, bool, int, float, str, bytes); classes exist only
for types that Python lacks. Every value has one encoding and is named by its SHA3-256.

Source: CAD002; CAD003; CAD006; docs/cells.md.
"""

from __future__ import annotations

from datalattice.cells.blobedit import (
    STAGED_BYTES as STAGED_BYTES,
    BlobBuilder as BlobBuilder,
    CellRun as CellRun,
    FreshCells as FreshCells,
    StageValue as StageValue,
    blob_from as blob_from,
    blob_length as blob_length,
    blob_overwrite as blob_overwrite,
    blob_ranges as blob_ranges,
    blob_truncate as blob_truncate,
)
from datalattice.cells.blobs import (
    TAG_BLOB as TAG_BLOB,
    TAG_TEXT as TAG_TEXT,
    Blob as Blob,
    Text as Text,
    make_blob as make_blob,
    make_text as make_text,
)
from datalattice.cells.cell import (
    TAG_REF as TAG_REF,
    Cell as Cell,
    CellSink as CellSink,
    Loader as Loader,
    Ref as Ref,
    UncachedLoader as UncachedLoader,
    Value as Value,
    encode as encode,
    is_embedded as is_embedded,
    put_plain as put_plain,
    same as same,
    text_bytes as text_bytes,
    unchanged as unchanged,
    value_hash as value_hash,
)
from datalattice.cells.columnar import columns as columns
from datalattice.cells.comparing import (
    PathChange as PathChange,
    arrivals as arrivals,
    arriving_names as arriving_names,
    changes as changes,
)
from datalattice.cells.convert import (
    refusal as refusal,
    to_cell as to_cell,
    to_cells as to_cells,
    to_python as to_python,
)
from datalattice.cells.encodedtext import (
    EncodedReader as EncodedReader,
    has_no_branch as has_no_branch,
    json_in_utf8 as json_in_utf8,
    utf8_text as utf8_text,
)
from datalattice.cells.facts import (
    FACTS_MAX as FACTS_MAX,
    Fact as Fact,
    Facts as Facts,
    KnownFacts as KnownFacts,
    LoadEncoding as LoadEncoding,
)
from datalattice.cells.holes import NO_HOLES as NO_HOLES, Hole as Hole, Holes as Holes
from datalattice.cells.html import (
    html_table as html_table,
    html_words as html_words,
    to_html as to_html,
)
from datalattice.cells.index import (
    EMPTY_INDEX as EMPTY_INDEX,
    Index as Index,
    key_bytes as key_bytes,
)
from datalattice.cells.indexparts import IndexPart as IndexPart
from datalattice.cells.indexranges import (
    index_between as index_between,
    index_bounds as index_bounds,
    index_joined as index_joined,
)
from datalattice.cells.jsonmarks import marked_text as marked_text
from datalattice.cells.jsonstream import read_json as read_json, write_json as write_json
from datalattice.cells.jsontree import from_json as from_json
from datalattice.cells.maps import (
    EMPTY_MAP as EMPTY_MAP,
    EMPTY_SET as EMPTY_SET,
    Map as Map,
    Set as Set,
)
from datalattice.cells.message import (
    MessageCells as MessageCells,
    all_references as all_references,
    branch_kids as branch_kids,
    decode as decode,
    decode_message as decode_message,
    decode_parts as decode_parts,
    decode_trusted as decode_trusted,
    encode_message as encode_message,
    join_cells as join_cells,
    references as references,
)
from datalattice.cells.rendering import counted as counted, render as render
from datalattice.cells.runs import (
    REF_BYTES as REF_BYTES,
    CellRange as CellRange,
    ElementRun as ElementRun,
    FetchCell as FetchCell,
    FetchCells as FetchCells,
    element_runs as element_runs,
    none_missing as none_missing,
    vector_count as vector_count,
    whole_cells as whole_cells,
)
from datalattice.cells.scalars import (
    Address as Address,
    Char as Char,
    Extension as Extension,
    Flag as Flag,
    Keyword as Keyword,
    NanBits as NanBits,
    Scalar as Scalar,
    Symbol as Symbol,
    make_extension as make_extension,
)
from datalattice.cells.scan import (
    branch_hashes as branch_hashes,
    branch_places as branch_places,
    may_refer as may_refer,
    read_vlq as read_vlq,
    skip_cell as skip_cell,
    skip_kid as skip_kid,
)
from datalattice.cells.shapes import (
    CellList as CellList,
    Column as Column,
    DoubleColumn as DoubleColumn,
    IntegerColumn as IntegerColumn,
    KidColumn as KidColumn,
    Shape as Shape,
    StringColumn as StringColumn,
    TruthColumn as TruthColumn,
    as_kid as as_kid,
    cell_as_kid as cell_as_kid,
    shape_of as shape_of,
)
from datalattice.cells.sound import (
    check_cell as check_cell,
    learn_cell as learn_cell,
    learn_cells as learn_cells,
    validate as validate,
)
from datalattice.cells.tagged import (
    Coded as Coded,
    Record as Record,
    Signed as Signed,
    Syntax as Syntax,
)
from datalattice.cells.text import brief as brief, to_json as to_json, to_text as to_text
from datalattice.cells.textreader import from_text as from_text
from datalattice.cells.triejoin import ABSENT as ABSENT, JoinEntries as JoinEntries
from datalattice.cells.vectors import (
    EMPTY_LIST as EMPTY_LIST,
    EMPTY_VECTOR as EMPTY_VECTOR,
    TAG_VECTOR as TAG_VECTOR,
    List as List,
    Vector as Vector,
    packed_vector as packed_vector,
    vector_fork_offset as vector_fork_offset,
    vector_last_difference as vector_last_difference,
    vector_overlap_differences as vector_overlap_differences,
)
from datalattice.cells.walk import (
    EncodedCell as EncodedCell,
    OpenCells as OpenCells,
    close_cells as close_cells,
    difference as difference,
    encode_levels as encode_levels,
    inline_signed as inline_signed,
    memory_size as memory_size,
    missing as missing,
    novelty as novelty,
)
from datalattice.cells.work import UNBOUNDED as UNBOUNDED, SlotPairs as SlotPairs, Work as Work

NIL_HASH = value_hash(None)
"""The value hash of None."""
