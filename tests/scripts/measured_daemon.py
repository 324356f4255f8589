"""Run `lattice daemon` so that it reports its memory in use.

    measured_daemon.py DESCRIPTOR ARGUMENTS ...

It answers each byte from the socket DESCRIPTOR with a line: the bytes that the program has
allocated from the C library and not freed. With `PYTHONMALLOC=malloc` these include Python's
objects, and with `GLIBC_TUNABLES=glibc.malloc.tcache_count=0` no free bytes are among them. It
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
    """Return the bytes in use, after a collection of garbage."""
    # `gc.get_objects` would tell more, but its list holds tuples that other threads still build:
    # such a thread fails with a SystemError.
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
