"""A table that a terminal and a page can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["AIMED", "MISS", "NOT_MEASURED", "PASS", "Table", "print_table", "table_to_html", "table_to_markdown"]

PASS = "pass"  # noqa: S105  a verdict
AIMED = "pass, aim reached"
MISS = "MISS"
NOT_MEASURED = "not measured"
_FILE_WIDTH = 160  # where lines may be as long as they need
_STYLES: Mapping[str, str] = {PASS: "green", AIMED: "bold green", MISS: "bold red", NOT_MEASURED: "dim"}
_CLASSES: Mapping[str, str] = {PASS: "pass", AIMED: "pass", MISS: "miss", NOT_MEASURED: "none"}


@dataclass(frozen=True)
class Table:
    """Rows of text. Cells that are a verdict (PASS, AIMED, MISS, NOT_MEASURED) are shown in its colour; columns whose
    name is in `numbers` are right-aligned. `note` stands below the table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()
    note: str = ""


def print_table(table: Table, console: Console | None = None) -> None:
    """Shows the table in a terminal; whole lines also where the output is no terminal."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=table.title, title_justify="left", caption=table.note or None, caption_justify="left")
    for column in table.columns:
        number = column in table.numbers
        shown.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in table.rows:
        shown.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, _FILE_WIDTH)
    console.print(shown)


def table_to_html(table: Table) -> str:
    """The table as HTML."""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "\n".join(f"<tr>{_cells(table, row)}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    return f"{title}<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>{note}"


def _cells(table: Table, row: tuple[str, ...]) -> str:
    cells = []
    for column, cell in zip(table.columns, row, strict=True):
        kind = _CLASSES.get(cell, "number" if column in table.numbers else "")
        cells.append(f'<td class="{kind}">{escape(cell)}</td>' if kind else f"<td>{escape(cell)}</td>")
    return "".join(cells)


def table_to_markdown(table: Table) -> str:
    """The table for the documentation."""
    lines = [f"| {' | '.join(table.columns)} |"]
    lines.append("|" + "|".join("---:" if column in table.numbers else "---" for column in table.columns) + "|")
    lines.extend("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table.rows)
    return "\n".join([*lines, "", table.note] if table.note else lines) + "\n"
