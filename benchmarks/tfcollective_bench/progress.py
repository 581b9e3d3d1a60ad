"""Shows how far a benchmark is, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tfcollective_bench.interleave import Event, Failure, Started

__all__ = ["show_progress"]


@contextmanager
def show_progress(turns: int, console: Console | None = None) -> Iterator[Callable[[Event], None]]:
    """Yields a function that takes events, and shows progress while it is open; `turns` is variants x rounds.

    In a terminal there is a bar; elsewhere, a line for every turn. Failures are always shown.
    """
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=turns, completed=-1)

        def take(event: Event) -> None:
            if isinstance(event, Started):
                text = f"round {event.round + 1}: {event.variant}"
                progress.update(task, advance=1, description=escape(text))
                if not console.is_terminal:
                    console.print(text, highlight=False, markup=False)
            elif isinstance(event, Failure):
                console.print(f"{event.variant}: {event}", style="red", highlight=False, markup=False)

        yield take
