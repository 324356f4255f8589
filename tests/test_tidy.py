"""Rules about the text of the repository that no other tool checks."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from datalattice.cli.main import COMMANDS

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]  # some read all of the code

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "datalattice"

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

SOURCED = ("cells", "lattice", "apps", "wire")
"""Packages that decide bytes or behaviour others rely on: their public names say by which rule."""

PROTOCOL_OBJECTS = {
    "node/connection.py": ("Connection",),
    "node/hosts.py": ("Host", "Hosts"),
    "node/lanes.py": ("Lane", "LanePool"),
    "node/network.py": ("Network",),
    "node/peers.py": ("Peers",),
    "sync/conversation.py": ("Conversation",),
    "sync/lattice/charging.py": ("Charges",),
    "sync/lattice/conversation.py": ("LatticeConversation",),
    "sync/lattice/hosting.py": ("Hosting",),
    "sync/lattice/intake.py": ("Intake",),
    "sync/lattice/peerviews.py": ("Views",),
    "sync/lattice/policy.py": ("OwnerRules",),
    "sync/lattice/quotas.py": ("Quotas",),
    "sync/lattice/replica.py": ("LatticeReplica",),
    "sync/partner.py": ("Partner",),
    "sync/pulls.py": ("Pulls",),
    "sync/replica.py": ("Comparison", "Replica"),
    "sync/replicator.py": ("Replicator",),
    "sync/wants.py": ("WantList",),
    "wire/mux.py": ("Mux",),
    "wire/streams.py": ("SingleStream",),
}
"""What a message passes on its way between a link and the storage."""

PROTOCOL_METHODS_MAX = 10
"""Public methods of a protocol object; properties are not counted."""

ENTRY_MODULES = frozenset(
    {
        "cli/__main__.py",
        "testing/sim/__main__.py",
        "__main__.py",
        "service/venue/adapters/python_worker.py",
    }
)
"""Modules that Python itself runs, so that none of ours imports them."""

# Put together from parts, so that this file passes its own rules.
BANNED_WORDS = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK", "WI" + "P"]) + r")\b"
    r"|NotImplemented" + r"Error"
    r"|pragma: no " + r"cover"
)
MACHINE_PATHS = re.compile(r"(?<![\w.$}~-])/(" + "work|root|tmp|home|Users" + r")/[\w.]")
INDEX_ADDRESSES = re.compile(r"--(extra-)?index" + r"-url|pypi\." + r"org|pythonhosted\." + "org")

DOCUMENT = re.compile(r"(?<![\w/.-])docs/[\w./-]+\.md\b")
QUOTE = re.compile(r'"([^"]{8,})"\s*\((docs/[\w/.-]+\.md)[^)]*\)')
SECTIONS = re.compile(r'(?: "[^"]+",?)*')
SECTION = re.compile(r'"([^"]+)"')
LINK = re.compile(r"\]\(([^()#:\s]+\.md)(?:#[\w-]+)?\)")
ELSEWHERE = re.compile(r"\bspec/[\w-]+\.md|\bdecisions? D-?[A-Z0-9]")
"""References to texts that this repository does not have, or does not name."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def source_modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def python_files() -> list[Path]:
    found = [ROOT / "setup.py"]
    for folder in ("src", "tests", "bench", "examples"):
        found += (ROOT / folder).rglob("*.py")
    return sorted(found)


