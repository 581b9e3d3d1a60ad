"""``tfcollective run``: one command, N processes, on one host or several."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import util
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from tfcollective._base import log
from tfcollective._base.errors import ConfigError, TfCollectiveError
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode
from tfcollective._base.machine.cores import available_cores
from tfcollective._base.processes import PASSED_ON
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.version import __version__
from tfcollective._cli.command import check_engine, resolve_command
from tfcollective._cli.groups import GroupedCommand, GroupedOption
from tfcollective._cli.platforms import CLUSTERS, PLATFORMS, RUNS_IMAGES
from tfcollective._cli.run_options import IGNORED_OPTIONS, REFUSED_OPTIONS, RUN_OPTIONS, job_spec, warn_of_ignored
from tfcollective._launch.launcher import find_launcher, known_launchers
from tfcollective._launch.plan.hosts import share_out
from tfcollective._launch.plan.spec import AUTO_WEB, JobSpec
from tfcollective._launch.report.report import describe_size, exit_code, render, warning
from tfcollective._launch.restarts import run_job

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *PASSED_ON)
_SHOWS_ALL = f"{__name__}.all"
_ADDRESS = re.compile(r"\S+:[0-9]+")
# Modules of extras, without which a launcher starts nothing.
_NEEDS = {"kubernetes": "kubernetes", "mpi": "mpi4py", "spark": "pyspark", "yarn": "skein"}


TYPED = f"{__name__}.typed"  #: where a context has the words of its command line


class RunCommand(GroupedCommand):
    """The command ``run``: all words after ``-m MODULE`` are arguments of the module, as in ``python -m``.

    ``--help`` shows the common options, and those of the platform if ``--launcher`` names one; ``--help-all`` all.
    """

    def shows(self, ctx: click.Context, parameter: click.Parameter) -> bool:
        """True for a common option, for one of the platform, and for all of them with ``--help-all``."""
        if ctx.meta.get(_SHOWS_ALL) or not isinstance(parameter, GroupedOption):
            return True
        chosen = PLATFORMS.get(_named_launcher(ctx) or "", {})
        return parameter.common or parameter in chosen.values()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :class:`click.Command`."""
        if not ctx.meta.get(_SHOWS_ALL):
            formatter.write_paragraph()
            names = ", ".join(CLUSTERS)
            formatter.write_text(f"`--launcher NAME --help` shows the options of {names}, and `--help-all` all.")
        super().format_epilog(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See :class:`click.Command`."""
        ctx.meta[TYPED] = tuple(args)  # click takes the words out of the list
        with_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        try:
            return super().parse_args(ctx, _completed(args, with_value))
        except click.NoSuchOption:
            named = _named_launcher(ctx)
            if named is not None:
                find_launcher(named)  # raises where it cannot be loaded, and so has no options
            raise


def _named_launcher(ctx: click.Context) -> str | None:
    """The launcher that the command line names; --help may stand before its name, where it ends the reading."""
    typed: Sequence[str] = ctx.meta[TYPED]
    following = pairwise([*typed, ""])
    named = [word.partition("=")[2] or after for word, after in following if word.startswith("--launcher")]
    return named[-1] if named else None


def _help_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    if value:
        context.meta[_SHOWS_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _completed(args: list[str], with_value: set[str]) -> list[str]:
    """Returns the words with ``--`` after the module, and the address of a ``--web`` that has none."""
    position = 0
    while position < len(args) and args[position].startswith("-") and args[position] != "--":
        if args[position] == "-m":
            end = position + 2
            return [*args[:end], "--", *args[end:]]
        if args[position] == "--web" and not _ADDRESS.fullmatch("".join(args[position + 1 : position + 2])):
            args = [*args[:position], f"--web={AUTO_WEB}", *args[position + 1 :]]
        position += 2 if args[position] in with_value else 1
    return args


@click.command(
    cls=RunCommand,
    params=[*RUN_OPTIONS, *IGNORED_OPTIONS, *REFUSED_OPTIONS],
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  tfcollective run -np 2 python train.py --epochs 5
  tfcollective run -np 4 --log-dir logs --env DATA=/data python train.py
  tfcollective run -np 2 -m mypackage.train
  tfcollective run --task-spec chief --task-spec worker:instances=2 python train.py
  tfcollective run -np 8 -H host1:4,host2:4 python train.py
  tfcollective run --launcher slurm -np 8 --nodes 2 --gres gpu:4 python train.py
  tfcollective run -np 2 --print-plan python train.py

\b
Exit code: that of the rank that failed first (128 + n for signal n); 64 wrong usage, 69 the ranks did not
start in time, 70 the job could not be launched, 75 coordinator or host lost.""",
)
@click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_help_all, help="Show all options and exit."
)
@click.version_option(__version__, "-v", "--version", prog_name="tfcollective")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.pass_context
def run(context: click.Context, /, command: Sequence[str], **options: Any) -> int:
    """Runs COMMAND on N processes, on this machine or on several.

    Every process can call tfcollective.init(). Its output appears here, each line with its rank. When one process
    fails, the others are stopped and a report names the first cause. `python` means the interpreter that runs
    tfcollective. An option that is not given has the value of its TFCOLLECTIVE_* variable, or the default in brackets.
    """
    if options["check_build"]:
        click.echo(describe_build(), nl=False)
        return ExitCode.OK
    words = resolve_command(command, options["module"], in_image=options["launcher"] in RUNS_IMAGES)
    name, spec = job_spec(options, words)
    warn_of_ignored(context)
    return run_spec(name, spec, only_print=options["print_plan"])


