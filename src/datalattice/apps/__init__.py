"""Applications: each an entry format, a lattice and a thin object over one cursor.

Importing any of them registers the sections of all: a root is merged as a whole, and a merge drops
sections that it does not know.
"""

import datalattice.apps.dlfs
import datalattice.apps.grid
import datalattice.apps.kv
import datalattice.apps.queue  # noqa: F401 - each registers its section
from datalattice.apps.binding import Binding as Binding, Owner as Owner
from datalattice.apps.valuetypes import T as T, value_type as value_type
