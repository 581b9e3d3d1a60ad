"""Draws what a terminal shows as a still SVG: the text on standard input, with its colours, below a command.

How the picture of docs/index.md is made:

    script -qc "tfcollective run -np 2 python train.py" out
    sed -n '/the job failed/,/because of that/p' out |
        python tools/terminal_picture.py "tfcollective run -np 2 python train.py" >docs/images/failing-job.svg
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape

from rich.console import Console
from rich.text import Text

COLUMNS, SIZE, WIDE, HIGH, EDGE = 100, 14, 8.43, 20, 18
GROUND, PLAIN, PROMPT, RED = "#282d35", "#c9d1d9", "#a8cc8c", "#ff7b72"


def picture(command: str, output: str) -> str:
    """The SVG; lines of more than COLUMNS letters are continued as a terminal does it."""
    rows = [f'<tspan fill="{PROMPT}">$ </tspan>{escape(command)}', *_rows(output.replace("\r", ""))]
    width, height = COLUMNS * WIDE + 2 * EDGE, len(rows) * HIGH + 2 * EDGE
    lines = "\n".join(
        f'<text x="{EDGE}" y="{EDGE + HIGH * (number + 0.75):g}" xml:space="preserve">{row}</text>'
        for number, row in enumerate(rows)
    )
    font = f'font-family="ui-monospace,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="{SIZE}"'
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n'
        f'<rect width="100%" height="100%" rx="6" fill="{GROUND}"/>\n<g {font} fill="{PLAIN}">\n{lines}\n</g>\n</svg>\n'
    )


def _rows(output: str) -> Iterator[str]:
    console = Console(width=COLUMNS, file=sys.stderr)
    for line in output.rstrip("\n").split("\n"):
        text = Text.from_ansi(line)
        cuts = range(COLUMNS, len(text.plain), COLUMNS)
        for piece in text.divide(cuts):
            yield "".join(_span(segment.text, segment.style) for segment in piece.render(console))


def _span(text: str, style: object) -> str:
    bold, colour = getattr(style, "bold", None), getattr(style, "color", None)
    marks = (' font-weight="bold"' if bold else "") + (f' fill="{RED}"' if colour is not None else "")
    return f"<tspan{marks}>{escape(text)}</tspan>" if marks else escape(text)


if __name__ == "__main__":
    sys.stdout.write(picture(sys.argv[1], sys.stdin.read()))
