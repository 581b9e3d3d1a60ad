"""The nodes of a job on Spark: agents in the tasks of barrier stages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfcollective.launcher import (
    TIMING,
    Deadline,
    NodeFacts,
    NodeKind,
    NodeProvider,
    NodeSettings,
    OutputFollower,
    Refill,
    Went,
    encode_line,
    get_logger,
    poll,
)
from tfcollective_launchers.spark.context import cancel, slots_of
from tfcollective_launchers.spark.reasons import lost_partition, reason_of
from tfcollective_launchers.spark.task import Part, hold_agent

_LOG = get_logger(__name__)
_POLL_S = 1.0


@dataclass(frozen=True)
class _Ended:
    """The end of one task's agent, and whether it was the first of its stage."""

    how: str
    first: bool = True


class Stage:
    """A barrier stage of one or more tasks, each with an agent, on a thread of its own.

    A stage fails as a whole: when one of its agents is lost, Spark ends the tasks of all. So a job of fixed size, which
    cannot go on without one, has one stage, which Spark starts when all fit; an elastic one has a stage for each agent.

    Args:
        context: the SparkContext.
        group: the name of its job group: only it is cancelled.
        text: what it is, for Spark's pages.
        nodes: the settings of its agents.
        files: see :class:`Part`.
        submit: runs the job and returns the exit codes by task.
    """

    def __init__(
        self,
        context: Any,
        group: str,
        text: str,
        nodes: Sequence[NodeSettings],
        files: Mapping[str, bytes],
        submit: Callable[[Part], Mapping[int, int]],
    ) -> None:
        from pyspark import InheritableThread

        self._context = context
        self._group = group
        self._text = text
        self.nodes = tuple(nodes)
        self._files = files
        self._submit = submit
        self._cancelled = threading.Event()
        self._ended: dict[str, _Ended] | None = None
        self.slots: int | None = None
        """How many Spark has, when it was asked last."""
        self.submitted = False
        """Whether Spark has it."""
        self._thread = InheritableThread(target=self._run, name=f"tfc-{group}", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    @property
    def ended(self) -> Mapping[str, _Ended] | None:
        """The ends of its agents, by name; None while they run, or have yet to be started."""
        return self._ended

    def cancel(self) -> None:
        """Ends all that it runs."""
        self._cancelled.set()
        if self._ended is None:
            cancel(self._context, self._group)

    def join(self, seconds: float) -> bool:
        """Waits for its end; whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        names = [one.name for one in self.nodes]
        try:
            if not self._await_slots():
                self._ended = {name: _Ended("was not started") for name in names}
                return
            self.submitted = True
            self._context.setJobGroup(self._group, self._text, interruptOnCancel=True)
            logged = self._context.master.partition("[")[0] != "local"
            part = Part(tuple(encode_line(one).decode().rstrip("\n") for one in self.nodes), self._files, logged)
            codes = self._submit(part)
            self._ended = {name: _Ended(f"exited with code {codes.get(task)}") for task, name in enumerate(names)}
        except Exception as error:  # noqa: BLE001  Java's exceptions, and those of a gateway that is gone
            text = str(error)
            _LOG.info("spark: %s", text)
            how, first = reason_of(text), lost_partition(text)
            self._ended = {name: _Ended(how, first in (None, task)) for task, name in enumerate(names)}

    def _await_slots(self) -> bool:
        """Waits for slots; True once there are enough for all. A stage that does not fit is not given to Spark, which
        would try for ten minutes and keep trying when it is no longer wanted.
        """
        while not self._cancelled.is_set():
            self.slots = slots_of(self._context)
            if self.slots is None or self.slots >= len(self.nodes):
                return True
            self._cancelled.wait(_POLL_S)
        return False


class SparkProvider(NodeProvider):
    """Agents in tasks of a SparkContext.

    Args:
        context: the SparkContext.
        group: begins the names of its job groups.
        separate: whether each agent has a stage of its own, and others may be asked for while the job runs.
        files: see :class:`Part`.
        submit: runs the job of a stage; see :class:`Stage`.
        executable: see :class:`NodeSettings`.
        output: shows what the nodes print, while this provider is open.
        enrolled: all nodes that have enrolled.
    """

    units = "Spark tasks"
    kind = NodeKind.LENT
    advice = ". What the executors say stands in their logs (stderr)"

    def __init__(
        self,
        context: Any,
        group: str,
        *,
        separate: bool,
        files: Mapping[str, bytes],
        submit: Callable[[Part], Mapping[int, int]] | None = None,
        executable: str | None = None,
        output: OutputFollower,
        enrolled: Callable[[], Sequence[NodeFacts]],
    ) -> None:
        self.refill = Refill.RENEWED if separate else Refill.NONE
        self._separate = separate
        self._context = context
        self._group = group
        self._files = files
        self._submit = submit or (lambda part: run_tasks(context, part))
        self._executable = executable
        self._output = output
        self._enrolled = enrolled
        self._lock = threading.Lock()
        self._stages: list[Stage] = []
        self._reported: set[str] = set()  # instances

    def __enter__(self) -> SparkProvider:
        self._output.__enter__()
        return self

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """See :class:`NodeProvider`."""
        with self._lock:
            for some in [[one] for one in nodes] if self._separate else [nodes]:
                group = f"{self._group}-{len(self._stages)}"
                settings = [replace(one, instance=f"{group}/{one.name}", executable=self._executable) for one in some]
                text = f"tfcollective: {', '.join(one.name for one in some)}"
                stage = Stage(self._context, group, text, settings, self._files, self._submit)
                self._stages.append(stage)
                stage.start()

    def release(self, name: str) -> None:
        """See :class:`NodeProvider`. Where all have one stage, they end with the job."""
        stage = self._stage_of(name)
        if stage is not None and self._separate:
            stage.cancel()

    def close(self) -> None:
        """See :class:`NodeProvider`."""
        try:
            deadline = Deadline.after(TIMING.spark_end)  # one for all
            for stage in self._stages:
                if not stage.join(deadline.remaining() if stage.submitted else 0.0):
                    stage.cancel()
            deadline = Deadline.after(TIMING.spark_end)
            for stage in self._stages:
                if not stage.join(deadline.remaining()):
                    late = TIMING.spark_end
                    _LOG.warning("spark: tasks of %s still run %g s after they were cancelled", self._group, late)
        finally:
            self._output.close()

    def events(self) -> Sequence[Went]:
        """See :class:`NodeProvider`."""
        found = []
        for stage in list(self._stages):
            ended = stage.ended
            for node in stage.nodes if ended is not None else ():
                if node.instance not in self._reported:
                    self._reported.add(node.instance)
                    assert ended is not None
                    end = ended[node.name]
                    found.append((not end.first, Went(node.name, end.how, instance=node.instance)))
        return [went for _, went in sorted(found, key=lambda pair: pair[0])]

    def subject(self, node: NodeFacts) -> str:
        """See :class:`NodeProvider`."""
        return f"{node.name} on {node.host}: the agent" if node.host else f"{node.name}: the agent"

    def explain(self, node: NodeFacts, silent: float) -> str | None:
        """See :class:`NodeProvider`."""
        del silent

        def look() -> str | None:
            for stage in list(self._stages):
                ended = stage.ended
                if ended is not None and any(one.instance == node.instance for one in stage.nodes):
                    return ended[node.name].how
            return None

        return poll(look, TIMING.spark_says, 0.2)

    def machine(self, name: str) -> str:
        """See :class:`NodeProvider`."""
        stage = self._stage_of(name)
        wanted = "" if stage is None else next(one.instance for one in stage.nodes if one.name == name)
        return next((one.host for one in reversed(self._enrolled()) if one.instance == wanted), "")

    def describe_missing(self, names: Sequence[str]) -> str:
        """See :class:`NodeProvider`."""
        few = next((one for one in self._stages if not one.submitted and one.slots is not None), None)
        listed = ", ".join(names)
        if few is None:
            return f"{listed} (Spark has not started their tasks, or their executors cannot reach the driver)"
        return (
            f"{listed}; its executors have {few.slots} task slots, and the job needs {len(few.nodes)}: start the "
            "application with more executors or cores (spark.cores.max, spark.executor.instances, "
            "spark.executor.cores, spark.task.cpus and, with GPUs, spark.task.resource.gpu.amount decide)"
        )

    def _stage_of(self, name: str) -> Stage | None:
        return next((one for one in reversed(self._stages) if any(node.name == name for node in one.nodes)), None)


def run_tasks(context: Any, part: Part) -> dict[int, int]:
    """Runs one barrier stage, and returns the agents' exit codes by task."""
    from functools import partial

    count = len(part.lines)
    # Straight to collect(): a stage in front of a shuffle would be run again when one of its tasks fails.
    ends = context.parallelize(range(count), count).barrier().mapPartitions(partial(hold_agent, part)).collect()
    return dict(ends)
