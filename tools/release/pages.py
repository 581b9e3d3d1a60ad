"""Puts the documentation sites of several releases next to each other, so that a reader can choose a version.

python tools/release/pages.py build/sites build/pages

The first folder holds what `make docs` has built for each release, as tfcollective-site-VERSION.tar.gz. The second is
made anew: a folder for each version, versions.json, from which the header of every page makes its list of versions, and
an index.html that leads to the newest one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

_ARCHIVE = re.compile(r"tfcollective-site-(\d+\.\d+\.\d+)\.tar\.gz")
_INDEX = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={version}/index.html">
<title>tfcollective</title>
<a href="{version}/index.html">tfcollective {version}</a>
"""


def assemble(archives: Path, out: Path) -> list[str]:
    """Unpacks all archives, and returns their versions, the newest first; SystemExit if a name is not as above."""
    found: dict[str, Path] = {}
    for path in archives.iterdir():
        match = _ARCHIVE.fullmatch(path.name)
        if match is None:
            raise SystemExit(f"error: expected tfcollective-site-X.Y.Z.tar.gz in {archives}, got {path.name}")
        found[match[1]] = path
    if not found:
        raise SystemExit(f"error: there is no tfcollective-site-X.Y.Z.tar.gz in {archives}")
    shutil.rmtree(out, ignore_errors=True)
    for version, path in found.items():
        with tarfile.open(path) as archive:
            archive.extractall(out / version, filter="data")
    versions = sorted(found, key=_numbers, reverse=True)
    listed = [{"version": version, "title": version, "aliases": []} for version in versions]
    listed[0]["aliases"] = ["latest"]
    (out / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    (out / "index.html").write_text(_INDEX.format(version=versions[0]), encoding="utf-8")
    return versions


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def main(arguments: Sequence[str]) -> None:
    """Assembles, and says which versions there are."""
    archives, out = map(Path, arguments)
    print("versions:", *assemble(archives, out))


if __name__ == "__main__":
    main(sys.argv[1:])
