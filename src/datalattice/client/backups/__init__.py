"""Backups: copies of a value or a folder, and the figures of a folder's weaver stores."""

from datalattice.client.backups.folderbackup import (
    LACKING as LACKING,
    back_up as back_up,
    copy_value as copy_value,
    has_all_of as has_all_of,
    weaver_figures as weaver_figures,
)
