"""The options of ``tfcollective run``: what can be typed, and the job that it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.settings import Settings, environ_snapshot, without_outer_job
from tfcollective._base.tasks import PS_POLICIES
from tfcollective._cli.config_file import read_config
from tfcollective._cli.groups import DeclaredOption, GroupedOption, group, option
from tfcollective._cli.platforms import (
    CLUSTERS,
    OF_CLUSTERS,
    PLATFORM_OPTIONS,
    given_to,
    launcher_of,
    refuse_options_of_others,
)
from tfcollective._launch.launcher import find_launcher
from tfcollective._launch.plan.build import build_job, read_options
from tfcollective._launch.plan.spec import OPTIONS, JobSpec

# Options of horovodrun that scripts may contain and that have nothing to set here: flags, and those with a value.
_IGNORED_FLAGS = (
    *("--gloo", "--disable-cache", "--hierarchical-allreduce/--no-hierarchical-allreduce", "--stall-check"),
    *("--hierarchical-allgather/--no-hierarchical-allgather", "--torus-allreduce/--no-torus-allreduce"),
    *("--autotune/--no-autotune", "--timeline-mark-cycles/--no-timeline-mark-cycles"),
    *("--mpi-threads-disable/--no-mpi-threads-disable", "--log-with-timestamp/--log-without-timestamp"),
    *("--log-hide-timestamp/--no-log-hide-timestamp", "--tcp"),
)
_IGNORED_VALUES = (
    *("--cycle-time-ms", "--cache-capacity", "--num-nccl-streams", "--thread-affinity"),
    *("--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample"),
    *("--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise", "--stall-check-shutdown-time-seconds"),
)
_LSF = "there is no launcher for LSF: let jsrun start `tfcollective agent` for a job of --wait-for-agents N"


def _set_defaults(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """Makes the configuration file's values the defaults of the options that the command line does not give."""
    del parameter
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read_config(path, context.command)}
    return path


#: The options of a job, by field.
JOB_OPTIONS = {name: DeclaredOption(one, name) for name, one in OPTIONS.items()}


def _section(heading: str, *own: GroupedOption) -> tuple[GroupedOption, ...]:
    """The declared options that have this heading, and after them ``own``."""
    declared = (*JOB_OPTIONS.values(), *PLATFORM_OPTIONS)
    return (*(one for one in declared if one.heading == heading), *group(heading, *own))


#: All that are shown: those of a job, and those that say where it runs, or are short for others.
RUN_OPTIONS: tuple[GroupedOption, ...] = (
    *_section(
        "Processes",
        option(
            "--ps-policy", type=click.Choice(PS_POLICIES), help="Refuse a ps role, or leave it out of the job. [error]"
        ),
        option("-m", "module", common=True, metavar="MODULE", help="Run a Python module instead of a command."),
    ),
    *_section(
        "Hosts",
        option(
            "-hostfile",
            "--hostfile",
            common=True,
            type=click.Path(),
            metavar="F",
            help="File with the hosts, one a line.",
        ),
        option(
            "--launcher",
            common=True,
            metavar="NAME",
            help=f"Platform: local, ssh, agents, mpi, {', '.join(CLUSTERS)}. [by the options]",
        ),
    ),
    *OF_CLUSTERS,
    *_section("Failures", option("--no-stall-check", is_flag=True, help="The same as --stall-warning 0.")),
    *_section("Output", option("--verbose", is_flag=True, help="The same as --log-level info.")),
    *_section("Performance"),
    *_section(
        "Compatibility",
        option("--mpi", is_flag=True, help="The same as --engine mpi; horovodrun's name."),
        option(
            "--config-file",
            common=True,
            type=click.Path(),
            is_eager=True,
            callback=_set_defaults,
            metavar="F",
            help="YAML file with options; the command line has precedence.",
        ),
    ),
    option(
        "--print-plan", "--dry-run", common=True, is_flag=True, help="Print which ranks would run where; start nothing."
    ),
    option("-cb", "--check-build", is_flag=True, help="Print what this installation supports; start nothing."),
)

_NOTED = f"{__name__}.ignored"


def _note_ignored(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is not None:
        context.meta.setdefault(_NOTED, []).append(parameter.opts[0])


def _ignored(flags: str, **kind: Any) -> click.Option:
    return click.Option((flags,), hidden=True, expose_value=False, callback=_note_ignored, **kind)


#: Without effect, and not in the help.
IGNORED_OPTIONS = (
    *(_ignored(one, is_flag=True, default=None) for one in _IGNORED_FLAGS),
    *(_ignored(one) for one in _IGNORED_VALUES),
)


def _refused(advice: str, *flags: str, **kind: Any) -> click.Option:
    def refuse(context: click.Context, parameter: click.Parameter, value: object) -> None:
        del context
        if value:
            raise UnsupportedError(f"{parameter.opts[0]}: {advice}")

    return click.Option(flags, hidden=True, expose_value=False, callback=refuse, **kind)


#: horovodrun's options whose meaning is not there: an error that says what to do, and not in the help.
REFUSED_OPTIONS = (
    _refused(_LSF, "--jsrun", is_flag=True),
    _refused(_LSF, "--binding-args"),
)


def warn_of_ignored(context: click.Context) -> None:
    """Prints one line that names the options given that have no effect here."""
    noted = context.meta.get(_NOTED)
    if noted:
        click.echo(f"tfcollective: no effect here: {', '.join(noted)}", err=True)


def job_spec(options: Mapping[str, Any], command: tuple[str, ...], *, in_image: bool = False) -> tuple[str, JobSpec]:
    """The launcher's name and the job that the values of the command line mean.

    ``in_image``: neither the variables nor the directory of this process count where the job runs. Raises ConfigError.
    """
    settings = Settings() if in_image else Settings.load(without_outer_job(environ_snapshot()))
    given = read_options(_given(options), here=not in_image)
    name = launcher_of(options, given, given.get("engine", settings.engine))
    refuse_options_of_others(name, options)
    launcher = find_launcher(name)
    spec = build_job(
        command,
        {**given, "platform": given_to(name, options)},
        replace(settings, ps_policy=options["ps_policy"] or settings.ps_policy),
        granted=launcher.granted_hosts(),
        instead=launcher.else_ranks,
    )
    return name, spec


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the job that are given, also by those that are short for others."""
    said = {name: one.given(options) for name, one in JOB_OPTIONS.items()}
    if options["verbose"]:
        said["log_level"] = said["log_level"] or "info"
    if options["no_stall_check"]:
        said["stall_warning"] = 0.0
    if options["mpi"]:
        if said["engine"] not in (None, "mpi"):
            raise ConfigError(f"--mpi means --engine mpi and cannot be combined with --engine {said['engine']}")
        said["engine"] = "mpi"
    if options["hostfile"] is not None:
        if said["hosts"] is not None:
            raise ConfigError("-H and --hostfile cannot be combined: give one of them")
        said["hosts"] = Path(options["hostfile"])
    return said
