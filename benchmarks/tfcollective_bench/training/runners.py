"""The runners, and the jobs of a run: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfcollective._base.errors import ConfigError
from tfcollective_bench.training.job_plan import Case
from tfcollective_bench.training.options import TrainingOptions

__all__ = ["RUNNERS", "Job", "Runner", "chosen", "hosts_needed", "jobs", "slots", "timeline_jobs"]

# Of the dropped and the measured epoch each; the page shows three.
_TIMELINE_STEPS = 12


@dataclass(frozen=True)
class Runner:
    """A way to train together.

    Attributes:
        name: on the command line and in reports.
        title: for people.
        strategy: a name of ``strategies.STRATEGIES``.
        environment: whose Python runs it: ``keras3``, ``keras2`` or ``horovod``.
    """

    name: str
    title: str
    strategy: str
    environment: str

    @property
    def alone(self) -> bool:
        """True if the runner is one process, however many the others are."""
        return self.strategy == "single"


RUNNERS: Mapping[str, Runner] = {
    runner.name: runner
    for runner in (
        Runner("ours", "tfcollective, Keras 3", "ours", "keras3"),
        Runner("ours-keras2", "tfcollective, Keras 2 (TensorFlow 2.15)", "ours", "keras2"),
        Runner("ours-bf16", "tfcollective, Keras 3, gradients sent as bfloat16", "ours-bf16", "keras3"),
        Runner("ours-unmodified", "tfcollective, --data-parallel, Keras 3", "ours-unmodified", "keras3"),
        Runner("ours-unmodified-keras2", "tfcollective, --data-parallel, Keras 2", "ours-unmodified", "keras2"),
        Runner("horovod", "Horovod-Gloo, Keras 2 (TensorFlow 2.15)", "horovod", "horovod"),
        Runner("mwms", "MultiWorkerMirroredStrategy, RING, Keras 2 (TensorFlow 2.15)", "mwms", "keras2"),
        Runner("ps", "ParameterServerStrategy, asynchronous, Keras 2 (TensorFlow 2.15)", "ps", "keras2"),
        Runner("single", "one process, Keras 3", "single", "keras3"),
        Runner("single-keras2", "one process, Keras 2 (TensorFlow 2.15)", "single", "keras2"),
        Runner("unconnected", "processes that do not communicate, Keras 3", "unconnected", "keras3"),
        Runner("unconnected-keras2", "processes that do not communicate, Keras 2", "unconnected", "keras2"),
    )
}


@dataclass(frozen=True)
class Job:
    """A job of a run.

    Attributes:
        name: unique, for people.
        runner: whose it is.
        link: where it runs.
        processes: training processes that it is compared with.
        view: ``processes`` or ``cores``; the same job for both but for parameter servers.
        case: what to run.
    """

    name: str
    runner: str
    link: str
    processes: int
    view: str
    case: Case


def chosen(names: Sequence[str]) -> tuple[Runner, ...]:
    """The runners of these names, in the table's order; all if there are no names. ConfigError for an unknown one."""
    for name in names:
        if name not in RUNNERS:
            raise ConfigError(f"--runners: unknown runner {name!r}: expected one of {', '.join(RUNNERS)}")
    return tuple(runner for runner in RUNNERS.values() if not names or runner.name in names)


def slots(processes: int, cores: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The cores of every training process: equal shares. Empty if there are fewer cores than processes: then none is
    pinned."""
    share = len(cores) // processes
    return tuple(tuple(cores[slot * share : (slot + 1) * share]) for slot in range(processes)) if share else ()


def jobs(
    runners: Sequence[Runner], pythons: Mapping[str, str], options: TrainingOptions, cores: Sequence[int]
) -> Iterator[Job]:
    """Yields all jobs of a run. ``pythons`` are interpreters by environment, ``cores`` those that may be used."""
    for link in options.links:
        for processes in options.processes:
            for model in dict.fromkeys(options.models):
                for runner in runners:
                    base = _base(runner, model, processes, pythons[runner.environment], options, cores)
                    for view, case in _variants(runner, base, processes, options):
                        yield Job(_name(runner, case, processes, link, view), runner.name, link, processes, view, case)


def timeline_jobs(found: Sequence[Job]) -> Iterator[Job]:
    """Yields, for every model, number of processes and link, a short job of tfcollective that records a timeline."""
    scenes: dict[tuple[str, int, str], Job] = {}
    for job in found:
        if job.case.strategy == "ours" and job.processes > 1:
            scenes.setdefault((job.case.model, job.processes, job.link), job)
    for job in scenes.values():
        case = replace(job.case, timeline=True, epochs=1, steps=_TIMELINE_STEPS)
        yield replace(job, name=f"{job.name}, timeline", case=case)


def hosts_needed(found: Sequence[Job]) -> int:
    """Hosts of a test bed in which all these jobs have room."""
    return max(job.case.size + job.case.servers for job in found)


def _base(
    runner: Runner, model: str, processes: int, python: str, options: TrainingOptions, cores: Sequence[int]
) -> Case:
    pinned = slots(processes, cores)
    return Case(
        strategy=runner.strategy,
        python=python,
        model=model,
        size=1 if runner.alone else processes,
        steps=options.steps_per_epoch(model),
        epochs=options.epochs,
        cores=pinned,
        threads=len(pinned[0]) if pinned else 1,
        timeout=options.deadline_s / 2,
    )


def _variants(runner: Runner, base: Case, processes: int, options: TrainingOptions) -> Iterator[tuple[str, Case]]:
    if runner.strategy != "ps":
        yield "processes", base
        return
    most = options.servers or processes
    # A coordinator hands out steps one by one or several at a time; the second spares it messages.
    for steps in options.steps_at_a_time:
        if base.steps % steps:
            continue
        if "processes" in options.views:
            for servers in range(1, most + 1):
                yield "processes", replace(base, servers=servers, steps_per_execution=steps)
        if "cores" in options.views:
            for servers in range(1, min(most, processes - 1) + 1):
                workers = processes - servers
                # As many samples as all the training processes of the others take.
                each = -(-base.steps * processes // (workers * steps)) * steps
                yield (
                    "cores",
                    replace(base, servers=servers, size=workers, steps=each, steps_per_execution=steps, own_slots=True),
                )


def _name(runner: Runner, case: Case, processes: int, link: str, view: str) -> str:
    parts = [runner.name, case.model, f"np {processes}", link]
    if case.servers:
        parts.append(f"{case.servers} servers" if case.servers > 1 else "1 server")
        parts.append(f"{case.steps_per_execution} steps at a time" if case.steps_per_execution > 1 else "step by step")
        parts.append(f"equal {view}")
    return ", ".join(parts)
