"""Prints the requirements of the named groups of pyproject.toml, one a line, for `pip install -r`.

A group is "build" (what builds the wheel), "run" (what it needs), a dependency group or the name of an extra. The two
pyproject.toml, of tfcollective and of its benchmarks, are the only places where requirements stand. For a distribution
of this repository, which no package index needs to have, what it requires is printed instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"tfcollective": ROOT, "tfcollective-bench": ROOT / "benchmarks"}  # by distribution


def requirements(document: dict[str, Any], group: str) -> Iterator[str]:
    """Yields the requirements of one group; an extra may name others as ``tfcollective[one,other]``."""
    project = document["project"]
    if group == "build":
        yield from document["build-system"]["requires"]
    elif group == "run":
        yield from project["dependencies"]
    elif group in document.get("dependency-groups", {}):
        yield from document["dependency-groups"][group]
    elif group in project["optional-dependencies"]:
        for requirement in project["optional-dependencies"][group]:
            if requirement.startswith("tfcollective["):
                for other in requirement[len("tfcollective[") : -1].split(","):
                    yield from requirements(document, other.strip())
            elif requirement in FOLDERS:
                yield from (need for need in requirements(_document(requirement), "run") if need not in FOLDERS)
            else:
                yield requirement
    else:
        raise SystemExit(f"pyproject.toml has no extra '{group}'")


def _document(distribution: str) -> dict[str, Any]:
    return tomllib.loads((FOLDERS[distribution] / "pyproject.toml").read_text(encoding="utf-8"))


def main(groups: list[str]) -> None:
    """Prints the requirements of all groups."""
    document = _document("tfcollective")
    for group in groups:
        for requirement in requirements(document, group):
            print(requirement)


if __name__ == "__main__":
    main(sys.argv[1:])
