"""Pack this package and its requirements into an archive for the workers of a Spark cluster.

    python examples/cluster/pack.py datalattice.tar.gz

The archive holds the files that this environment imports: the package, with its compiled modules if
it has them, and the distributions that it requires. So nothing is downloaded, and the versions are
those that were tested here. Workers need the same version of Python on the same kind of machine,
and pyarrow and pandas, as for any Spark in Python; `--whole` packs these, too.
"""

from __future__ import annotations

import argparse
import re
import tarfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import datalattice

NAME: Final = "datalattice"
SPARK_NEEDS: Final = ("pandas", "pyarrow")

_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9._-]+)([^;]*)(?:;(.*))?")


def required(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return the distributions with these names and all that they require, by name.

    A requirement that is not installed is skipped: a condition, such as another platform, excludes
    it here.
    """
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for text in found[name].requires or ():
            requirement = _REQUIREMENT.match(text)
            assert requirement is not None
            if "extra" not in (requirement[3] or ""):
                waiting.append(requirement[1])
    return found


def package_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of this package, by their names in the archive."""
    folder = Path(datalattice.__file__).parent
    # Beside it: the library of its compiled modules, and the module that Spark looks for.
    beside = [*folder.parent.glob("*__mypyc.*.so"), *folder.parent.glob("pyspark_datalattice.py")]
    for path in [*folder.rglob("*"), *beside]:
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(folder.parent)), path


def distribution_files(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the importable files of a distribution, by their names in the archive."""
    for file in distribution.files or ():
        path = Path(str(file.locate()))
        outside = file.parts[0] == ".."  # such as the distribution's commands
        if not outside and "__pycache__" not in file.parts and path.is_file():
            yield str(file), path


def pack(archive: Path, *, whole: bool = False) -> list[str]:
    """Write the archive; return the names of the distributions in it.

    It is compressed unless its name ends with `.tar`. It gets its name when it is complete.
    """
    found = required([NAME, *SPARK_NEEDS] if whole else [NAME])
    files = dict(package_files())
    for name, distribution in found.items():
        if name != NAME:
            files |= dict(distribution_files(distribution))
    # A worker must never unpack half an archive.
    draft = archive.with_name(f".{archive.name}.draft")
    try:
        with _written(draft, compressed=not archive.name.endswith(".tar")) as tar:
            # Sorted, so that the order of files does not depend on the file system.
            for name in sorted(files):
                tar.add(files[name], name, recursive=False)
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)
    return sorted(found)


def _written(path: Path, *, compressed: bool) -> tarfile.TarFile:
    return tarfile.open(path, "w:gz", compresslevel=3) if compressed else tarfile.open(path, "w")


def main() -> None:
    """Pack, and print the contents of the archive."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archive", type=Path, help="the file to write: .tar.gz, .tgz or .tar")
    parser.add_argument("--whole", action="store_true", help="with pyarrow and pandas")
    options = parser.parse_args()
    if not options.archive.name.endswith((".tar.gz", ".tgz", ".tar")):
        parser.error("the name of the archive ends with .tar.gz, .tgz or .tar")
    names = pack(options.archive, whole=options.whole)
    print(f"{options.archive}: {options.archive.stat().st_size:,} bytes, {', '.join(names)}")


if __name__ == "__main__":
    main()
