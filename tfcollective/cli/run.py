"""``tfcollective run``: one command, N processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import click

from tfcollective import log
from tfcollective.cli.command import resolve_command
from tfcollective.cli.task_spec import parse_task_specs
from tfcollective.errors import ConfigError
from tfcollective.launch.planner import describe
from tfcollective.launch.registry import find_launcher
from tfcollective.launch.report import exit_code, render, warning
from tfcollective.launch.spec import JobSpec, refuse_side_tasks
from tfcollective.settings import TRANSPORTS, Settings
from tfcollective.task_specs import PS_POLICIES, trainers_of
from tfcollective.tasks import TaskKey, workers

__all__ = ["run"]

_Value = TypeVar("_Value")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _RunCommand(click.Command):
    """Whatever follows ``-m MODULE`` belongs to the module, as in ``python -m``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See :class:`click.Command`."""
        with_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        return super().parse_args(ctx, _end_options_after_module(args, with_value))


def _end_options_after_module(args: list[str], with_value: set[str]) -> list[str]:
    position = 0
    while position < len(args) and args[position].startswith("-") and args[position] != "--":
        if args[position] == "-m":
            end = position + 2
            return [*args[:end], "--", *args[end:]]
        position += 2 if args[position] in with_value else 1
    return args


@click.command(
    cls=_RunCommand,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  tfcollective run -np 2 python train.py --epochs 5
  tfcollective run -np 4 --log-dir logs --env DATA=/data python train.py
  tfcollective run -np 2 -m mypackage.train
  tfcollective run --task-spec chief --task-spec worker:instances=2 python train.py
  tfcollective run -np 2 --dry-run python train.py

\b
Exit code: that of the rank that failed first (128 + n for signal n); 64 wrong usage, 69 the ranks did not
start in time, 70 internal error, 75 coordinator lost.""",
)
@click.option("-np", "--num-proc", type=click.IntRange(min=1), metavar="N", help="How many processes to run.")
@click.option("--task-spec", multiple=True, metavar="ROLE:K=V,...", help="In place of -np: a role and its instances.")
@click.option("--ps-policy", type=click.Choice(PS_POLICIES), help="A ps role is an error, or left out. [error]")
@click.option("-m", "module", metavar="MODULE", help="Run a Python module instead of a command.")
@click.option("--env", "env", multiple=True, metavar="K=V", help="Set a variable for the ranks; may be repeated.")
@click.option("--log-dir", type=click.Path(), help="Keep every rank's output in DIR/rank.N/stdout and stderr.")
@click.option("--start-timeout", type=float, metavar="S", help="How long ranks wait for each other to start. [120]")
@click.option("--op-timeout", type=float, metavar="S", help="How long a collective may take. [300]")
@click.option("--stall-warning", type=float, metavar="S", help="Warn of a collective that takes longer; 0: never. [60]")
@click.option("--transport", type=click.Choice(TRANSPORTS), help="How ranks of one node move data. [auto]")
@click.option("--timeline", type=click.Path(), metavar="FILE", help="Write a trace of all ranks' operations to FILE.")
@click.option("--emit-tf-config", is_flag=True, help="Give each rank a TF_CONFIG, for scripts that use tf.distribute.")
@click.option("--horovod-compat", is_flag=True, help="Let `import horovod` give the ranks tfcollective.")
@click.option("--no-prefix", is_flag=True, help="Do not start lines of output with the rank.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and where, and run nothing.")
@click.option("--verbose", is_flag=True, help="Log what the launcher, the agent and the ranks do.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def run(
    num_proc: int | None,
    task_spec: Sequence[str],
    ps_policy: str | None,
    module: str | None,
    env: Sequence[str],
    log_dir: str | None,
    start_timeout: float | None,
    op_timeout: float | None,
    stall_warning: float | None,
    transport: str | None,
    timeline: str | None,
    emit_tf_config: bool,
    horovod_compat: bool,
    no_prefix: bool,
    dry_run: bool,
    verbose: bool,
    command: Sequence[str],
) -> int:
    """Runs COMMAND on N processes of this machine.

    Every process can call tfcollective.init(); its output appears here, each line with its rank. When one process
    fails, the others are stopped and a report names the first cause. `python` is the interpreter that runs
    tfcollective. Options not given come from TFCOLLECTIVE_* variables, else from the defaults in brackets.
    """
    settings = Settings.load()
    tasks = _world(num_proc, task_spec, ps_policy or settings.ps_policy)
    spec = JobSpec(
        command=resolve_command(command, module),
        num_proc=len(tasks),
        tasks=tasks,
        env=_parse_env(env),
        start_timeout=_given(start_timeout, settings.start_timeout),
        op_timeout=_given(op_timeout, settings.op_timeout),
        stall_warning=_given(stall_warning, settings.stall_warning),
        transport=transport or settings.transport,
        timeline=_absolute(_given(timeline, settings.timeline)),
        emit_tf_config=emit_tf_config,
        horovod_compat=horovod_compat,
        log_dir=_absolute(log_dir),
        prefix=not no_prefix,
        log_level="info" if verbose else settings.log_level,
    )
    log.configure(spec.log_level)
    launcher = find_launcher("local")
    if dry_run:
        click.echo(describe(launcher.plan(spec)), nl=False)
        return 0
    _make_directory(spec.log_dir)
    outcome = launcher.run(spec, stop_signals=_STOP_SIGNALS)
    for text in (render(outcome), warning(outcome)):
        if text:
            sys.stderr.write(f"tfcollective: {text}\n")
    return exit_code(outcome)


def _world(num_proc: int | None, task_spec: Sequence[str], ps_policy: str) -> tuple[TaskKey, ...]:
    """The tasks to run, in rank order."""
    if (num_proc is None) == (not task_spec):
        raise ConfigError("how many processes? give either -np N or --task-spec ROLE:instances=N")
    if num_proc is not None:
        return workers(num_proc)
    specs = parse_task_specs(task_spec, ps_policy)
    refuse_side_tasks(specs)
    return trainers_of(specs)


def _given(option: _Value | None, default: _Value) -> _Value:
    return default if option is None else option


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _parse_env(assignments: Sequence[str]) -> dict[str, str]:
    env: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise ConfigError(f"--env takes NAME=VALUE, not {assignment!r}")
        env[name] = value
    return env


def _make_directory(path: str | None) -> None:
    if path is None:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--log-dir: {error}") from error
