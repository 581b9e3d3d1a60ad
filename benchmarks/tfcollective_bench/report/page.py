"""Writes a report as a self-contained HTML file: no script, no font, no network."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from tfcollective_bench.model import Report
from tfcollective_bench.report.plots import Plot
from tfcollective_bench.report.table import Table, table_to_html

__all__ = ["Section", "render_page"]

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 2rem auto; max-width: 68rem;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .88rem; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e3e3e3; text-align: left; vertical-align: top; }
th { background: #f5f5f5; } th.number, td.number { text-align: right; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.pass { color: #00703c; font-weight: 600; } td.miss { color: #b3001b; font-weight: 700; } td.none { color: #767676; }
figure { margin: 1rem 0; display: inline-block; max-width: 100%; } figure img { max-width: 100%; height: auto; }
pre { background: #f5f5f5; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.note, .small { color: #555; font-size: .85rem; }
"""


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, a text, tables, plots."""

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()


def render_page(report: Report, sections: Sequence[Section]) -> str:
    """The whole page."""
    body = "\n".join(
        [
            f"<h1>{escape(report.title)}</h1>",
            f'<p class="small">{_when(report)}</p>',
            f"<pre>{escape(shlex.join(report.command))}</pre>",
            *(_section(section) for section in sections),
            _section(Section("Where and with what", tables=_circumstances(report))),
            "<h2>Settings</h2>",
            f"<pre>{escape(json.dumps(report.settings, indent=2, sort_keys=True))}</pre>",
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _when(report: Report) -> str:
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.started))
    return f"{started}, took {report.finished - report.started:.0f} s"


def _section(section: Section) -> str:
    text = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in section.text.split("\n\n") if paragraph)
    # A table that is called like its section needs no heading of its own.
    tables = "".join(
        table_to_html(replace(table, title="") if table.title == section.title else table) for table in section.tables
    )
    plots = "".join(
        f'<figure><img src="{plot.svg_uri()}" alt="{escape(plot.title, quote=True)}"></figure>'
        for plot in section.plots
    )
    return f"<h2>{escape(section.title)}</h2>{text}{tables}{plots}"


def _circumstances(report: Report) -> tuple[Table, ...]:
    hardware = report.hardware
    caches = ", ".join(f"{level} {size >> 10} KiB" for level, size in hardware.caches.items())
    machine = (
        ("processor", hardware.cpu),
        ("cores", f"{hardware.cores}, usable: {hardware.usable_cores}"),
        ("caches", caches),
        ("memory", f"{hardware.memory / (1 << 30):.1f} GiB"),
        ("kernel", hardware.kernel),
        ("load at the start (1, 5, 15 min)", ", ".join(f"{value:.2f}" for value in hardware.load)),
    )
    runners = tuple((entry.runner, entry.state.value, entry.detail) for entry in report.statuses)
    return (
        Table("Runners", ("runner", "state", "detail"), runners),
        Table("Machine", ("what", "value"), machine, note=" ".join(report.notes)),
        Table("Versions", ("what", "version"), tuple(sorted(report.versions.packages.items()))),
    )
