"""Signs of life that ranks give to their node's agent, which hands them on with its own: one message a node.

They meet in a directory of the agent: each task has a file with its newest beat, and one that is touched each time that
the coordinator has answered a message with a beat of that task. A rank that finds no such answer for
:data:`Timing.relay` gives its signs to the coordinator itself, so an agent that is stopped, slow or dead, or that may
not read what its ranks write, costs none of them its life.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from tfcollective._base.clock import SYSTEM_CLOCK, Clock, LivenessTracker
from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.private_directory import write_private
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Beat
from tfcollective._control.wire.protocol import MAX_BODY_BYTES

_AGENT = "agent"
_MOST_BYTES = 1 << 14  # of one beat
_MOST_BYTES_OF_ALL = MAX_BODY_BYTES // 2  # the heartbeats of a node have to fit into one message


def _file_of(directory: Path, task: TaskKey) -> Path:
    return directory / f"beat-{task.type}-{task.index}.json"


def _answer_to(directory: Path, task: TaskKey) -> Path:
    return directory / f"answered-{task.type}-{task.index}"


class TaskBeat:
    """Sends the heartbeats of one task, by way of the agent where there is one.

    Args:
        client: of the coordinator.
        task: whose they are.
        directory: where the agent looks for them; None: there is no agent.
        clock: the time.
    """

    def __init__(
        self, client: CoordinatorClient, task: TaskKey, directory: str | None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._client = client
        self._task = task
        self._directory = None if directory is None else Path(directory)
        self._clock = clock
        self._agent = LivenessTracker[str](TIMING.longest_gap)
        self._agent.heard(_AGENT, clock.monotonic())
        self._answered: int | None = None

    def give(self, activity: str, info: Mapping[str, object], *, at_once: bool = False) -> None:
        """Sends a heartbeat; ``at_once``: to the coordinator itself. CoordinatorError if the last one got no answer."""
        beat = Beat(self._task, activity, info, self._clock.monotonic())
        if self._directory is None or at_once or not self._leave(beat, self._directory):
            self._client.call(beat)
        elif not self._has_answered(self._directory):
            if self._agent.silence(_AGENT, beat.said) < TIMING.relay:
                raise CoordinatorError("the coordinator has not answered this node's agent since the last heartbeat")
            self._client.call(beat)

    def _leave(self, beat: Beat, directory: Path) -> bool:
        """Leaves it for the agent; false where that is not possible."""
        data = encode(beat)
        if len(data) > _MOST_BYTES:
            return False
        try:
            write_private(_file_of(directory, beat.task), data)
        except OSError:
            return False
        return True

    def _has_answered(self, directory: Path) -> bool:
        """True if the coordinator has answered a forwarded heartbeat of this task since the last call."""
        try:
            answered = _answer_to(directory, self._task).stat().st_mtime_ns
        except OSError:
            return False
        if answered == self._answered:
            return False
        self._answered = answered
        self._agent.heard(_AGENT, self._clock.monotonic())
        return True


class BeatRelay:
    """An agent's heartbeat, with those that its tasks have left for it since the last one that was answered.

    Called on one thread; :meth:`serve` may be called on another.

    Args:
        give: gives the agent's own, with these; raises CoordinatorError when it was not answered.
    """

    def __init__(self, give: Callable[[tuple[Beat, ...]], object]) -> None:
        self._give = give
        self._directory: Path | None = None
        self._tasks: tuple[TaskKey, ...] = ()
        self._handed_on: dict[TaskKey, bytes] = {}

    def serve(self, directory: Path, tasks: Collection[str]) -> None:
        """Makes an empty ``directory``, in which these tasks leave their heartbeats from now on. If that fails, they
        send them to the coordinator themselves."""
        shutil.rmtree(directory, ignore_errors=True)  # an earlier attempt may have had the same
        with suppress(OSError):
            directory.mkdir(mode=0o700)
        self._tasks = tuple(map(TaskKey.parse, tasks))
        self._directory = directory

    def add(self, task: TaskKey) -> None:
        """Forwards the heartbeats of one more task."""
        self._tasks = (*self._tasks, task)

    def __call__(self) -> None:
        """Sends one heartbeat. Raises CoordinatorError."""
        directory = self._directory
        if directory is None:
            self._give(())
            return
        new = self._collect(directory)
        self._give(tuple(beat for _, beat in new.values()))
        for task, (data, _) in new.items():
            self._handed_on[task] = data
            with suppress(OSError):  # the job has ended, and its directory is gone
                _answer_to(directory, task).touch()

    def _collect(self, directory: Path) -> dict[TaskKey, tuple[bytes, Beat]]:
        found = {}
        most = min(_MOST_BYTES, _MOST_BYTES_OF_ALL // max(1, len(self._tasks)))
        for task in self._tasks:
            # A file that is missing, another user's, too large or malformed is no heartbeat.
            with suppress(OSError, ConfigError), _file_of(directory, task).open("rb") as file:
                data = file.read(most)  # a text that is cut off is not JSON
                if data != self._handed_on.get(task):
                    found[task] = (data, decode(data, Beat, "a heartbeat"))
        return {task: (data, beat) for task, (data, beat) in found.items() if beat.task == task}
