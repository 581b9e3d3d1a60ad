"""A table that a terminal and a page can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

__all__ = ["AIMED", "MISS", "NOT_MEASURED", "PASS", "Table", "print_table", "table_to_html", "table_to_markdown"]

PASS = "pass"  # noqa: S105  a verdict
AIMED = "pass, aim reached"
MISS = "MISS"
NOT_MEASURED = "not measured"
_LEAST_TEXT = 18  # letters of a line that can still be read
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
    """Shows the table in a terminal: row by row where it is too narrow for all columns; whole lines where the output is
    no terminal."""
    from rich.console import Console

    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, _FILE_WIDTH)
    if console.is_terminal and _squeezed(table, console.width):
        _print_rows(table, console)
    else:
        console.print(_grid(table))


def _grid(table: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=table.title, title_justify="left", caption=table.note or None, caption_justify="left")
    for column in table.columns:
        number = column in table.numbers
        shown.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in table.rows:
        shown.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return shown


def _squeezed(table: Table, width: int) -> bool:
    """True if text would be cut into lines of a few letters: numbers keep their width, text gets what is left."""
    widths = [max(len(cell) for cell in column) for column in zip(table.columns, *table.rows, strict=True)]
    texts = [size for name, size in zip(table.columns, widths, strict=True) if name not in table.numbers]
    fixed = sum(widths) - sum(texts) + 3 * len(widths) + 1
    wanted = sum(min(size, _LEAST_TEXT) for size in texts)
    return width < fixed + wanted


def _print_rows(table: Table, console: Console) -> None:
    """Prints every row as a heading, its first cells that are no numbers, and a line for each other cell."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text(table.title, style="italic"))
    heads = [place for place, name in enumerate(table.columns[:2]) if place == 0 or name not in table.numbers]
    for row in table.rows:
        console.print(Text(", ".join(row[place] for place in heads), style="bold"))
        for place, (name, cell) in enumerate(zip(table.columns, row, strict=True)):
            if place not in heads and cell not in ("", "-"):
                label = Text(f"{name}: " if name else "")
                console.print(Padding(label.append(cell, style=_STYLES.get(cell, "")), (0, 0, 0, 2)))
    if table.note:
        console.print(Text(table.note, style="dim italic"))


def table_to_html(table: Table) -> str:
    """The table as HTML."""
    head = "".join(_heading(table, column) for column in table.columns)
    body = "\n".join(f"<tr>{_cells(table, row)}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    return f"{title}<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>{note}"


def _heading(table: Table, column: str) -> str:
    kind = ' class="number"' if column in table.numbers else ""
    return f"<th{kind}>{escape(column)}</th>"


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
