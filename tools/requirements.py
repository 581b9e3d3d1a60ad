"""Prints requirements of pyproject.toml, the only place where they stand, one a line, for `pip install -r`.

Arguments: "build" (what builds the wheel), "run" (what it needs), dependency groups, extras.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(document: dict[str, Any], name: str) -> Iterator[str]:
    """Yields what one name stands for; groups and extras may include others."""
    project = document["project"]
    lists = {"build": document["build-system"]["requires"], "run": project["dependencies"]}
    lists |= document["dependency-groups"] | project["optional-dependencies"]
    if name not in lists:
        raise SystemExit(f"error: pyproject.toml has no dependency group and no extra '{name}'")
    for entry in lists[name]:
        if isinstance(entry, dict):
            yield from requirements(document, entry["include-group"])
        elif extras := re.fullmatch(r"tfcollective\[(.*)\]", entry):
            for extra in extras[1].split(","):
                yield from requirements(document, extra.strip())
        else:
            yield entry


if __name__ == "__main__":
    whole = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    for argument in sys.argv[1:]:
        print("\n".join(requirements(whole, argument)))
