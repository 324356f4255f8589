"""Backups: copies of a value, of a folder, and what the weaver stores of a folder hold."""

from datalattice.client.backups.folderbackup import (
    LACKING,
    back_up,
    copy_value,
    has_all_of,
    weaver_figures,
)

__all__ = ["LACKING", "back_up", "copy_value", "has_all_of", "weaver_figures"]
