"""Shows a launcher's user where ranks are: when others wait for them, and on request."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from enum import Enum

from tfcollective._base.errors import TfCollectiveError
from tfcollective._base.log import say
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.state.stalls import Stall
from tfcollective._launch.report.stacks import name_tasks, stack_lines


class _Request(Enum):
    ALL = "all"
    END = "end"


class StackReports:
    """Asks the coordinator for stacks and shows them, one request after the other, on a thread of its own.

    Args:
        connect: returns a client of the job's coordinator; called on that thread, when it is first needed.
        show: shows a text of several lines.
    """

    def __init__(self, connect: Callable[[], CoordinatorClient], show: Callable[[str], None] = say) -> None:
        self._connect = connect
        self._show = show
        self._wanted: queue.SimpleQueue[Stall | _Request] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tfc-stacks", daemon=True)
        self.of_stall: tuple[str, ...] = ()
        """The lines that show the last stall."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after the requests so far. Does not wait."""
        self._wanted.put(_Request.END)

    def show_all(self) -> None:
        """Shows the stacks of all processes. Also for signal handlers."""
        self._wanted.put(_Request.ALL)

    def show_stall(self, stall: Stall) -> None:
        """Shows the stacks of the ranks for which others wait; from any thread."""
        self._wanted.put(stall)

    def _run(self) -> None:
        with self._connect() as client:
            while (wanted := self._wanted.get()) is not _Request.END:
                try:
                    if isinstance(wanted, Stall):
                        self._report(client, wanted)
                    else:
                        lines = stack_lines(client.dump())
                        self._show("\n".join(["the stacks of all processes of the job:", *lines]))
                except TfCollectiveError as error:
                    self._show(f"the stacks of the ranks cannot be shown: {error}")

    def _report(self, client: CoordinatorClient, stall: Stall) -> None:
        found = client.dump(stall.missing)
        if found:  # else they have ended meanwhile
            who = "1 rank has" if len(stall.waiting) == 1 else f"{len(stall.waiting)} ranks have"
            head = f"{who} waited {stall.seconds:.0f} s in a collective operation for {name_tasks(found)}:"
            self.of_stall = (head, *stack_lines(found))
            self._show("\n".join(self.of_stall))