def text_files() -> list[Path]:
    """Return every text file people write here; test data is not among them.

    Neither is `.git`, which is a file in a worktree.
    """
    others = {"LICENSE", ".git"}
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name not in others]
    found.append(ROOT / ".ci" / "run")
    for folder in ("src", "tests", "bench", "examples", "docs", "changelog.d"):
        found += (ROOT / folder).rglob("*")
    suffixes = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".typed", ""}
    return sorted(
        path
        for path in found
        if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts
    )


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=name_of(path))


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def length_without_docstring(node: Function) -> int:
    """Return the lines from `def` to the end; words about the function are free."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        words = node.body[0]
        lines -= (words.end_lineno or words.lineno) - words.lineno + 1
    return lines


def exported_names(package_file: Path) -> set[str]:
    """Return the names that a package file takes from modules: what the package offers."""
    if not package_file.is_file():
        return set()
    return {
        alias.asname or alias.name
        for node in parse(package_file).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def public_methods(node: ast.ClassDef) -> list[Function]:
    """Return the public methods of a class, without properties and their setters."""
    return [
        inner
        for inner in node.body
        if isinstance(inner, Function)
        and not inner.name.startswith("_")
        and not any(
            ast.unparse(mark).endswith(("property", ".setter")) for mark in inner.decorator_list
        )
    ]


def public_callables(tree: ast.Module, exported: set[str]) -> Iterator[tuple[str, Definition, str]]:
    """Yield exported functions, classes and methods, each with all docstrings that speak for it.

    A class is spoken for by its methods too. Records (classes without public methods) decide
    nothing, and properties are plain answers: neither is asked.
    """
    module_words = ast.get_docstring(tree) or ""
    for node in tree.body:
        if not isinstance(node, Definition) or node.name not in exported:
            continue
        words = module_words + "\n" + (ast.get_docstring(node) or "")
        if isinstance(node, Function):
            yield node.name, node, words
            continue
        methods = public_methods(node)
        if methods:
            yield (
                node.name,
                node,
                "\n".join([words, *(ast.get_docstring(m) or "" for m in methods)]),
            )
        for method in methods:
            yield (
                f"{node.name}.{method.name}",
                method,
                words + "\n" + (ast.get_docstring(method) or ""),
            )


def has_source(words: str) -> bool:
    """Return whether docstrings have a line `Source: ...` that names something."""
    return bool(re.search(r"^\s*Source:\s*\S", words, re.MULTILINE))


@functools.cache
def names_of_modules(package: str) -> frozenset[str]:
    """Return what a package offers under the name of the module that it comes from."""
    path = PACKAGE.joinpath(*package.split(".")[1:], "__init__.py")
    if not package.startswith("datalattice.") or not path.is_file():
        return frozenset()
    return frozenset(
        alias.name
        for node in parse(path).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module == f"{package}.{alias.name}"
    )


def imported_modules(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each module of ours that an import statement can mean, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module, node.lineno
            namesakes = names_of_modules(node.module)
            for alias in node.names:
                if alias.name not in namesakes:
                    yield f"{node.module}.{alias.name}", node.lineno


def module_path(dotted: str) -> Path | None:
    """Return the file of one of our modules (not of a package), None for anything else."""
    if not dotted.startswith("datalattice."):
        return None
    path = PACKAGE.joinpath(*dotted.split(".")[1:]).with_suffix(".py")
    return path if path.is_file() else None


def fail_with(faults: list[str]) -> None:
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_modules_are_short_or_say_why() -> None:
    faults = []
    for path in source_modules():
        lines = path.read_text(encoding="utf-8").count("\n")
        words = ast.get_docstring(parse(path)) or ""
        if lines > MODULE_LINES_MAX and not re.search(r"^Length: \S", words, re.MULTILINE):
            faults.append(
                f"{name_of(path)}: {lines} lines, {MODULE_LINES_MAX} at most unless its docstring "
                "has a line `Length: why`"
            )
    fail_with(faults)


def test_functions_are_short() -> None:
    faults = []
    for path in python_files():
        for node in functions(parse(path)):
            lines = length_without_docstring(node)
            if lines > FUNCTION_LINES_MAX:
                faults.append(
                    f"{name_of(path)}:{node.lineno}: {node.name} has {lines} lines without its "
                    f"docstring, {FUNCTION_LINES_MAX} at most"
                )
    fail_with(faults)


def test_modules_begin_with_a_docstring() -> None:
    fail_with(
        [f"{name_of(p)}: no docstring" for p in python_files() if not ast.get_docstring(parse(p))]
    )


def test_public_names_of_format_packages_name_their_source() -> None:
    """In its own docstring, its class's or its module's; a class may have it in a method."""
    faults = []
    for package in SOURCED:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            exported = exported_names(path.parent / "__init__.py")
            for name, node, words in public_callables(parse(path), exported):
                if not has_source(words):
                    faults.append(f"{name_of(path)}:{node.lineno}: {name} has no `Source:` line")
    fail_with(faults)


def test_no_leftovers() -> None:
    faults = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = BANNED_WORDS.search(line)
            if found:
                faults.append(f"{name_of(path)}:{number}: {found.group()!r} is not allowed")
    fail_with(faults)


def test_no_paths_of_one_machine_and_no_index_addresses() -> None:
    faults = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = MACHINE_PATHS.search(line) or INDEX_ADDRESSES.search(line)
            if found:
                faults.append(f"{name_of(path)}:{number}: {found.group()!r} ties to one machine")
    fail_with(faults)


def test_tests_of_one_process_wait_for_events_and_never_sleep() -> None:
    faults = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.parent.name in {"integration", "scripts"}:
            continue  # these look at other processes again and again, and kill at any moment
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called == "sleep" and not is_zero(node.args):
                faults.append(f"{name_of(path)}:{node.lineno}: wait for the event itself")
    fail_with(faults)


def is_zero(arguments: list[ast.expr]) -> bool:
    """Return whether these are the arguments of `asyncio.sleep(0)`, which only gives way."""
    return [getattr(argument, "value", None) for argument in arguments] == [0]


def test_packages_are_imported_by_their_name_not_by_their_modules() -> None:
    faults = []
    for path in source_modules():
        own_package = path.relative_to(PACKAGE).parts[0]
        for dotted, line in imported_modules(parse(path)):
            target = module_path(dotted)
            if target is None or target.parent == PACKAGE:
                continue
            if target.relative_to(PACKAGE).parts[0] != own_package:
                faults.append(f"{name_of(path)}:{line}: import from the package, not {dotted}")
    fail_with(faults)


def test_each_class_name_occurs_once() -> None:
    """Private names, too: a reader who searches for one finds one class."""
    found: dict[str, list[str]] = {}
    for path in source_modules():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    fail_with([f"class {name}: {', '.join(at)}" for name, at in found.items() if len(at) > 1])


def test_every_module_is_used() -> None:
    used = {
        module_path(dotted)
        for path in [*source_modules(), *(ROOT / "tests").rglob("*.py")]
        for dotted, _ in imported_modules(parse(path))
    }
    used |= {module_path(f"datalattice.cli.{module}") for module, _ in COMMANDS.values()}
    fail_with(
        [
            f"{name_of(path)}: nothing imports it"
            for path in source_modules()
            if path.name != "__init__.py"
            and path not in used
            and path.relative_to(PACKAGE).as_posix() not in ENTRY_MODULES
        ]
    )


def test_every_unit_test_file_mirrors_a_package() -> None:
    fail_with(
        [
            f"{name_of(path)}: there is no package {path.name!r} in the product"
            for path in sorted((ROOT / "tests" / "unit").glob("*"))
            if path.is_dir() and path.name != "__pycache__" and not (PACKAGE / path.name).is_dir()
        ]
    )


@functools.cache
def headings(page: Path) -> set[str]:
    """Return the headings of a page, each in full and as its name in front of a colon."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    return {name for heading in found for name in (heading, heading.partition(":")[0])}


