"""Run `lattice daemon` so that it tells what it uses.

    measured_daemon.py DESCRIPTOR ARGUMENTS ...

Each byte that comes from the socket DESCRIPTOR is answered with a line: the bytes that the program
has taken from the C library and not given back. With `PYTHONMALLOC=malloc` these are those of
Python, too, and with `GLIBC_TUNABLES=glibc.malloc.tcache_count=0` none that are free count. It
needs glibc 2.33.
"""

from __future__ import annotations

import ctypes
import gc
import socket
import sys
import threading

from datalattice.cli import start


class Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo


def used_bytes() -> int:
    """Return what is in use, without what only the collector would free."""
    # `gc.get_objects` would tell more, but a tuple that a thread is just building cannot grow on
    # while the list has it: that thread fails with a SystemError.
    gc.collect()
    found = libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def tell(asked: socket.socket) -> None:
    """Answer until the other end closes."""
    with asked:
        while asked.recv(1):
            asked.sendall(b"%d\n" % used_bytes())


if __name__ == "__main__":
    descriptor = int(sys.argv.pop(1))
    threading.Thread(target=tell, args=[socket.socket(fileno=descriptor)], daemon=True).start()
    start()
