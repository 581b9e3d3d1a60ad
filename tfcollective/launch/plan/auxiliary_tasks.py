"""What runs beside the world in a job: the commands of its auxiliary tasks, and how long they may stay. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from tfcollective.errors import ConfigError
from tfcollective.processes import program_of
from tfcollective.task_specs import TaskSpec, TaskSpecs
from tfcollective.tasks import EVALUATOR, TENSORBOARD, TaskKey

__all__ = ["check_auxiliary_tasks", "side_command", "side_limit"]

# TensorBoard needs a while to end.
_TENSORBOARD_END_S = 30.0
_PROGRAM = (sys.executable, *program_of("tfcollective.auxiliary_tasks.tensorboard_task"))


def check_auxiliary_tasks(task_specs: TaskSpecs, *, is_function: bool) -> None:
    """Raises ConfigError when an auxiliary task of the job could not do its work.

    Args:
        task_specs: those of the job.
        is_function: whether the job calls a function; its experiment tells TensorBoard where to look.
    """
    tensorboard = task_specs.get(TENSORBOARD)
    if tensorboard is not None and tensorboard.tb_model_dir is None and not is_function:
        raise ConfigError(
            "task_specs: tensorboard: tb_model_dir: give it: a command does not tell where it writes what to show"
        )


def side_command(
    task: TaskKey, command: tuple[str, ...], task_specs: Mapping[str, TaskSpec], world: Sequence[TaskKey]
) -> tuple[str, ...]:
    """The command of an auxiliary task in a job whose ranks run ``command``: an evaluator runs the same."""
    if task.type == EVALUATOR:
        return command
    spec = task_specs[task.type]
    where = ("--experiment-of", str(world[0])) if spec.tb_model_dir is None else ("--logdir", spec.tb_model_dir)
    extra = () if spec.tb_extra_args is None else (f"--extra-args={spec.tb_extra_args}",)
    return (*_PROGRAM, "--linger", f"{spec.tensorboard_linger_s:g}", *where, *extra)


def side_limit(
    task: TaskKey, task_specs: Mapping[str, TaskSpec], *, evaluator_grace: float, start_timeout: float
) -> float:
    """How long (s) an auxiliary task may stay when training has ended, before it is killed."""
    if task.type == EVALUATOR:
        return evaluator_grace
    # It may still be about to start when training ends.
    return start_timeout + task_specs[task.type].tensorboard_linger_s + _TENSORBOARD_END_S
