"""Prints what came of the tests with one TensorFlow, as a row of the table of `make test-tensorflows`.

Run by the Python of that environment, with the results that ``pytest --junitxml`` has written.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree


def row(results: Path) -> str:
    """Versions, counts and seconds; where pytest has written no results, that is said."""
    keras = ("tf_keras",) if os.environ.get("TF_USE_LEGACY_KERAS") else ("keras", "keras-nightly")
    versions = [_version("tensorflow-cpu", "tf-nightly"), _version(*keras), platform.python_version()]
    return "| " + " | ".join([*versions, *(_outcome(results) if results.exists() else ("pytest was ended", ""))]) + " |"


def _outcome(results: Path) -> tuple[str, str]:
    suites = ElementTree.parse(results).getroot().findall("testsuite")  # noqa: S314 - written by our own tests
    tests, failed, broken, skipped = (
        sum(int(suite.attrib[name]) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    passed = tests - failed - broken - skipped
    seconds = sum(float(suite.attrib["time"]) for suite in suites)
    return f"{passed} passed, {failed + broken} failed, {skipped} skipped", f"{seconds:.0f}"


def _version(*packages: str) -> str:
    """Of the first of them that is installed."""
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "none"


if __name__ == "__main__":
    print(row(Path(sys.argv[1])))
