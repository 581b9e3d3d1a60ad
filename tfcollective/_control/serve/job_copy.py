"""A copy of what a coordinator in another process knows of its job, kept up to date by what that says: pure."""

from __future__ import annotations

from tfcollective._base.tasks import NO_RANK, TaskKey, trainers
from tfcollective._control.serve.job import JobView
from tfcollective._control.state.membership import TaskView, WorldChange
from tfcollective._control.wire.messages import Follow, JobFacts, JobNews
from tfcollective._control.wire.protocol import ServerOptions


class JobCopy:
    """At first nothing has happened. Not thread-safe."""

    def __init__(self, options: ServerOptions) -> None:
        self._tasks = {task: TaskView(task, rank) for rank, task in enumerate(trainers(options.tasks))}
        self._side = {task: TaskView(task, NO_RANK) for task in options.auxiliary_tasks}
        self._facts = JobFacts(None, False, 0, (), (), (), (), False)
        self._worlds: dict[int, WorldChange] = {}  # by generation
        self._marks = (0, 0, 0)  # life, look, changes
        self._view: JobView | None = None

    def request(self, position: int, timeout: float) -> Follow:
        """What to ask for: what this copy does not have, and events from ``position`` on."""
        return Follow(*self._marks, position, timeout)

    def take(self, news: JobNews) -> None:
        """Of several answers to the same request the newest counts, in whatever order they come."""
        marks = news.life, news.look, news.changes
        if marks <= self._marks:
            return
        self._marks = marks
        for view in news.tasks:
            tasks: dict[TaskKey, TaskView] = self._side if view.rank == NO_RANK else self._tasks
            tasks[view.task] = view
        self._worlds.update((one.generation, one) for one in news.worlds)
        self._facts = news.facts or self._facts
        self._view = None

    def view(self) -> JobView:
        """The job as this copy has it; the same object until it changes."""
        if self._view is None:
            facts = self._facts
            self._view = JobView(
                tuple(self._tasks.values()),
                facts.failure,
                facts.initialised,
                tuple(self._side.values()),
                facts.generation,
                dict(facts.durations),
                facts.members,
                dict(facts.leavers),
                tuple(self._worlds[generation] for generation in sorted(self._worlds)),
                frozenset(facts.done),
                facts.trained,
            )
        return self._view
