"""The options of ``tfcollective run``: what can be typed, and the job that it means."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tfcollective.cli.config_file import read_config, read_text
from tfcollective.cli.groups import GroupedOption, group, option
from tfcollective.cli.task_spec import parse_task_specs
from tfcollective.cli.yarn_options import YARN_OPTIONS, refuse_yarn_options, yarn_platform
from tfcollective.errors import ConfigError
from tfcollective.launch.plan.hosts import Host, parse_hostfile, parse_hosts, share_out
from tfcollective.launch.plan.rank_variables import bucket_variables, gpu_options
from tfcollective.launch.plan.spec import FROM_SETTINGS, JobSpec, from_settings
from tfcollective.log import LEVELS
from tfcollective.machine.network import is_this_machine
from tfcollective.settings import ENGINES, TRANSPORTS, Settings
from tfcollective.task_specs import PS_POLICIES, TaskSpec, trainers_of
from tfcollective.tasks import TaskKey, workers

# horovodrun has six levels of logging, we have four.
_LEVELS = {"trace": "debug", "fatal": "error"}
# What horovodrun's users may have in their scripts, and what is different here by nature: flags, and those with values.
_IGNORED_FLAGS = (
    *("--gloo", "--disable-cache", "--hierarchical-allreduce/--no-hierarchical-allreduce", "--stall-check"),
    *("--hierarchical-allgather/--no-hierarchical-allgather", "--torus-allreduce/--no-torus-allreduce"),
    *("--autotune/--no-autotune", "--timeline-mark-cycles/--no-timeline-mark-cycles"),
    *("--mpi-threads-disable/--no-mpi-threads-disable", "--log-with-timestamp/--log-without-timestamp"),
    "--log-hide-timestamp/--no-log-hide-timestamp",
)
_IGNORED_VALUES = (
    *("--cycle-time-ms", "--cache-capacity", "--num-nccl-streams", "--thread-affinity"),
    *("--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample"),
    *("--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise", "--stall-check-shutdown-time-seconds"),
)


def _set_defaults(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """What a configuration file says counts where the command line says nothing."""
    del parameter
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read_config(path, context.command)}
    return path


def _level(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del context, parameter
    return None if value is None else _LEVELS.get(value, value)


_SECONDS: dict[str, Any] = {"type": float, "metavar": "S"}
RUN_OPTIONS: tuple[GroupedOption, ...] = (
    *group(
        "Processes",
        option("-np", "--num-proc", type=click.IntRange(min=1), metavar="N", help="How many processes. [all slots]"),
        option("--task-spec", multiple=True, metavar="ROLE:K=V,...", help="A role and how many; not -np."),
        option("--ps-policy", type=click.Choice(PS_POLICIES), help="A ps role is an error, or left out. [error]"),
        option("-m", "module", metavar="MODULE", help="Run a Python module instead of a command."),
        option("--cwd", metavar="DIR", help="Where the ranks run. [here]"),
        option("--env", multiple=True, metavar="K=V", help="Set a variable for the ranks; may be repeated."),
        option(
            "--pass-env", multiple=True, metavar="GLOB", help="Hand on variables of these names to other hosts, too."
        ),
        option("--gpus-per-proc", type=click.IntRange(min=1), metavar="N", help="Give each rank N GPUs. [sees all]"),
        option("--oversubscribe-gpus", is_flag=True, help="Ranks may share GPUs (NCCL 2.30.3 or newer)."),
    ),
    *group(
        "Hosts",
        option("--launcher", metavar="NAME", help="The platform to run on: local, ssh, yarn, ... [from the hosts]"),
        option("-H", "--hosts", metavar="HOST:N,...", help="Run on these hosts, so many ranks on each."),
        option("-hostfile", "--hostfile", type=click.Path(), metavar="F", help="The same, one host a line."),
        option(
            *("--network-interface", "--network-interfaces"),
            multiple=True,
            metavar="NAME|CIDR",
            help="The interface to use on each host; may be repeated. [the one that leads to the launcher]",
        ),
        option("-p", "--ssh-port", type=int, metavar="PORT", help="The port of sshd on the hosts."),
        option("-i", "--ssh-identity-file", metavar="F", help="The private key for the hosts."),
        option("--ssh-options", default="", metavar="TEXT", help="More arguments for ssh, as one text."),
        option("--remote-python", metavar="PATH", help="The interpreter on the other hosts. [this one's path]"),
        option(
            "--wait-for-agents", type=click.IntRange(min=1), metavar="N", help="Let others start N agents; say how."
        ),
        option("--port", type=click.IntRange(0, 65535), default=0, metavar="P", help="Where agents find us. [any]"),
        option("--key-file", type=click.Path(), metavar="F", help="Where to put the job key for agents."),
    ),
    *group("YARN", *YARN_OPTIONS),
    *group(
        "Failures",
        option(
            *("--max-restarts", "--nb-retries"),
            type=click.IntRange(min=0),
            default=0,
            metavar="N",
            help="Start all ranks again when one fails, at most N times. [0]",
        ),
        option(
            "--start-timeout",
            **_SECONDS,
            help=f"How long ranks wait for each other to start. [{Settings.start_timeout:g}]",
        ),
        option(
            "--op-timeout",
            "--gloo-timeout-seconds",
            **_SECONDS,
            help=f"How long a collective may take. [{Settings.op_timeout:g}]",
        ),
        option(
            *("--stall-warning", "--stall-check-warning-time-seconds"),
            **_SECONDS,
            help=f"Warn of a collective that takes longer; 0: never. [{Settings.stall_warning:g}]",
        ),
        option("--no-stall-check", is_flag=True, help="Never warn: --stall-warning 0."),
        option(
            "--host-timeout",
            **_SECONDS,
            help=f"How long a host may be silent before it is lost. [{Settings.host_timeout:g}]",
        ),
        option(
            "--grace", **_SECONDS, help=f"Time for a last checkpoint, from SIGTERM to SIGKILL. [{Settings.grace:g}]"
        ),
        option("--evaluator-grace", **_SECONDS, help="How long an evaluator may go on after training. [3600]"),
    ),
    *group(
        "Output",
        option(
            *("--log-dir", "--output-filename"),
            type=click.Path(),
            metavar="DIR",
            help="Keep every rank's output in DIR/rank.N/stdout and stderr.",
        ),
        option(
            "--timeline", "--timeline-filename", type=click.Path(), metavar="F", help="Write a trace of all operations."
        ),
        option("--no-prefix", is_flag=True, help="Do not start lines of output with the rank."),
        option(
            "-prefix-timestamp",
            "--prefix-output-with-timestamp",
            is_flag=True,
            help="Start lines of output with the time.",
        ),
        option(
            "--log-level",
            type=click.Choice((*LEVELS, *_LEVELS), case_sensitive=False),
            callback=_level,
            help="What the launcher, the agents and the ranks log. [warning]",
        ),
        option("--verbose", is_flag=True, help="Log what the launcher, the agents and the ranks do."),
    ),
    *group(
        "Performance",
        option("--engine", type=click.Choice(ENGINES), help="Who moves data between the ranks. [native]"),
        option("--mpi-args", metavar="TEXT", help="With --engine mpi: more arguments for mpirun, as one text."),
        option("--transport", type=click.Choice(TRANSPORTS), help="How ranks of one node move data. [auto]"),
        option(
            *("--bucket-mb", "--fusion-threshold-mb", "bucket_mb"),
            metavar="MB",
            help="How many gradients to reduce together, or auto. [auto: what suits the link]",
        ),
    ),
    *group(
        "Compatibility",
        option("--horovod-compat", is_flag=True, help="Let `import horovod` give the ranks tfcollective."),
        option("--emit-tf-config", is_flag=True, help="Give each rank a TF_CONFIG, for tf.distribute."),
        option("--mpi", is_flag=True, help="The same as --engine mpi, as horovodrun calls it."),
        option(
            "--config-file",
            type=click.Path(),
            is_eager=True,
            callback=_set_defaults,
            metavar="F",
            help="Take options from a YAML file, as horovodrun does, where the command line does not give them.",
        ),
    ),
    option("--print-plan", "--dry-run", is_flag=True, help="Print what would run, and where, and run nothing."),
    option("-cb", "--check-build", is_flag=True, help="Print what this installation can do, and run nothing."),
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


def warn_of_ignored(context: click.Context) -> None:
    """Says once which options were given that have no effect here."""
    noted = context.meta.get(_NOTED)
    if noted:
        click.echo(f"tfcollective: no effect here: {', '.join(noted)}", err=True)


def choose_launcher(options: Mapping[str, Any], hosts: Sequence[Host], engine: str) -> str:
    """Who runs a job with these options on this engine."""
    asked = options["launcher"]
    if asked != "yarn":
        refuse_yarn_options(options)
    if engine == "mpi" or asked == "mpi":
        if asked not in (None, "mpi") or engine != "mpi" or options["wait_for_agents"] is not None:
            raise ConfigError("--engine mpi has its processes started by mpirun: use it without --launcher and agents")
        return "mpi"
    if options["mpi_args"] is not None:
        raise ConfigError("--mpi-args are for mpirun: they need --engine mpi")
    if asked == "local" and not all(is_this_machine(host.name) for host in hosts):
        raise ConfigError("--launcher local runs on this machine only: use it without -H and --hostfile")
    if asked == "agents" and options["wait_for_agents"] is None:
        raise ConfigError("--launcher agents needs --wait-for-agents N")
    if asked is not None:
        return str(asked)
    if options["wait_for_agents"] is not None:
        if hosts:
            raise ConfigError("--wait-for-agents starts no agents itself: use it without -H and --hostfile")
        return "agents"
    return "local" if all(is_this_machine(host.name) for host in hosts) else "ssh"


def job_spec(options: Mapping[str, Any], command: tuple[str, ...]) -> tuple[str, JobSpec]:
    """The launcher's name and the job."""
    settings = Settings.load()
    hosts = _hosts(options["hosts"], options["hostfile"])
    engine = _engine(options, settings)
    launcher = choose_launcher(options, hosts, engine)
    specs = _specs(options, options["ps_policy"] or settings.ps_policy)
    tasks = _world(options, hosts, specs)
    spec = JobSpec(
        command=command,
        num_proc=len(tasks),
        tasks=tasks,
        task_specs=specs,
        max_restarts=options["max_restarts"],
        env={
            **bucket_variables(options["bucket_mb"]),
            **gpu_options(options["gpus_per_proc"], shared=options["oversubscribe_gpus"]),
            **_parse_env(options["env"]),
        },
        timeline=_absolute(options["timeline"] or settings.timeline),
        emit_tf_config=options["emit_tf_config"],
        horovod_compat=options["horovod_compat"],
        log_dir=_absolute(options["log_dir"]),
        prefix=not options["no_prefix"],
        timestamps=options["prefix_output_with_timestamp"],
        cwd=_absolute(options["cwd"]),
        hosts=() if launcher == "local" else tuple(hosts),
        network_interfaces=_split(options["network_interface"]),
        pass_env=_split(options["pass_env"]),
        platform=_platform(launcher, options),
        **{**from_settings(settings), **_given(options), "engine": engine},
    )
    return launcher, spec


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of fields that the settings, or the job itself, have a default for."""
    given = {name: options[name] for name in (*FROM_SETTINGS, "evaluator_grace") if options[name] is not None}
    quiet = {"stall_warning": 0.0} if options["no_stall_check"] else {}
    return {**({"log_level": "info"} if options["verbose"] else {}), **given, **quiet}


def _engine(options: Mapping[str, Any], settings: Settings) -> str:
    if not options["mpi"]:
        return str(options["engine"] or settings.engine)
    if options["engine"] not in (None, "mpi"):
        raise ConfigError(f"--mpi asks for the engine mpi, --engine {options['engine']} for another")
    return "mpi"


def _hosts(text: str | None, path: str | None) -> tuple[Host, ...]:
    if text is not None and path is not None:
        raise ConfigError("give the hosts with -H or with --hostfile, not with both")
    if text is not None:
        return parse_hosts(text)
    if path is None:
        return ()
    return parse_hostfile(read_text("--hostfile", path), path)


def _specs(options: Mapping[str, Any], ps_policy: str) -> dict[str, TaskSpec]:
    if options["num_proc"] is not None and options["task_spec"]:
        raise ConfigError("how many processes? give either -np N or --task-spec ROLE:instances=N")
    return parse_task_specs(options["task_spec"], ps_policy) if options["task_spec"] else {}


def _world(options: Mapping[str, Any], hosts: Sequence[Host], specs: Mapping[str, TaskSpec]) -> tuple[TaskKey, ...]:
    """The tasks that have a rank, in rank order."""
    tasks = trainers_of(specs)
    num_proc = len(tasks) if tasks else options["num_proc"]
    if hosts:
        num_proc = sum(share.count for share in share_out(hosts, num_proc))
    if num_proc is None:
        raise ConfigError(
            "how many processes? give -np N, --task-spec ROLE:instances=N, or hosts with slots: -H host1:4,host2:4"
        )
    return tasks or workers(num_proc)


def _platform(launcher: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if launcher == "agents":
        key_file = _absolute(options["key_file"])
        return {"agents": options["wait_for_agents"], "port": options["port"], "key_file": key_file}
    if launcher == "yarn":
        return yarn_platform(options)
    if launcher not in ("ssh", "mpi"):
        return {}
    return {
        **({"args": _words("--mpi-args", options["mpi_args"] or "")} if launcher == "mpi" else {}),
        "port": options["ssh_port"],
        "identity_file": options["ssh_identity_file"],
        "options": _words("--ssh-options", options["ssh_options"]),
        "python": options["remote_python"] or sys.executable,
    }


def _words(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: {error}") from error


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def _split(texts: Sequence[str]) -> tuple[str, ...]:
    """Options that may be repeated may as well hold several values with commas."""
    return tuple(one for text in texts for one in text.split(",") if one)


def _parse_env(assignments: Sequence[str]) -> dict[str, str]:
    env: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise ConfigError(f"--env takes NAME=VALUE, not {assignment!r}")
        env[name] = value
    return env
