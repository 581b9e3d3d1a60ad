"""The specification of a job: values."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.options import (
    COMMAND,
    FLAG,
    NAMES,
    PATH,
    PORTS,
    VARIABLES,
    Kind,
    Option,
    check_options,
    choice,
    compatibility,
    count,
    failures,
    hosting,
    options_of,
    output,
    performance,
    processes,
    seconds,
)
from tfcollective._base.processes import program_of
from tfcollective._base.settings import BATCH_NORMS, ENGINES, TRANSPORTS, Settings
from tfcollective._base.task_specs import TaskSpec, auxiliary_tasks_of, least_trainers_of, parse_task_specs
from tfcollective._base.tasks import EVALUATOR, TENSORBOARD, WORKER, TaskKey, trainers, workers
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint, PortRange
from tfcollective._base.verdict import Rules
from tfcollective._control.state.rounds import NO_LIMIT, Bounds
from tfcollective._launch.agent.protocol import ProcessOptions
from tfcollective._launch.plan.hosts import Host, parse_hosts, read_hostfile
from tfcollective._launch.plan.rank_variables import bucket_variables, gpu_options

#: What a manifest has as defaults in place of a job's own.
MANIFEST_DEFAULTS: Mapping[str, Any] = {"max_restarts": 3, "start_timeout": TIMING.pods_start}
END, REPLACE = ON_ERROR = ("end", "replace")  #: see :attr:`JobSpec.on_error`
_TENSORBOARD = (sys.executable, *program_of("tfcollective.auxiliary_tasks._tensorboard_task"))
_LONGEST_COOLDOWN_S = 3600.0
_MOST_MEBIBYTES = 1 << 20
AUTO_WEB = "auto"  #: the value of :attr:`JobSpec.web` for the loopback interface and any port
_RANKS = count(1, 1 << 14, "because the list of all ranks has to fit into one message of the coordinator")


def _read_pair(given: Any) -> Any:
    return tuple(map(seconds().read, given)) if isinstance(given, Iterable) else given


def _unfit_cooldown(value: Any) -> str | None:
    if not isinstance(value, tuple) or len(value) != 2 or not all(isinstance(one, int | float) for one in value):
        return f"expected two numbers of seconds, got {value!r}"
    if 1 <= value[0] <= value[1] <= _LONGEST_COOLDOWN_S:
        return None
    return f"expected 1 <= MIN <= MAX <= {_LONGEST_COOLDOWN_S:g} seconds, got {value[0]:g} and {value[1]:g}"


def _read_mebibytes(given: Any) -> Any:
    return "auto" if str(given).lower() == "auto" else seconds().read(given)


def _unfit_mebibytes(value: Any) -> str | None:
    number = isinstance(value, int | float) and 0 < value < _MOST_MEBIBYTES
    return None if number or value == "auto" else f"expected a number of MiB above 0, or auto, got {value!r}"


def _read_hosts(given: Any) -> Any:
    if isinstance(given, str | os.PathLike):
        return parse_hosts(given) if isinstance(given, str) else read_hostfile(Path(given))
    return tuple(given) if isinstance(given, Iterable) else given


def _unfit_hosts(value: Any) -> str | None:
    fits = isinstance(value, tuple) and all(isinstance(one, Host) for one in value)
    return None if fits else f"expected hosts, as in host1:4,host2:4, got {value!r}"


def _unfit_specs(value: Any) -> str | None:
    fits = isinstance(value, Mapping) and all(isinstance(one, TaskSpec) for one in value.values())
    return None if fits else f"expected a mapping from roles to TaskSpec, got {value!r}"


def _unfit_web(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"expected HOST:PORT or {AUTO_WEB}, got {value!r}"
    try:
        if value != AUTO_WEB:
            Endpoint.parse(value)
    except ConfigError as error:
        return str(error)
    return None


_WEB = Kind(str, _unfit_web, "[HOST:PORT]")
_COOLDOWN = Kind(_read_pair, _unfit_cooldown, "MIN MAX", words=2)
_MEBIBYTES = Kind(_read_mebibytes, _unfit_mebibytes, "MB")
_HOSTS = Kind(_read_hosts, _unfit_hosts, "HOST:N,...")
_TASK_SPECS = Kind(
    lambda given: given if isinstance(given, Mapping) else parse_task_specs(given),
    _unfit_specs,
    "ROLE:K=V,...",
    many=True,
)


@dataclass(frozen=True)
class FunctionCall:
    """A function to call on every rank.

    Attributes:
        payload: function, arguments and keyword arguments, pickled.
        sys_path: where to look for the modules that the pickled objects name.
    """

    payload: bytes = field(repr=False)
    sys_path: tuple[str, ...]


@dataclass(frozen=True)
class JobSpec(ProcessOptions):
    """A job: the value that a command line or a call becomes, and that launchers, platforms and agents get.

    It checks itself when it is made; ConfigError names what cannot be used. Fields with an :class:`Option` are the
    options of a job, which ``docs/reference/job_options.md`` explains. The others follow from them, or are of its run:

    Attributes:
        command: the command that every rank runs.
        tasks: the tasks of the world, in rank order; none for workers only.
        platform: settings that the launcher's platform has besides these.
        call: a function to call instead of ``command``'s own work, or None.
        restarts: the number of times that all ranks have been started again.
        first_generation: the number of the first world.
        key: the job key; None: a new one.
    """

    command: tuple[str, ...]
    num_proc: int = processes(_RANKS, "Number of ranks.", "-np --num-proc", ..., default="all slots", common=True)
    tasks: tuple[TaskKey, ...] = ()
    task_specs: Mapping[str, TaskSpec] = processes(
        _TASK_SPECS, "Instead of -np: a role and its fields, once a role.", "--task-spec", {}, common=True
    )
    env: Mapping[str, str] = processes(
        VARIABLES, "Set a variable for the ranks; may be repeated.", "--env", {}, common=True
    )
    pass_env: tuple[str, ...] = processes(
        NAMES, "Pass these variables to other hosts; may be repeated.", "--pass-env", (), metavar="GLOB"
    )
    gpus_per_proc: int | None = processes(
        count(1), "GPUs of each rank.", "--gpus-per-proc", default="it sees all", common=True
    )
    oversubscribe_gpus: bool = processes(
        FLAG, "Let ranks share GPUs (NCCL 2.30.3 or newer).", "--oversubscribe-gpus", False
    )
    hosts: tuple[Host, ...] = hosting(
        _HOSTS, "Hosts, and at most how many ranks on each.", "-H --hosts", (), common=True
    )
    network_interfaces: tuple[str, ...] = hosting(
        NAMES,
        "Interface to use on each host; may be repeated.",
        "--network-interface --network-interfaces",
        (),
        metavar="NAME|CIDR",
        default="the one with the route to the launcher",
    )
    min_proc: int | None = failures(
        count(1),
        "Go on without ranks that are lost, down to N.",
        "--min-np --min-num-proc",
        default="a lost rank ends the job",
        common=True,
    )
    max_proc: int | None = failures(
        _RANKS,
        "Let a job with --min-np grow to N.",
        "--max-np --max-num-proc",
        default="-np; all slots of --host-discovery-script",
        elastic=True,
        common=True,
    )
    discovery: tuple[str, ...] = failures(
        COMMAND,
        "Command that prints the hosts, one a line, each second: the job follows them.",
        "--host-discovery-script",
        (),
        elastic=True,
    )
    slots: int | None = failures(
        count(1), "Slots of hosts that the script prints without a number.", "--slots --slots-per-host"
    )
    elastic_timeout: float = failures(
        seconds(),
        "How long to wait for replacements below --min-np.",
        "--elastic-timeout",
        Settings.elastic_timeout,
        setting=True,
    )
    warm_spares: bool = failures(
        FLAG,
        "With --min-np, keep no process ready on each host to take the place of a lost rank.",
        "--no-warm-spares",
        True,
    )
    on_error: str | None = failures(
        choice(*ON_ERROR),
        "With --min-np, what an exception of the program costs: the job, or its rank.",
        "--on-error",
        default="end",
        more="With `horovod_compat`, `replace` is the default.",
        elastic=True,
    )
    reset_limit: int | None = failures(
        count(0), "Fail after N membership changes.", "--reset-limit", default="none", elastic=True
    )
    cooldown_range: tuple[float, float] | None = failures(
        _COOLDOWN,
        "Seconds without new ranks on a host that lost one, doubled each time.",
        "--blacklist-cooldown-range",
        default="30 from the second on, 3600",
        elastic=True,
    )
    blacklist: tuple[str, ...] = failures(
        NAMES, "Hosts never to use; may be repeated.", "--blacklist", (), metavar="HOST,..."
    )
    max_restarts: int = failures(
        count(0),
        "Start all ranks again when one fails, at most N times.",
        "--max-restarts --nb-retries",
        0,
        default=f"0; {MANIFEST_DEFAULTS['max_restarts']} for `manifest`",
        common=True,
    )
    start_timeout: float = failures(
        seconds(),
        "Limit for all ranks to start.",
        "--start-timeout",
        Settings.start_timeout,
        default=f"{Settings.start_timeout:g}; {MANIFEST_DEFAULTS['start_timeout']:g} for `manifest`",
        setting=True,
    )
    op_timeout: float = failures(
        seconds(), "Limit for one collective.", "--op-timeout --gloo-timeout-seconds", Settings.op_timeout, setting=True
    )
    stall_warning: float = failures(
        seconds(above_zero=False),
        "Warn of a slow collective, end a deadlock of all ranks; 0: never.",
        "--stall-warning --stall-check-warning-time-seconds",
        Settings.stall_warning,
        setting=True,
    )
    evaluator_grace: float = failures(
        seconds(), "Time that an evaluator has after training.", "--evaluator-grace", 3600.0
    )
    timeline: str | None = output(
        PATH, "Write a trace of all ranks' operations.", "--timeline --timeline-filename", setting=True, common=True
    )
    web: str | None = output(
        _WEB,
        "Serve a page on the job, and metrics; without an address on this machine alone.",
        "--web",
        default="none",
        more="In Python, `auto` stands for no address.",
        common=True,
    )
    engine: str = performance(
        choice(*ENGINES), "Library that moves data between ranks.", "--engine", "native", setting=True
    )
    port_range: PortRange | None = performance(  # noqa: RUF009  it makes a field
        PORTS,
        "Ports that the coordinator and the ranks listen on, for firewalls.",
        "--port-range",
        default="any",
        setting=True,
    )
    transport: str = performance(
        choice(*TRANSPORTS), "auto: shared memory inside a node.", "--transport", "auto", setting=True
    )
    bucket_mb: float | str | None = performance(
        _MEBIBYTES,
        "MiB of gradients reduced together, or auto: by the speed of the link.",
        "--bucket-mb --fusion-threshold-mb",
        default="auto",
    )
    data_parallel: bool = processes(
        FLAG,
        "An unmodified Keras script trains on all ranks, with the numbers of one process.",
        "--data-parallel",
        False,
        common=True,
    )
    batch_norm: str = processes(
        choice(*BATCH_NORMS),
        "With --data-parallel: BatchNormalization over the whole batch, or over each rank's rows.",
        "--batch-norm",
        "global",
        setting=True,
    )
    horovod_compat: bool = compatibility(
        FLAG, "In the ranks, `import horovod` gives tfcollective.", "--horovod-compat", False, common=True
    )
    emit_tf_config: bool = compatibility(
        FLAG, "Set TF_CONFIG for each rank, for tf.distribute.", "--emit-tf-config", False
    )
    platform: Mapping[str, Any] = field(default_factory=dict)
    call: FunctionCall | None = None
    restarts: int = 0
    first_generation: int = 1
    key: bytes | None = field(default=None, repr=False)

    @property
    def rank_env(self) -> dict[str, str]:
        """The additions to the ranks' environment: options that reach them as variables, and the user's variables."""
        return {
            **bucket_variables(self.bucket_mb),
            **gpu_options(self.gpus_per_proc, self.oversubscribe_gpus),
            **self.env,
        }

    @property
    def chosen_options(self) -> tuple[str, ...]:
        """The names of the options that are not as by default."""
        usual = JobSpec(self.command, self.num_proc)
        return tuple(name for name in OPTIONS if getattr(self, name) != getattr(usual, name))

    @property
    def world(self) -> tuple[TaskKey, ...]:
        """The tasks that have a rank, in rank order."""
        return self.tasks or workers(self.num_proc)

    def refuse_hosts(self, platform: str, launcher: str, avoid: str) -> None:
        """Refuses what the job says of its hosts, for a platform that chooses them.

        Args:
            platform: as people call it.
            launcher: its name.
            avoid: what to do in place of a blacklist.

        Raises:
            ConfigError: for hosts.
            UnsupportedError: for a TF_CONFIG, a discovery script or a blacklist.
        """
        chooses = f"{platform} chooses the hosts"
        if self.hosts:
            raise ConfigError(f"{chooses}: use the launcher {launcher!r} without hosts")
        if self.emit_tf_config:
            raise UnsupportedError(
                f"a TF_CONFIG names ports, and only on this machine can free ones be found: not on {platform}"
            )
        if self.discovery:
            raise UnsupportedError(f"discovery: {chooses}: say with max_proc how far the job may grow")
        if self.blacklist:
            raise UnsupportedError(f"blacklist: {chooses}: {avoid}")

    def local_script(self) -> Path | None:
        """The script that the command runs, if it is a file ``x.py`` here and no working directory is given: what the
        nodes of a platform without a shared disk have to be sent."""
        if len(self.command) < 2 or self.command[0] != sys.executable or self.cwd is not None:
            return None
        script = Path(self.command[1])
        return script if script.suffix == ".py" and script.is_file() else None

    def with_script(self, path: str) -> JobSpec:
        """The same job where its script has this path."""
        return replace(self, command=(self.command[0], path, *self.command[2:]))

    @property
    def rules(self) -> Rules:
        """The rules by which the job handles failures."""
        rules = Rules() if self.bounds is None else self.bounds.rules
        return replace(rules, restarts=self.max_restarts - self.restarts)

    @property
    def bounds(self) -> Bounds | None:
        """The bounds on the worlds of an elastic job; None: the job is not elastic."""
        if self.min_proc is None:
            return None
        # A world grows to all slots that a script names, unless the user says how far.
        most = self.max_proc or (NO_LIMIT if self.discovery else self.num_proc)
        return Bounds(
            *(self.min_proc, self.num_proc, most, self.elastic_timeout, self.op_timeout),
            changes=self.reset_limit,
            outlasts_errors=self.on_error == REPLACE or (self.on_error is None and self.horovod_compat),
        )

    def on(self, hosts: Sequence[Host]) -> JobSpec:
        """The job on these hosts, with as many ranks as they have slots for: at least as many as it has now."""
        slots = sum(host.slots for host in hosts)
        count = max(self.num_proc, min(slots, self.max_proc or slots))
        first = 1 + max((task.index for task in self.world if task.type == WORKER), default=-1)
        added = tuple(TaskKey(WORKER, first + number) for number in range(count - self.num_proc))
        return replace(self, hosts=tuple(hosts), num_proc=count, tasks=(*self.world, *added))

    @property
    def auxiliary_tasks(self) -> tuple[TaskKey, ...]:
        """The tasks outside the world."""
        return auxiliary_tasks_of(self.task_specs)

    def command_of(self, task: TaskKey) -> tuple[str, ...]:
        """The command of an auxiliary task: an evaluator runs what the ranks run."""
        if task.type == EVALUATOR:
            return self.command
        spec = self.task_specs[task.type]
        chief = str(self.world[0])
        where = ("--experiment-of", chief) if spec.tb_model_dir is None else ("--logdir", spec.tb_model_dir)
        extra = () if spec.tb_extra_args is None else (f"--extra-args={spec.tb_extra_args}",)
        return (*_TENSORBOARD, "--linger", f"{spec.tensorboard_linger_s:g}", *where, *extra)

    def limit_of(self, task: TaskKey) -> float:
        """Returns how long (s) an auxiliary task may continue after training before it is killed."""
        if task.type == EVALUATOR:
            return self.evaluator_grace
        # It may still be about to start when training ends, and needs a while to end.
        return self.start_timeout + self.task_specs[task.type].tensorboard_linger_s + TIMING.tensorboard_task

    def __post_init__(self) -> None:
        check_options(self)
        if self.tasks and (self.tasks != trainers(self.tasks) or len(self.tasks) != self.num_proc):
            raise ConfigError(f"the tasks of a world of {self.num_proc} stand in rank order")
        if not self.command:
            raise ConfigError("there is no command to run")
        if self.host_timeout < TIMING.least_host_timeout:
            raise ConfigError(
                f"{_title('host_timeout')}: expected {TIMING.least_host_timeout:g} s or more, got "
                f"{self.host_timeout:g}: a heartbeat and its answer may take "
                f"{TIMING.node_heartbeat + TIMING.short_reply:g} s"
            )
        tensorboard = self.task_specs.get(TENSORBOARD)
        if tensorboard is not None and tensorboard.tb_model_dir is None and self.call is None:
            raise ConfigError(
                "task_specs: tensorboard: tb_model_dir: give it: a command does not tell where it writes what to show"
            )
        if self.engine == "horovod" and self.horovod_compat:
            raise ConfigError(
                "horovod_compat puts tfcollective in Horovod's place, the engine horovod runs Horovod: choose"
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        self._take_least_instances()
        if self.min_proc is None:
            self._refuse_elastic_options()
        if self.max_proc is not None and self.max_proc < self.num_proc:
            raise ConfigError(
                f"{_title('max_proc')}: the job starts with {self.num_proc} ranks, more than the {self.max_proc}"
            )
        if self.slots is not None and not self.discovery:
            raise ConfigError(
                f"{_title('slots')}: it is for a discovery script: give each host its slots, as in host1:4"
            )
        if self.min_proc is None:
            return
        if self.min_proc > self.num_proc:
            raise ConfigError(
                f"{_title('min_proc')}: the job starts with {self.num_proc} ranks, fewer than the {self.min_proc} "
                "it needs"
            )
        if self.data_parallel:
            raise ConfigError(f"{_title('data_parallel')}: an elastic job cannot have it: use the callback Elastic")
        if self.engine != "native":
            raise ConfigError(f"{_title('engine')}: an elastic job needs the native engine, not {self.engine}")
        if self.emit_tf_config:
            raise ConfigError(
                f"{_title('emit_tf_config')}: a TF_CONFIG lists the ranks, and those of an elastic job change"
            )
        if self.timeline is not None:
            raise ConfigError(f"{_title('timeline')}: an elastic job has none: its ranks and their numbers change")

    def _refuse_elastic_options(self) -> None:
        for name, one in OPTIONS.items():
            if one.elastic and getattr(self, name) not in (None, ()):
                raise ConfigError(
                    f"{one.title(name)}: it is for an elastic job: say with {_title('min_proc')} how few ranks are "
                    "enough"
                )

    def _take_least_instances(self) -> None:
        """The fields of the workers' spec say how few ranks are enough where the job does not."""
        wanted = least_trainers_of(self.task_specs)
        if wanted is None:
            return
        if self.min_proc not in (None, wanted):
            raise ConfigError(
                f"{_title('min_proc')}: got {self.min_proc}, but min_instances of the workers asks for {wanted}: choose"
            )
        object.__setattr__(self, "min_proc", wanted)


#: The options of a job, by field.
OPTIONS: Mapping[str, Option] = options_of(JobSpec)


def _title(name: str) -> str:
    return OPTIONS[name].title(name)
