"""Prints the requirements of the named groups of pyproject.toml, one a line, for `pip install -r`.

A group is "build" (what builds the wheel), "run" (what it needs) or the name of an extra. pyproject.toml is the only
place where requirements stand.
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

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(document: dict[str, Any], group: str) -> Iterator[str]:
    """Yields the requirements of one group; an extra may name others as ``tfcollective[one,other]``."""
    project = document["project"]
    if group == "build":
        yield from document["build-system"]["requires"]
    elif group == "run":
        yield from project["dependencies"]
    elif group in project["optional-dependencies"]:
        for requirement in project["optional-dependencies"][group]:
            if requirement.startswith("tfcollective["):
                for other in requirement[len("tfcollective[") : -1].split(","):
                    yield from requirements(document, other.strip())
            else:
                yield requirement
    else:
        raise SystemExit(f"pyproject.toml has no extra '{group}'")


def main(groups: list[str]) -> None:
    """Prints the requirements of all groups."""
    document = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    for group in groups:
        for requirement in requirements(document, group):
            print(requirement)


if __name__ == "__main__":
    main(sys.argv[1:])
