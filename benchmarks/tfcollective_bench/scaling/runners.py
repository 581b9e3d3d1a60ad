"""The runners, and the commands of their turns: pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective_bench.baselines import Baselines
from tfcollective_bench.interleave import Variant
from tfcollective_bench.ranks import EXTERNAL_VARIABLES, horovod_command, our_command, thread_variables, working_folder
from tfcollective_bench.scaling.options import ScalingOptions

__all__ = ["COORDINATOR", "NODES", "RUNNERS", "Case", "cases_of", "chosen", "hint_for", "variant_of"]

_STEPS = "tfcollective_bench.scaling.steps"
_JOINING = "tfcollective_bench.scaling.joining"
_NODES = "tfcollective_bench.scaling.nodes"
COORDINATOR = "coordinator"
NODES = "nodes"
#: name -> what it is, for people.
RUNNERS: Mapping[str, str] = {
    "ours": "tfcollective, DistributedGradientTape",
    "horovod": "Horovod-Gloo, DistributedGradientTape (TensorFlow 2.15)",
    COORDINATOR: "tfcollective, agents that join at once",
    NODES: "tfcollective, simulated nodes with heartbeats, orders and output",
}
#: The things that a runner without ranks counts.
_COUNTED = {COORDINATOR: "agents", NODES: "nodes"}


@dataclass(frozen=True)
class Case:
    """A turn of a runner, and how many ranks it has, or what :data:`_COUNTED` says."""

    runner: str
    count: int

    @property
    def name(self) -> str:
        """The unique name for people."""
        return f"{self.runner}, {self.count} {_COUNTED.get(self.runner, 'ranks')}"


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The runners of these names, in the table's order; all if there are none. ConfigError for an unknown one."""
    for name in names:
        if name not in RUNNERS:
            raise ConfigError(f"--runners: unknown runner {name!r}: expected one of {', '.join(RUNNERS)}")
    return tuple(name for name in RUNNERS if not names or name in names)


def hint_for(runner: str, found: Baselines) -> str:
    """Returns how to install what a runner lacks; empty if nothing is missing."""
    if runner == "ours" and not found.tensorflow:
        return "pip install 'tfcollective[tf]'"
    if runner == "horovod" and found.horovod_python is None:
        return "run tools/baselines.sh horovod, or name its interpreter with --horovod-python"
    return ""


def cases_of(runner: str, options: ScalingOptions) -> Iterator[Case]:
    """Yields the runner's turns in one round."""
    for count in {COORDINATOR: options.agents, NODES: options.nodes}.get(runner, options.ranks):
        yield Case(runner, count)


def variant_of(case: Case, found: Baselines, options: ScalingOptions) -> Variant:
    """The command of a turn."""
    threads = thread_variables(1 if case.runner in _COUNTED else case.count)
    return Variant(
        name=case.name,
        argv=tuple(_command(case, found, options)),
        deadline_s=options.deadline_s,
        env=threads,
        unset=EXTERNAL_VARIABLES,
        cwd=working_folder(),
    )


def _command(case: Case, found: Baselines, options: ScalingOptions) -> Sequence[str]:
    if case.runner == COORDINATOR:
        return [sys.executable, "-m", _JOINING, str(case.count), f"{options.deadline_s:g}"]
    if case.runner == NODES:
        sizes = [str(case.count), str(options.ranks_per_node), f"{options.busy_s:g}", f"{options.deadline_s:g}"]
        return [sys.executable, "-m", _NODES, *sizes]
    sizes = [str(options.iterations), str(options.total_bytes), *map(str, options.tensors)]
    if case.runner == "horovod":
        return horovod_command(str(found.horovod_python), case.count, _STEPS, ["horovod", *sizes])
    return our_command(case.count, _STEPS, ["ours", *sizes])
