"""Grid: venues that publish assets, jobs and content, replicated by merge.

Importing this package registers the root section `:grid`. In it, `:venues did :value` is the signed
state of a venue, and `:meta` is the metadata of all assets.
"""

from __future__ import annotations

from datalattice.apps.grid.assets import (
    CONTENT_BYTES_MAX as CONTENT_BYTES_MAX,
    asset_id as asset_id,
    check_content as check_content,
    declared_hash as declared_hash,
    parse_asset_id as parse_asset_id,
    read_metadata as read_metadata,
)
from datalattice.apps.grid.authority import (
    KEEP_MS as KEEP_MS,
    DIDResolver as DIDResolver,
    FixedResolver as FixedResolver,
    KnownKeys as KnownKeys,
    dids_to_resolve as dids_to_resolve,
)
from datalattice.apps.grid.contents import (
    ContentStaging as ContentStaging,
    MemoryStaging as MemoryStaging,
    StoredContent as StoredContent,
)
from datalattice.apps.grid.dids import (
    DIDUrl as DIDUrl,
    assertion_keys as assertion_keys,
    did_method as did_method,
    document_url as document_url,
    is_loopback as is_loopback,
    is_venue_did as is_venue_did,
    may_write as may_write,
    split_did_url as split_did_url,
    venue_document as venue_document,
)
from datalattice.apps.grid.files import DriveBackend as DriveBackend, FileBackend as FileBackend
from datalattice.apps.grid.hidden import hidden_entries as hidden_entries
from datalattice.apps.grid.jobs import (
    ACTIVE as ACTIVE,
    INTERACTIVE as INTERACTIVE,
    JOB_STATUSES as JOB_STATUSES,
    JOB_TIME_MAX as JOB_TIME_MAX,
    TERMINAL as TERMINAL,
    job_status as job_status,
    job_time as job_time,
    make_job_id as make_job_id,
    parse_job_id as parse_job_id,
)
from datalattice.apps.grid.lattice import (
    ASSETS_LATTICE as ASSETS_LATTICE,
    GRID as GRID,
    GRID_ROOT as GRID_ROOT,
    GRID_SECTION as GRID_SECTION,
    JOB_LATTICE as JOB_LATTICE,
    JOBS_KEY as JOBS_KEY,
    JOBS_LATTICE as JOBS_LATTICE,
    META_KEY as META_KEY,
    META_LATTICE as META_LATTICE,
    PLAIN_GRID as PLAIN_GRID,
    STORAGE_LATTICE as STORAGE_LATTICE,
    VENUE as VENUE,
    VENUES_KEY as VENUES_KEY,
    Collection as Collection,
    check_foreign as check_foreign,
    initial_root as initial_root,
    plain_grid as plain_grid,
    sanitise as sanitise,
    venue_lattice as venue_lattice,
    view as view,
)
from datalattice.apps.grid.states import part_of as part_of
from datalattice.apps.grid.storage import (
    BadContent as BadContent,
    ContentBackend as ContentBackend,
    ContentWriter as ContentWriter,
    LatticeBackend as LatticeBackend,
    MemoryBackend as MemoryBackend,
    Storage as Storage,
)
from datalattice.apps.grid.venue import Venue as Venue