def mentioned_sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each page that a text mentions, with the sections quoted right after it.

    A mention may be broken over lines, of a docstring or of a comment.
    """
    flat = re.sub(r"\s*\n\s*(?:# )?", " ", text)
    for found in DOCUMENT.finditer(flat):
        sections = SECTIONS.match(flat, found.end())
        yield found.group(), SECTION.findall(sections.group()) if sections else []


def test_documents_that_are_mentioned_exist_with_their_sections() -> None:
    faults = []
    for path in text_files():
        for page, sections in mentioned_sections(path.read_text(encoding="utf-8")):
            if not (ROOT / page).is_file():
                faults.append(f"{name_of(path)}: there is no page {page}")
                continue
            faults += [
                f"{name_of(path)}: {page} has no section {section!r}"
                for section in sections
                if section not in headings(ROOT / page)
            ]
    fail_with(faults)


def quoted_pages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each quote of a module's comments that names its page in brackets."""
    comments = re.findall(r"(?:^[ ]*# .*\n)+", path.read_text(encoding="utf-8"), re.MULTILINE)
    for comment in comments:
        yield from QUOTE.findall(re.sub(r"\s*\n\s*# |^\s*# ", " ", comment))


def plain_words(text: str) -> str:
    """Return a text without marks of code; the cells of a table's row stand with colons."""
    text = re.sub(r" \| ", ": ", re.sub(r"[`*]", "", text))
    return re.sub(r"\s+", " ", text).strip(" |.,;:").lower()


