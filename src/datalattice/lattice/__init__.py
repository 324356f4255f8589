"""Lattice: merges of values of every type, the standard root, and paths into values."""

from datalattice.lattice.base import (
    LONG_MAX as LONG_MAX,
    LONG_MIN as LONG_MIN,
    NO_TIME as NO_TIME,
    ChildOrder as ChildOrder,
    Lattice as Lattice,
    as_integer as as_integer,
    as_operand as as_operand,
    greater as greater,
    is_greater as is_greater,
    is_integer as is_integer,
    is_long as is_long,
    to_json_key as to_json_key,
)
from datalattice.lattice.containers import (
    ExactIndexLattice as ExactIndexLattice,
    IndexLattice as IndexLattice,
    MapLattice as MapLattice,
    TupleLattice as TupleLattice,
    VectorLattice as VectorLattice,
    present as present,
)
from datalattice.lattice.content import (
    CASLattice as CASLattice,
    DataLattice as DataLattice,
    content_latest as content_latest,
)
from datalattice.lattice.context import (
    BAD_SIGNATURE as BAD_SIGNATURE,
    EMPTY_CONTEXT as EMPTY_CONTEXT,
    ENTRY_DROPPED as ENTRY_DROPPED,
    LOG_BRANCH as LOG_BRANCH,
    MALFORMED as MALFORMED,
    MISMATCHED as MISMATCHED,
    NOT_OWNER as NOT_OWNER,
    OTHER as OTHER,
    OWN as OWN,
    OWN_MALFORMED as OWN_MALFORMED,
    OWNER_BRANCH as OWNER_BRANCH,
    SECTION_DROPPED as SECTION_DROPPED,
    TOO_COSTLY as TOO_COSTLY,
    VALUE_KEY as VALUE_KEY,
    EntryDropped as EntryDropped,
    MergeContext as MergeContext,
    MergeNotice as MergeNotice,
    MetadataUnstamped as MetadataUnstamped,
    OwnerForked as OwnerForked,
    OwnMalformed as OwnMalformed,
    QueueForked as QueueForked,
    RecordsSkipped as RecordsSkipped,
    SectionDropped as SectionDropped,
    ValuePath as ValuePath,
    Verifier as Verifier,
    WriteSuperseded as WriteSuperseded,
    discard as discard,
    is_public_key as is_public_key,
)
from datalattice.lattice.exact import Judge as Judge, merge_judged as merge_judged
from datalattice.lattice.exactkeys import (
    EXACT_NAME_BYTES_MAX as EXACT_NAME_BYTES_MAX,
    ExactKeys as ExactKeys,
    ExactMerge as ExactMerge,
    exact_merge as exact_merge,
    is_short as is_short,
    is_sound_key as is_sound_key,
    key_of as key_of,
    name_of as name_of,
    named as named,
    parts as parts,
    shown_key as shown_key,
)
from datalattice.lattice.identity import (
    DIDVerifier as DIDVerifier,
    ResolvingVerifier as ResolvingVerifier,
    did_of as did_of,
    is_bare_did as is_bare_did,
    public_key_of as public_key_of,
    verify_did as verify_did,
)
from datalattice.lattice.isolation import isolated as isolated
from datalattice.lattice.jsonvalue import (
    JSONIndexLattice as JSONIndexLattice,
    JSONLattice as JSONLattice,
)
from datalattice.lattice.keyed import (
    KeyedLattice as KeyedLattice,
    NamedOrder as NamedOrder,
    StringKeyedLattice as StringKeyedLattice,
    name_bytes as name_bytes,
)
from datalattice.lattice.order import (
    NO_LATEST as NO_LATEST,
    UNTIMED as UNTIMED,
    Element as Element,
    EntryOrder as EntryOrder,
    Latest as Latest,
    Walk as Walk,
    below as below,
    contrast as contrast,
    contrast_all as contrast_all,
    element as element,
    malformed as malformed,
    number_tail as number_tail,
    step_of as step_of,
    verdict as verdict,
    wider as wider,
)
from datalattice.lattice.owned import (
    DIDOwnerLattice as DIDOwnerLattice,
    OwnerLattice as OwnerLattice,
    SignedLattice as SignedLattice,
)
from datalattice.lattice.paths import (
    assoc as assoc,
    assoc_in as assoc_in,
    checked_path as checked_path,
    get_in as get_in,
    select as select,
    value_below as value_below,
    values_along as values_along,
)
from datalattice.lattice.regions import (
    DATA_KEY as DATA_KEY,
    LOCAL_KEY as LOCAL_KEY,
    LOCAL_LATTICE as LOCAL_LATTICE,
    NODES_KEY as NODES_KEY,
    P2P as P2P,
    P2P_KEY as P2P_KEY,
    local_slot as local_slot,
    local_value as local_value,
    node_info as node_info,
    register_section as register_section,
    replicable as replicable,
    root_contains as root_contains,
    root_lattice as root_lattice,
    set_local as set_local,
)
from datalattice.lattice.signatures import ChangedSlot as ChangedSlot, slot_changes as slot_changes
from datalattice.lattice.values import (
    TIMESTAMP as TIMESTAMP,
    CompareLattice as CompareLattice,
    FunctionLattice as FunctionLattice,
    LWPLattice as LWPLattice,
    LWWLattice as LWWLattice,
    MaxLattice as MaxLattice,
    MinLattice as MinLattice,
    SetLattice as SetLattice,
    map_timestamp as map_timestamp,
)
