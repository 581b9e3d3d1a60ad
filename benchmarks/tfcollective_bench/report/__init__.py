"""A benchmark's results for people and programs: JSON, one HTML file with its plots inside, PNGs, tables."""

from __future__ import annotations

from tfcollective_bench.report.page import Section, render_page
from tfcollective_bench.report.plots import Bars, Plot, Series, draw_bars, draw_lines, plots_available
from tfcollective_bench.report.table import Table, print_table
from tfcollective_bench.report.writer import load_report, make_directory, write_json, write_report

__all__ = [
    "Bars",
    "Plot",
    "Section",
    "Series",
    "Table",
    "draw_bars",
    "draw_lines",
    "load_report",
    "make_directory",
    "plots_available",
    "print_table",
    "render_page",
    "write_json",
    "write_report",
]
