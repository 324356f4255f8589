"""Systemd: messages to a service manager, and the sockets that it hands over.

    NOTIFY_SOCKET              where states are sent: READY=1, RELOADING=1, WATCHDOG=1, STOPPING=1
    WATCHDOG_USEC              how often WATCHDOG=1 is expected, in microseconds
    LISTEN_FDS, LISTEN_FDNAMES listening sockets from descriptor 3 on, and their names

Without these variables nothing happens: a node needs no service manager.

Source: man 3 sd_notify, man 3 sd_listen_fds, man 3 sd_watchdog_enabled.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from datalattice.errors import UsageError

FIRST_DESCRIPTOR: Final = 3


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Tell the service manager a state; return False where there is none, or it does not listen."""
    path = environment.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            # "@" stands for the zero byte of an abstract name.
            sending.sendto(state.encode(), "\0" + path[1:] if path[0] == "@" else path)
    except OSError:
        return False
    return True


def watchdog_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return within how many seconds the service manager expects a sign of life, None for never."""
    text = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not text.isdecimal() or int(text) == 0 or pid != str(os.getpid()):
        return None
    return int(text) / 1e6


def take_socket(name: str, environment: Mapping[str, str] = os.environ) -> socket.socket | None:
    """Return the listening socket of a name that was handed over, None if there is none.

    Raises: UsageError: it is a Unix socket that other users can open, or does not listen.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    if name not in names or not environment.get("LISTEN_FDS", "").isdecimal():
        return None
    place = names.index(name)
    if place >= int(environment["LISTEN_FDS"]):
        return None
    # A copy: a door that failed takes the socket again.
    taken = socket.socket(fileno=os.dup(FIRST_DESCRIPTOR + place))
    wrong = ""
    if not taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        wrong = f"the socket {name} that was handed over does not listen"
    elif taken.family == socket.AF_UNIX:
        about = Path(taken.getsockname()).stat()
        # Security: a caller on this socket has all rights of the owner.
        if about.st_mode & 0o077 or about.st_uid != os.getuid():
            wrong = f"others can open the socket {name}: set SocketMode=0600"
    if wrong:
        taken.close()
        raise UsageError(wrong)
    return taken
