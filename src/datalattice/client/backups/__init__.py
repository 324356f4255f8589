"""Backups: copies of a value, of a folder, and what the weaver stores of a folder hold."""

from datalattice.client.backups.folderbackup import (
    LACKING as LACKING,
    back_up as back_up,
    copy_value as copy_value,
    has_all_of as has_all_of,
    weaver_figures as weaver_figures,
)
