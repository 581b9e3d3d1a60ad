"""The options of ``tfcollective run``: what can be typed, and the job that it means."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfcollective._base.addresses import is_own_host
from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.log import HOROVOD_LEVELS, LEVELS
from tfcollective._base.settings import ENGINES, TRANSPORTS, Settings, environ_snapshot, without_outer_job
from tfcollective._base.task_specs import TaskSpec, trainers_of
from tfcollective._base.tasks import PS_POLICIES, TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import PortRange
from tfcollective._cli.config_file import read_config, read_text
from tfcollective._cli.groups import GroupedOption, group, option
from tfcollective._cli.platforms import PLATFORMS, cluster_options, refuse_options_of_others
from tfcollective._cli.task_spec import parse_task_specs
from tfcollective._cli.values import absolute, assignments, command_line, listed, words
from tfcollective._launch.launcher import find_launcher
from tfcollective._launch.plan.hosts import Host, parse_hostfile, parse_hosts
from tfcollective._launch.plan.rank_variables import bucket_variables, gpu_options
from tfcollective._launch.plan.spec import FROM_SETTINGS, ON_ERROR, JobSpec, first_size, from_settings, usable_hosts

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


def _level(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del context, parameter
    return None if value is None else HOROVOD_LEVELS.get(value, value)


_SECONDS: dict[str, Any] = {"type": float, "metavar": "S"}
RUN_OPTIONS: tuple[GroupedOption, ...] = (
    *group(
        "Processes",
        option("-np", "--num-proc", type=click.IntRange(min=1), metavar="N", help="Number of ranks. [all slots]"),
        option(
            "--task-spec",
            multiple=True,
            metavar="ROLE:K=V,...",
            help="Instead of -np: a role and its fields, once a role.",
        ),
        option(
            "--ps-policy", type=click.Choice(PS_POLICIES), help="Refuse a ps role, or leave it out of the job. [error]"
        ),
        option("-m", "module", metavar="MODULE", help="Run a Python module instead of a command."),
        option("--cwd", metavar="DIR", help="Working directory of the ranks. [the current one]"),
        option("--env", multiple=True, metavar="K=V", help="Set a variable for the ranks; may be repeated."),
        option(
            "--pass-env", multiple=True, metavar="GLOB", help="Pass these variables to other hosts; may be repeated."
        ),
        option("--gpus-per-proc", type=click.IntRange(min=1), metavar="N", help="GPUs of each rank. [it sees all]"),
        option("--oversubscribe-gpus", is_flag=True, help="Let ranks share GPUs (NCCL 2.30.3 or newer)."),
    ),
    *group(
        "Hosts",
        option(
            "--launcher",
            metavar="NAME",
            help=f"Platform: local, ssh, agents, mpi, {', '.join(PLATFORMS)}. [by the options]",
        ),
        option("-H", "--hosts", metavar="HOST:N,...", help="Hosts, and at most how many ranks on each."),
        option("-hostfile", "--hostfile", type=click.Path(), metavar="F", help="File with the hosts, one a line."),
        option(
            *("--network-interface", "--network-interfaces"),
            multiple=True,
            metavar="NAME|CIDR",
            help="Interface to use on each host; may be repeated. [the one with the route to the launcher]",
        ),
        option("-p", "--ssh-port", type=int, metavar="PORT", help="Port of sshd on the hosts. [ssh's own choice]"),
        option("-i", "--ssh-identity-file", metavar="F", help="Private key for ssh. [ssh's own choice]"),
        option("--ssh-options", default="", metavar="TEXT", help="Further arguments for ssh, quoted as one."),
        option("--remote-python", metavar="PATH", help="Interpreter on the other hosts. [the path of this one]"),
        option(
            "--wait-for-agents",
            type=click.IntRange(min=1),
            metavar="N",
            help="Wait for N agents that you start yourself.",
        ),
        option(
            "--port", type=click.IntRange(0, 65535), default=0, metavar="P", help="Port at which agents join. [any]"
        ),
        option("--key-file", type=click.Path(), metavar="F", help="File in which agents find the job key."),
    ),
    *cluster_options(),
    *group(
        "Failures",
        option(
            *("--min-np", "--min-num-proc", "min_proc"),
            type=click.IntRange(min=1),
            metavar="N",
            help="Go on without ranks that are lost, down to N. [a lost rank ends the job]",
        ),
        option(
            *("--max-np", "--max-num-proc", "max_proc"),
            type=click.IntRange(min=1),
            metavar="N",
            help="Let a job with --min-np grow to N. [-np; all slots of --host-discovery-script]",
        ),
        option(
            "--host-discovery-script",
            metavar="COMMAND",
            help="Command that prints the hosts, one a line, each second: the job follows them.",
        ),
        option(
            *("--slots", "--slots-per-host", "slots"),
            type=click.IntRange(min=1),
            metavar="N",
            help="Slots of hosts that the script prints without a number.",
        ),
        option(
            "--elastic-timeout",
            **_SECONDS,
            help=f"Time that too few ranks wait for others. [{Settings.elastic_timeout:g}]",
        ),
        option(
            "--no-warm-spares",
            is_flag=True,
            help="With --min-np, keep no process ready on each host to take the place of a lost rank.",
        ),
        option(
            "--on-error",
            type=click.Choice(ON_ERROR),
            help="With --min-np, what an exception of the program costs: the job, or its rank. [end]",
        ),
        option(
            "--reset-limit",
            type=click.IntRange(min=0),
            metavar="N",
            help="End the job at the change of its world after the N-th. [none]",
        ),
        option(
            "--blacklist-cooldown-range",
            type=click.IntRange(1, 3600),
            nargs=2,
            metavar="MIN MAX",
            help="Seconds without new ranks on a host that lost one, doubled each time. [30 from the second on, 3600]",
        ),
        option("--blacklist", multiple=True, metavar="HOST,...", help="Hosts never to use; may be repeated."),
        option(
            *("--max-restarts", "--nb-retries"),
            type=click.IntRange(min=0),
            default=0,
            metavar="N",
            help="Start all ranks again when one fails, at most N times. [0; 3 for `manifest`]",
        ),
        option(
            "--start-timeout",
            **_SECONDS,
            help=f"Limit for all ranks to start. [{Settings.start_timeout:g}; {TIMING.pods_start:g} for `manifest`]",
        ),
        option(
            "--op-timeout",
            "--gloo-timeout-seconds",
            **_SECONDS,
            help=f"Limit for one collective. [{Settings.op_timeout:g}]",
        ),
        option(
            *("--stall-warning", "--stall-check-warning-time-seconds"),
            **_SECONDS,
            help=f"Warn of a slow collective, end a deadlock of all ranks; 0: never. [{Settings.stall_warning:g}]",
        ),
        option("--no-stall-check", is_flag=True, help="The same as --stall-warning 0."),
        option(
            "--host-timeout",
            **_SECONDS,
            help=f"A host that is silent for so long is lost. [{Settings.host_timeout:g}]",
        ),
        option(
            "--grace", **_SECONDS, help=f"Time from SIGTERM to SIGKILL, for a last checkpoint. [{Settings.grace:g}]"
        ),
        option(
            "--preemption-file",
            type=click.Path(),
            metavar="F",
            help="The ranks of a host leave when it has this file.",
        ),
        option(
            "--preemption-command",
            metavar="TEXT",
            help="They leave when this command, run there every few seconds, exits with 0.",
        ),
        option("--evaluator-grace", **_SECONDS, help="Time that an evaluator has after training. [3600]"),
    ),
    *group(
        "Output",
        option(
            *("--log-dir", "--output-filename"),
            type=click.Path(),
            metavar="DIR",
            help="Write the output of rank N to DIR/rank.N/stdout and stderr.",
        ),
        option(
            "--timeline",
            "--timeline-filename",
            type=click.Path(),
            metavar="F",
            help="Write a trace of all ranks' operations.",
        ),
        option("--no-prefix", is_flag=True, help="Leave out the rank at the start of output lines."),
        option(
            "-prefix-timestamp",
            "--prefix-output-with-timestamp",
            is_flag=True,
            help="Put the time at the start of output lines.",
        ),
        option(
            "--log-level",
            type=click.Choice((*LEVELS, *HOROVOD_LEVELS), case_sensitive=False),
            callback=_level,
            help="Log level of launcher, agents and ranks. [warning]",
        ),
        option("--verbose", is_flag=True, help="The same as --log-level info."),
    ),
    *group(
        "Performance",
        option("--engine", type=click.Choice(ENGINES), help="Library that moves data between ranks. [native]"),
        option("--mpi-args", metavar="TEXT", help="Further arguments for mpirun (--engine mpi), quoted as one."),
        option(
            "--port-range",
            metavar="LOW-HIGH",
            help="Ports that the coordinator and the ranks listen on, for firewalls. [any]",
        ),
        option("--transport", type=click.Choice(TRANSPORTS), help="auto: shared memory inside a node. [auto]"),
        option(
            *("--bucket-mb", "--fusion-threshold-mb", "bucket_mb"),
            metavar="MB",
            help="MiB of gradients reduced together, or auto: by the speed of the link. [auto]",
        ),
    ),
    *group(
        "Compatibility",
        option("--horovod-compat", is_flag=True, help="In the ranks, `import horovod` gives tfcollective."),
        option("--emit-tf-config", is_flag=True, help="Set TF_CONFIG for each rank, for tf.distribute."),
        option("--mpi", is_flag=True, help="The same as --engine mpi; horovodrun's name."),
        option(
            "--config-file",
            type=click.Path(),
            is_eager=True,
            callback=_set_defaults,
            metavar="F",
            help="YAML file with options; the command line has precedence.",
        ),
    ),
    option("--print-plan", "--dry-run", is_flag=True, help="Print which ranks would run where; start nothing."),
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


def choose_launcher(options: Mapping[str, Any], hosts: Sequence[Host], engine: str) -> str:
    """The name of the launcher that runs a job with these options on this engine."""
    asked = options["launcher"]
    refuse_options_of_others(asked, options)
    _refuse_options_of_agents(options)
    if engine == "mpi" or asked == "mpi":
        if engine != "mpi":
            raise ConfigError("--launcher mpi needs --engine mpi, which starts the ranks with mpirun by itself")
        if asked not in (None, "mpi") or options["wait_for_agents"] is not None:
            raise ConfigError("--engine mpi starts the ranks with mpirun: leave out --launcher and --wait-for-agents")
        return "mpi"
    if options["mpi_args"] is not None:
        raise ConfigError("--mpi-args needs --engine mpi")
    if asked == "local" and not all(is_own_host(host.name) for host in hosts):
        raise ConfigError("--launcher local runs on this machine only: leave out -H and --hostfile")
    if asked == "agents" and options["wait_for_agents"] is None:
        raise ConfigError("--launcher agents needs --wait-for-agents N")
    if options["host_discovery_script"] is not None:
        if asked not in (None, "ssh") or hosts or options["wait_for_agents"] is not None:
            raise ConfigError(
                "--host-discovery-script says which hosts ssh starts agents on: leave out --launcher, -H, --hostfile "
                "and --wait-for-agents"
            )
        return "ssh"
    if asked is not None:
        return str(asked)
    if options["wait_for_agents"] is not None:
        if hosts:
            raise ConfigError("--wait-for-agents starts no agents on hosts: leave out -H and --hostfile")
        return "agents"
    return "local" if all(is_own_host(host.name) for host in hosts) else "ssh"


def _refuse_options_of_agents(options: Mapping[str, Any]) -> None:
    for name in ("port", "key_file") if options["wait_for_agents"] is None else ():
        if options[name]:
            raise ConfigError(f"--{name.replace('_', '-')} needs --wait-for-agents N")


def job_spec(options: Mapping[str, Any], command: tuple[str, ...]) -> tuple[str, JobSpec]:
    """The launcher's name and the job."""
    settings = Settings.load(without_outer_job(environ_snapshot()))
    hosts = _hosts(options["hosts"], options["hostfile"])
    engine = _engine(options, settings)
    launcher = choose_launcher(options, hosts, engine)
    specs = _specs(options, options["ps_policy"] or settings.ps_policy)
    blacklist, discovery = listed(options["blacklist"]), command_line(options, "host_discovery_script")
    hosts = usable_hosts(hosts or find_launcher(launcher).granted_hosts(), blacklist)
    tasks, min_proc = _world(options, hosts, specs, discovery)
    spec = JobSpec(
        command=command,
        num_proc=len(tasks),
        tasks=tasks,
        task_specs=specs,
        max_restarts=options["max_restarts"],
        min_proc=min_proc,
        max_proc=options["max_proc"],
        discovery=discovery,
        slots=options["slots"],
        reset_limit=options["reset_limit"],
        on_error=options["on_error"],
        cooldown_range=options["blacklist_cooldown_range"],
        blacklist=blacklist,
        warm_spares=not options["no_warm_spares"],
        preemption_file=absolute(options["preemption_file"]),
        preemption_command=command_line(options, "preemption_command"),
        env={
            **bucket_variables(options["bucket_mb"]),
            **gpu_options(options["gpus_per_proc"], shared=options["oversubscribe_gpus"]),
            **assignments(options, "env"),
        },
        timeline=absolute(options["timeline"] or settings.timeline),
        emit_tf_config=options["emit_tf_config"],
        horovod_compat=options["horovod_compat"],
        log_dir=absolute(options["log_dir"]),
        prefix=not options["no_prefix"],
        timestamps=options["prefix_output_with_timestamp"],
        cwd=absolute(options["cwd"]),
        hosts=tuple(hosts),
        network_interfaces=listed(options["network_interface"]),
        pass_env=listed(options["pass_env"]),
        platform=_platform(launcher, options),
        **{**from_settings(settings), **_given(options), "engine": engine},
    )
    return launcher, spec


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of fields that the settings, or the job itself, have a default for."""
    names = (*FROM_SETTINGS, "evaluator_grace")
    given = {name: options[name] for name in names if options[name] is not None}
    if "port_range" in given:
        given["port_range"] = _port_range(given["port_range"])
    quiet = {"stall_warning": 0.0} if options["no_stall_check"] else {}
    return {**({"log_level": "info"} if options["verbose"] else {}), **given, **quiet}


def _port_range(text: str) -> PortRange:
    try:
        return PortRange.parse(text)
    except ConfigError as error:
        raise ConfigError(f"--port-range: {error}") from error


def _engine(options: Mapping[str, Any], settings: Settings) -> str:
    if not options["mpi"]:
        return str(options["engine"] or settings.engine)
    if options["engine"] not in (None, "mpi"):
        raise ConfigError(f"--mpi means --engine mpi and cannot be combined with --engine {options['engine']}")
    return "mpi"


def _hosts(text: str | None, path: str | None) -> tuple[Host, ...]:
    if text is not None and path is not None:
        raise ConfigError("-H and --hostfile cannot be combined: give one of them")
    if text is not None:
        return parse_hosts(text)
    if path is None:
        return ()
    return parse_hostfile(read_text("--hostfile", path), path)


def _specs(options: Mapping[str, Any], ps_policy: str) -> dict[str, TaskSpec]:
    if options["num_proc"] is not None and options["task_spec"]:
        raise ConfigError("-np and --task-spec cannot be combined: give either -np N or --task-spec ROLE:instances=N")
    return parse_task_specs(options["task_spec"], ps_policy) if options["task_spec"] else {}


def _world(
    options: Mapping[str, Any], hosts: Sequence[Host], specs: Mapping[str, TaskSpec], discovery: Sequence[str]
) -> tuple[tuple[TaskKey, ...], int | None]:
    """The tasks that have a rank at first, in rank order, and how few ranks are enough."""
    tasks = trainers_of(specs)
    num_proc, min_proc = first_size(
        options["num_proc"],
        min_proc=options["min_proc"],
        max_proc=options["max_proc"],
        hosts=hosts,
        discovery=discovery,
        tasks=len(tasks),
    )
    if num_proc is None:
        chosen = PLATFORMS.get(options["launcher"] or "")
        more = ", or hosts with slots: -H host1:4" if chosen is None else chosen.else_ranks
        raise ConfigError(f"the number of ranks is missing: give -np N or --task-spec ROLE:instances=N{more}")
    return tasks or workers(num_proc), min_proc


def _platform(launcher: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if launcher == "agents":
        key_file = absolute(options["key_file"])
        return {"agents": options["wait_for_agents"], "port": options["port"], "key_file": key_file}
    if launcher in PLATFORMS:
        return PLATFORMS[launcher].settings(options)
    if launcher not in ("ssh", "mpi"):
        return {}
    return {
        **({"args": words(options, "mpi_args")} if launcher == "mpi" else {}),
        "port": options["ssh_port"],
        "identity_file": options["ssh_identity_file"],
        "options": words(options, "ssh_options"),
        "python": options["remote_python"] or sys.executable,
    }