def test_comments_that_quote_a_page_quote_what_it_says() -> None:
    """A part left out is shown as `...`."""
    pages = {
        name_of(page): plain_words(page.read_text("utf-8"))
        for page in (ROOT / "docs").rglob("*.md")
    }
    fail_with(
        [
            f"{name_of(path)}: {page} does not say {part.strip()!r}"
            for path in source_modules()
            for quote, page in quoted_pages(path)
            for part in quote.split("...")
            if plain_words(part) not in pages.get(page, "")
        ]
    )


def test_links_between_documents_lead_somewhere() -> None:
    faults = []
    for path in text_files():
        if path.suffix == ".md":
            faults += [
                f"{name_of(path)}: there is no page {target}"
                for target in LINK.findall(path.read_text(encoding="utf-8"))
                if not (path.parent / target).is_file()
            ]
    fail_with(faults)


def test_every_document_is_linked() -> None:
    pages = {path.resolve() for path in (ROOT / "docs").rglob("*.md")}
    linked = {
        (path.parent / target).resolve()
        for path in text_files()
        if path.suffix == ".md"
        for target in LINK.findall(path.read_text(encoding="utf-8"))
    }
    fail_with([f"{name_of(page)}: nothing links to it" for page in sorted(pages - linked)])


def test_protocol_objects_have_few_methods() -> None:
    """An interface that can be kept in mind (docs/design/conversation.md)."""
    faults = []
    for name, classes in PROTOCOL_OBJECTS.items():
        found = {
            node.name: node for node in parse(PACKAGE / name).body if isinstance(node, ast.ClassDef)
        }
        for each in classes:
            count = len(public_methods(found[each]))
            if count > PROTOCOL_METHODS_MAX:
                faults.append(f"{name}: {each} has {count} methods, {PROTOCOL_METHODS_MAX} at most")
    fail_with(faults)


def test_pages_begin_with_what_the_reader_can_do_after_them() -> None:
    """Design notes apart: they are read for their reasons."""
    opening = re.compile(r"# .+\n\nAfter this page you (can|know) [^.]+\.")
    fail_with(
        [
            f"{name_of(page)}: begin with one sentence `After this page you can ...` (or `know`)"
            for page in sorted((ROOT / "docs").rglob("*.md"))
            if page.parent.name != "design" and not opening.match(page.read_text(encoding="utf-8"))
        ]
    )


def test_no_references_to_texts_that_are_not_here() -> None:
    faults = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = ELSEWHERE.search(line)
            if found and path != Path(__file__).resolve():
                faults.append(f"{name_of(path)}:{number}: {found.group()!r} is nowhere here")
    fail_with(faults)


def test_sources_name_a_page() -> None:
    """A line `Source: ...` without a page leads a reader of the repository nowhere."""
    faults = []
    for package in SOURCED:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for found in re.finditer(r"^( *)Source: (.*(?:\n\1 {2,}\S.*)*)", text, re.MULTILINE):
                if not DOCUMENT.search(found.group(2)):
                    line = text.count("\n", 0, found.start()) + 1
                    faults.append(f"{name_of(path)}:{line}: name a page of docs")
    fail_with(faults)