def run_spec(name: str, spec: JobSpec, *, only_print: bool = False) -> int:
    """Runs a job with the launcher of this name, reports how it ended, and returns the exit code. With ``only_print``
    it prints what would run, and starts nothing."""
    check_engine(spec.engine, spec.command)
    log.configure(spec.log_level)
    launcher = find_launcher(name)
    if only_print:
        click.echo(launcher.preview(spec), nl=False)
        return ExitCode.OK
    _make_directory(spec.log_dir)
    tell = log.say if spec.log_level != "error" else _nothing
    began = time.monotonic()
    tell(opening(name, spec, available_cores()))
    with ended_by(signal.SIGTERM, signal.SIGHUP):
        outcome = run_job(launcher, spec, stop_signals=_SIGNALS)
    # Scripts written for Horovod need not call tfcollective.
    for text in (render(outcome, _in_red), warning(outcome) if spec.engine == "native" else None):
        if text:
            log.say(text)
    if outcome.exits and exit_code(outcome) == ExitCode.OK:  # not of a job that goes on elsewhere
        tell(f"the job is complete, after {time.monotonic() - began:.0f} s")
    return exit_code(outcome)


def _nothing(text: str) -> None:
    del text


def _cores(count: int) -> str:
    return f"{count} {'core' if count == 1 else 'cores'}"


def opening(launcher: str, spec: JobSpec, cores: int) -> str:
    """The line with which a job begins: how many ranks, and where. ``cores`` are those of this machine."""
    ranks = describe_size(spec.num_proc)
    if launcher == "local":
        each = cores // spec.num_proc
        return f"{ranks} on this machine, {f'{_cores(each)} each' if each else f'which share {_cores(cores)}'}"
    if spec.hosts and not spec.discovery:
        count = len(share_out(spec.hosts, spec.num_proc))
        return f"{ranks} on {count} {'host' if count == 1 else 'hosts'}"
    return f"{ranks}, with the launcher {launcher}"


def _in_red(text: str) -> str:
    """The same in red where a terminal shows it, unless ``NO_COLOR`` asks for none."""
    shown = sys.stderr.isatty() and not environ_snapshot().get("NO_COLOR")
    return click.style(text, fg="red", bold=True) if shown else text


@contextlib.contextmanager
def ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """Lets these signals end this process gracefully while it is open and no job handles them, as before the agents
    start. Process 1 of a container has no default action for them. Signals that are passed on to the ranks have no
    effect as long as there are none."""

    def end(number: int, frame: object) -> None:
        del frame
        if number not in PASSED_ON:
            sys.exit(SIGNAL_BASE + number)

    taken = [one for one in (*numbers, *PASSED_ON) if signal.getsignal(one) is signal.SIG_DFL]  # nohup ignores one
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _make_directory(path: str | None) -> None:
    if path is None:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--log-dir: cannot make {path}: {error.strerror}") from error


def describe_build() -> str:
    """A table in horovodrun's form: ``[X]`` stands before what is there."""
    groups = {
        "Available frameworks": [("TensorFlow", _is_there("tensorflow")), ("Keras", _is_there("keras"))],
        "Available controllers": [("tfcollective", True)],
        "Available tensor operations": [("native (TCP, shared memory)", _native_loads())],
        "Available launchers": [(name, _is_there(_NEEDS.get(name, "tfcollective"))) for name in known_launchers()],
    }
    return "\n".join([f"tfcollective v{__version__}:", *_lines(groups)]) + "\n"


def _lines(groups: dict[str, list[tuple[str, bool]]]) -> Iterator[str]:
    for title, rows in groups.items():
        yield ""
        yield f"{title}:"
        yield from (f"    [{'X' if there else ' '}] {name}" for name, there in rows)


def _is_there(module: str) -> bool:
    return util.find_spec(module) is not None


def _native_loads() -> bool:
    from tfcollective._runtime import native_library as _native

    try:
        _native.load(Settings.load().library)
    except TfCollectiveError:
        return False
    return True
