"""A coordinator as the process sees it that has opened it: on a thread of that process, or in one of its own."""

from __future__ import annotations

from typing import Protocol

from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint
from tfcollective._control.serve.job import JobView


class Coordinator(Protocol):
    """What a launcher asks of it, from any thread. All calls but :meth:`view` raise CoordinatorError when it does not
    answer; once there is a :attr:`failure`, what they say has no effect. A context manager: while it is open, it serves
    its job."""

    def __enter__(self) -> Coordinator:
        """Begins to serve."""

    def __exit__(self, *unused: object) -> None:
        """Ends."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""

    @property
    def pid(self) -> int:
        """The process that runs it, where that is not its owner; 0: it is, or it has yet to listen."""

    @property
    def failure(self) -> str | None:
        """Why it serves the job no longer, though its owner has not closed it; None: it does."""

    @property
    def restarts(self) -> int:
        """How often it has been started again."""

    def wait(self) -> None:
        """Returns when it serves the job. Raises CoordinatorError when it cannot."""

    def view(self) -> JobView:
        """The job as far as its owner has heard. Cheap; what has just happened may not be in it yet."""

    def look(self) -> JobView:
        """The job as it stands."""

    def exited(self, record: ExitRecord) -> None:
        """As an agent's report: for the end of a process that no agent has reported."""

    def admit(self, task: TaskKey, change: int = 0) -> None:
        """A task takes part in the job from now on. ``change``: see :class:`messages.Admit`."""

    def admit_no_more(self) -> None:
        """No further task will take part: ranks that are too few need not wait for one."""

    def put_blob(self, name: str, data: bytes) -> None:
        """Stores bytes for the tasks; see :meth:`CoordinatorClient.get_blob`."""

    def get_blob(self, name: str) -> bytes | None:
        """The bytes that a task has stored, or None."""
