"""A report's files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from tfcollective._base.codec import decode, to_document
from tfcollective._base.errors import ConfigError
from tfcollective.files import written_whole
from tfcollective_bench.model import Report
from tfcollective_bench.report.page import Section, render_page

__all__ = ["load_report", "make_directory", "write_json", "write_report"]


def write_json(report: Report, path: Path) -> None:
    """Writes the report with every sample; :func:`load_report` reads it."""
    _write(path, json.dumps(to_document(report), indent=1).encode("utf-8"))


def load_report(path: Path) -> Report:
    """The report in a JSON file; ConfigError that names the file when it is missing or is not a report."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the report {path}: {error.strerror}") from error
    return decode(text, Report, f"the report {path}")


def make_directory(directory: Path) -> None:
    """Makes the directory of a report, with those above it; ConfigError when that cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: cannot make the directory {directory}: {error.strerror}") from error
    if not os.access(directory, os.W_OK):
        raise ConfigError(f"--out: no permission to write into {directory}: choose another directory")


def write_report(report: Report, sections: Sequence[Section], directory: Path, stem: str) -> list[Path]:
    """Writes ``STEM.json``, ``STEM.html`` and a PNG for every plot into `directory`, which is made if need be.

    Returns:
        The paths, JSON and HTML first.

    Raises:
        ConfigError: the directory cannot be written.
    """
    make_directory(directory)
    paths = [directory / f"{stem}.json", directory / f"{stem}.html"]
    write_json(report, paths[0])
    _write(paths[1], render_page(report, sections).encode("utf-8"))
    for plot in (plot for section in sections for plot in section.plots):
        paths.append(directory / f"{stem}-{plot.name}.png")
        _write(paths[-1], plot.png)
    return paths


def _write(path: Path, data: bytes) -> None:
    try:
        with written_whole(path) as partial:  # what was measured before stays when this cannot be written
            partial.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
