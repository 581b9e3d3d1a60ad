"""Measures checkouts side by side for docs/design/figures.md: tools/figures.py c5fde04=build/before now=.

Older checkouts have other folders, so what is measured is found by its name. "-": it does not exist there.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PRODUCT, C = "tfcollective launchers", ".cc .h .c"
RUNTIME = "tfcollective/runtime/__init__.py tfcollective/_runtime/__init__.py"
ENGINE = "native/executor/engine.h"
HELP = "import sys; from tfcollective.{} import main; sys.argv = ['', 'run', '{}']; main()"
NO_SUBJECT = (
    r"(What|Whether|How|Where|One|As|All|For|Those|While|Why|Its|Until|From|In|When|It|Which|Of|Who|No|Nothing|None)\s"
)
CLASSES = ("JobSpec", "AgentConfig", "ServerOptions", "NodeSettings", "Settings", "Timing")
# Lines of these places in which the pattern occurs, in files with these endings.
LINES = (
    ("lines of the package and its launchers", PRODUCT, "", ".py"),
    ("lines of the tests, Python and C++", "tests", "", f".py {C}"),
    ("lines of `native/`", "native", "", C),
    ("lines with `reset_limit`", PRODUCT, "reset_limit", ".py"),
    ("lines that read `.elastic`, `.bounds`, `.replaces`", PRODUCT, r"\.(elastic|_?bounds|replaces)\b(?! im)", ".py"),
    ("functions in `engine.h`", ENGINE, r"^  (?! |//|using|struct|class|std::f)[^(]*?\b(?!TFC_)\w+\(", ".h"),
    ("of these with GPUs in their name", ENGINE, r"^  (?! |//)[^(]*Gpu\w*\(", ".h"),
    ("functions of the runtime's `__init__`", RUNTIME, "^def ", ".py"),
    ("lines there that ask the session and do nothing else", RUNTIME, r"^    (return )?_current\(\)\.\w", ".py"),
    ("tests in Python", "tests", r"^\s*(async )?def test_", ".py"),
    ("of these with names of nine words and more", "tests", r"def test(_[^\W_]+){9}", ".py"),
    ("`SimpleNamespace(` in tests", "tests", r"SimpleNamespace\(", ".py"),
    ("`class Client` in tests", "tests", r"^\s*class Client\b", ".py"),
    ("lines of `Makefile` and what it includes", "Makefile tools", "", "Makefile .mk"),
    ("of these, targets with a help", "Makefile tools", r"^[\w/%-]+:.*##", "Makefile .mk"),
    ("lines of `CHANGELOG.md`", "CHANGELOG.md", "", ".md"),
    ("lines of `CONTRIBUTING.md`", "CONTRIBUTING.md", "", ".md"),
    ("of these, lines with a target of make", "CONTRIBUTING.md", r"make [a-z]|`test-", ".md"),
    ("lines of `docs/adr/`", "docs/adr", "", ".md"),
    ("lines of `docs/design/`", "docs/design", "", ".md"),
)


def sources(root: Path, places: str, endings: str) -> Iterator[Path]:
    """Yields the files of these places with one of these endings."""
    for start in map(root.joinpath, places.split()):
        for path in (start, *sorted(start.rglob("*"))):
            own = not {"build", ".venv", "__pycache__"} & set(path.relative_to(root).parts)
            if own and path.is_file() and path.name.endswith(tuple(endings.split())):
                yield path


def count(root: Path, places: str, pattern: str, endings: str) -> int:
    """Returns the number of lines in which the pattern occurs."""
    texts = (path.read_text(errors="replace") for path in sources(root, places, endings))
    return sum(bool(re.search(pattern, line)) for text in texts for line in text.splitlines())


@cache
def modules(root: Path) -> dict[str, ast.Module]:
    """Returns the modules of the package and its launchers by name."""
    paths = {".".join(path.relative_to(root).with_suffix("").parts): path for path in sources(root, PRODUCT, ".py")}
    names = {name.removesuffix(".__init__").removeprefix("launchers."): path for name, path in paths.items()}
    return {name: ast.parse(path.read_text()) for name, path in names.items()}


def imports(root: Path, folder: str) -> Mapping[str, set[str]]:
    """Returns which entry of a folder imports which others, also inside functions; which module, without a folder."""
    depth = folder.count(".") + 2 if folder else 99
    inside = [name for name in modules(root) if not folder or f"{name}.".startswith(f"{folder}.")]
    places = {name: ".".join(name.split(".")[:depth]) for name in inside}
    graph: dict[str, set[str]] = {place: set() for place in places.values()}
    for name, place in places.items():
        for node in ast.walk(modules(root)[name]):
            if isinstance(node, ast.Import | ast.ImportFrom):
                source = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                ends = [source + alias.name for alias in node.names]
                graph[place] |= {places.get(end if end in modules(root) else source[:-1], place) for end in ends}
    return {place: ends - {place} for place, ends in graph.items()}


def circles(graph: Mapping[str, set[str]]) -> int:
    """Returns how many sets of nodes reach each other (Warshall, Journal of the ACM, 1962)."""
    reached = {node: set(ends) for node, ends in graph.items()}
    for middle in graph:
        for node in graph:
            reached[node] |= reached[middle] if middle in reached[node] else set()
    return len({frozenset(end for end in reached[node] if node in reached[end]) for node in graph} - {frozenset()})


def fields(root: Path, name: str) -> int | str:
    """Returns the number of fields of a dataclass and its bases."""
    nodes = (node for module in modules(root).values() for node in ast.walk(module))
    found = next((node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name), None)
    if found is None:
        return "-"
    bases = (fields(root, base.id) for base in found.bases if isinstance(base, ast.Name))
    return sum(isinstance(entry, ast.AnnAssign) for entry in found.body) + sum(n for n in bases if isinstance(n, int))


def docstrings(root: Path, first: str) -> int:
    """Returns how many functions have a docstring that begins so."""
    nodes = (node for module in modules(root).values() for node in ast.walk(module))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return sum(bool((text := ast.get_docstring(node)) and re.match(first, text)) for node in functions)


def help_of_run(root: Path, option: str) -> list[str]:
    """Returns what ``tfcollective run`` prints with this option."""
    program = HELP.format("_cli" if (root / "tfcollective/_cli").is_dir() else "cli", option)
    environ = {**os.environ, "PYTHONPATH": f"{root}:{root / 'launchers'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", program], cwd="/", env=environ, capture_output=True, check=False)
    return done.stdout.decode().splitlines()


def rows(root: Path) -> Iterator[tuple[str, object]]:
    """Yields what is measured and its value."""
    yield from ((what, count(root, *how)) for what, *how in LINES)
    rooms = "|".join(part[1:] for name in modules(root) for part in name.split(".") if part.startswith("_"))
    private = rf"^\s*from tfc\S+ import .*\b_(?!_|({rooms})\b)"
    yield "imports of private functions and classes in tests", count(root, "tests", private, ".py")
    for name in ("tfcollective", "control", "launch", "runtime"):
        folder = f"tfcollective.{'_' * (root / f'tfcollective/_{name}').is_dir()}{name}".replace(
            "tfcollective.tfc", "tfc"
        )
        graph = imports(root, folder)
        size = len(graph), sum(map(len, graph.values())), circles(graph)
        yield f"`{name}/`: entries, arrows, circles", "{}, {}, {}".format(*size)
    yield "circles of modules", circles(imports(root, ""))
    yield from ((f"fields of `{name}` and its bases", fields(root, name)) for name in CLASSES)
    for option in ("--help", "--help-all"):
        text = help_of_run(root, option)
        shown = sum(bool(re.match(r"  +-", line)) for line in text)
        yield f"`run {option}`: lines, options", f"{len(text)}, {shown}" if text else "-"
    yield "docstrings of functions", docstrings(root, "")
    yield "of these without a subject (What, Whether, How ...)", docstrings(root, NO_SUBJECT)
    yield "of these that begin with `See`", docstrings(root, "See :")


def main() -> None:
    """Prints a column for each NAME=FOLDER."""
    names, folders = zip(*(argument.split("=") for argument in sys.argv[1:]), strict=True)
    columns = [rows(Path(folder).resolve()) for folder in folders]
    print("| what |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    for row in zip(*columns, strict=True):
        print("|", row[0][0], "|", " | ".join(str(value) for _, value in row), "|")


if __name__ == "__main__":
    main()
