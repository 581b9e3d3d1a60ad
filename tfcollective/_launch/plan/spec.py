"""What to run: values."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.processes import program_of
from tfcollective._base.settings import ENGINES, TRANSPORTS, Settings
from tfcollective._base.task_specs import TaskSpec, auxiliary_tasks_of, least_trainers_of
from tfcollective._base.tasks import EVALUATOR, TENSORBOARD, WORKER, TaskKey, trainers, workers
from tfcollective._base.timing import TIMING, unfit_seconds
from tfcollective._base.topology import PortRange
from tfcollective._control.state.rounds import NO_LIMIT, Bounds
from tfcollective._launch.agent.protocol import ProcessOptions
from tfcollective._launch.plan.hosts import Host, share_out, without

_LONGEST_COOLDOWN_S = 3600.0
_LEAST = "min_proc (--min-np)"
_ELASTIC_ALONE = {
    "max_proc": "--max-np",
    "discovery": "--host-discovery-script",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
    "on_error": "--on-error",
}
END, REPLACE = ON_ERROR = ("end", "replace")  #: see :attr:`JobSpec.on_error`
_TENSORBOARD = (sys.executable, *program_of("tfcollective.auxiliary_tasks._tensorboard_task"))


#: Fields of a job whose defaults are settings.
FROM_SETTINGS = (
    *("start_timeout", "op_timeout", "grace", "host_timeout", "stall_warning", "elastic_timeout"),
    *("transport", "port_range", "engine", "log_level"),
)


def from_settings(settings: Settings) -> dict[str, Any]:
    """What the environment says about fields that are not given."""
    return {name: getattr(settings, name) for name in FROM_SETTINGS}


def first_size(
    num_proc: int | None,
    *,
    min_proc: int | None,
    max_proc: int | None,
    hosts: Sequence[Host],
    discovery: Sequence[str],
    tasks: int = 0,
) -> tuple[int | None, int | None]:
    """With how many ranks a job starts, and how few an elastic one needs; None: that is not said, or not elastic.

    An elastic job on given hosts takes all of their slots up to ``max_proc``, as Horovod's does. ``hosts`` are those
    that may be used, ``tasks`` how many task specs ask for. Raises ConfigError when they do not fit.
    """
    given = tasks if tasks else num_proc
    if discovery:
        first = min_proc if given is None else given
        return first, first if min_proc is None else min_proc
    if not hosts:
        return max_proc if given is None else given, min_proc
    slots = sum(host.slots for host in hosts)
    if min_proc is not None and max_proc is not None and not tasks:
        given = max(given or 0, min(slots, max_proc))
    return sum(share.count for share in share_out(hosts, given)), min_proc


def usable_hosts(hosts: Sequence[Host], blacklist: Collection[str]) -> tuple[Host, ...]:
    """The given hosts without those of the blacklist; ConfigError if none is left."""
    left = without(hosts, blacklist)
    if hosts and not left:
        raise ConfigError("blacklist: all hosts of the job are on it")
    return left


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
    """One job: what to run, besides how its processes run.

    Attributes:
        command: the command that every rank runs.
        num_proc: the number of ranks.
        tasks: the tasks of the world, in rank order; none for workers only.
        env: additions to the ranks' environment.
        start_timeout: how long (s) the ranks may wait for each other in ``init()``.
        op_timeout: how long (s) a collective may take.
        stall_warning: when (s) to warn of a slow collective; 0: never.
        transport: ``auto`` or ``tcp``.
        port_range: what the coordinator and the ranks listen on; None: any ports.
        engine: who moves data between the ranks: ``native``, ``horovod`` or ``mpi``.
        timeline: where rank 0 writes a trace of all ranks' operations, or None.
        emit_tf_config: whether the ranks get a TF_CONFIG, for ``tf.distribute``.
        horovod_compat: whether ``import horovod`` gives the ranks tfcollective under that name.
        hosts: where the ranks run, in this order; empty: on this machine.
        network_interfaces: names or networks (``10.0.0.0/8``) of interfaces; empty: what leads to the others.
        pass_env: patterns of the names of variables that ranks on other hosts get from here, besides the usual ones.
        platform: settings that the launcher's platform has besides these.
        call: a function to call instead of ``command``'s own work, or None.
        task_specs: what each role needs, for platforms that give it out; its auxiliary tasks run beside the world.
        evaluator_grace: how long (s) the evaluator may go on when training has ended; then it is killed.
        host_timeout: how long (s) a host may be silent before it is lost, and its launcher for the host; 5 or more.
        min_proc: an elastic job goes on while it has so many ranks; None: it ends when one is lost.
        max_proc: an elastic job has so many ranks at most; None: ``num_proc``, with ``discovery`` as many as there are
            slots.
        discovery: the words of a command that prints the hosts of an elastic job, one a line; empty: it has ``hosts``.
        slots: of a host whose line says none.
        reset_limit: how often the world of an elastic job may change: the next change ends it; None: for ever.
        cooldown_range: for how long (s) nothing is started on a host where a rank was lost, which doubles with each
            further one, and for how long at most; None: 30 s after the second one, an hour at most.
        blacklist: names of hosts that are not used though ``discovery`` prints them.
        on_error: what a rank of an elastic job costs that ends by an exception of the program: ``end`` the job, or
            ``replace`` this rank, as Horovod does; None: ``replace`` with ``horovod_compat``, else ``end``.
        elastic_timeout: how long (s) an elastic job with too few ranks waits for others.
        warm_spares: whether each node of an elastic job keeps a process ready that has imported what the ranks import,
            to take the place of one that is lost.
        max_restarts: how often all ranks are started again when one fails.
        restarts: how often they have been.
        first_generation: the number of the first world.
        key: the job key; None: a new one.
    """

    command: tuple[str, ...]
    num_proc: int
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = Settings.start_timeout
    op_timeout: float = Settings.op_timeout
    stall_warning: float = Settings.stall_warning
    transport: str = "auto"
    port_range: PortRange | None = None
    engine: str = "native"
    timeline: str | None = None
    emit_tf_config: bool = False
    horovod_compat: bool = False
    hosts: tuple[Host, ...] = ()
    network_interfaces: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    platform: Mapping[str, Any] = field(default_factory=dict)
    call: FunctionCall | None = None
    tasks: tuple[TaskKey, ...] = ()
    task_specs: Mapping[str, TaskSpec] = field(default_factory=dict)
    evaluator_grace: float = 3600.0
    host_timeout: float = Settings.host_timeout
    min_proc: int | None = None
    max_proc: int | None = None
    discovery: tuple[str, ...] = ()
    slots: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[float, float] | None = None
    blacklist: tuple[str, ...] = ()
    on_error: str | None = None
    elastic_timeout: float = Settings.elastic_timeout
    warm_spares: bool = True
    max_restarts: int = 0
    restarts: int = 0
    first_generation: int = 1
    key: bytes | None = field(default=None, repr=False)

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
    def starts_again(self) -> bool:
        """Whether it is started again if it fails now."""
        return self.restarts < self.max_restarts

    @property
    def bounds(self) -> Bounds | None:
        """How many ranks the worlds of an elastic job have; None: the job is not elastic."""
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
        """How long (s) an auxiliary task may stay when training has ended, before it is killed."""
        if task.type == EVALUATOR:
            return self.evaluator_grace
        # It may still be about to start when training ends, and needs a while to end.
        return self.start_timeout + self.task_specs[task.type].tensorboard_linger_s + TIMING.tensorboard_task

    def __post_init__(self) -> None:
        if self.tasks and (self.tasks != trainers(self.tasks) or len(self.tasks) != self.num_proc):
            raise ConfigError(f"the tasks of a world of {self.num_proc} stand in rank order")
        if not isinstance(self.num_proc, int) or isinstance(self.num_proc, bool) or self.num_proc < 1:
            raise ConfigError(f"num_proc: expected 1 or more, got {self.num_proc!r}")
        if not isinstance(self.max_restarts, int) or isinstance(self.max_restarts, bool) or self.max_restarts < 0:
            raise ConfigError(f"max_restarts: expected 0 or more, got {self.max_restarts!r}")
        if not self.command:
            raise ConfigError("there is no command to run")
        for name in ("start_timeout", "op_timeout", "stall_warning", "evaluator_grace", "grace", "host_timeout"):
            _check_seconds(name, getattr(self, name), above_zero=name not in ("stall_warning", "grace"))
        if self.host_timeout < TIMING.least_host_timeout:
            raise ConfigError(
                f"host timeout: expected {TIMING.least_host_timeout:g} s or more, got {self.host_timeout:g}: a "
                f"heartbeat and its answer may take {TIMING.node_heartbeat + TIMING.short_reply:g} s"
            )
        self._check_bounds()
        tensorboard = self.task_specs.get(TENSORBOARD)
        if tensorboard is not None and tensorboard.tb_model_dir is None and self.call is None:
            raise ConfigError(
                "task_specs: tensorboard: tb_model_dir: give it: a command does not tell where it writes what to show"
            )
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"transport: expected one of {', '.join(TRANSPORTS)}, got {self.transport!r}")
        _check_engine(self.engine, self.horovod_compat)
        for name, value in self.env.items():
            _check_variable(name, value)

    def _check_bounds(self) -> None:
        _check_seconds("elastic_timeout", self.elastic_timeout, above_zero=True)
        self._take_least_instances()
        for name, lowest in (("min_proc", 1), ("max_proc", 1), ("slots", 1), ("reset_limit", 0)):
            _check_count(name, getattr(self, name), lowest)
        least = self.min_proc
        if self.on_error not in (None, *ON_ERROR):
            raise ConfigError(f"on_error: expected one of {', '.join(ON_ERROR)}, got {self.on_error!r}")
        if least is None:
            self._refuse_elastic_options()
        if self.max_proc is not None and self.max_proc < self.num_proc:
            raise ConfigError(
                f"max_proc (--max-np): the job starts with {self.num_proc} ranks, more than the {self.max_proc}"
            )
        if self.slots is not None and not self.discovery:
            raise ConfigError("slots: it is for a discovery script: give each host its slots, as in host1:4")
        self._check_cooldown()
        if least is not None and least > self.num_proc:
            raise ConfigError(f"{_LEAST}: the job starts with {self.num_proc} ranks, fewer than the {least} it needs")
        self._check_preemption()
        if self.bounds is not None and self.engine != "native":
            raise ConfigError(f"engine: an elastic job needs the native engine, not {self.engine}")
        if self.bounds is not None and self.emit_tf_config:
            raise ConfigError("emit_tf_config: a TF_CONFIG lists the ranks, and those of an elastic job change")
        if self.bounds is not None and self.timeline is not None:
            raise ConfigError("timeline: an elastic job has none: its ranks and their numbers change")

    def _refuse_elastic_options(self) -> None:
        for name, option in _ELASTIC_ALONE.items():
            if getattr(self, name) not in (None, ()):
                raise ConfigError(
                    f"{name} ({option}): it is for an elastic job: say with {_LEAST} how few ranks are enough"
                )

    def _check_cooldown(self) -> None:
        if self.cooldown_range is None:
            return
        numbers = tuple(self.cooldown_range)
        if len(numbers) != 2 or not all(isinstance(one, (int, float)) for one in numbers):
            raise ConfigError(f"cooldown_range: expected two numbers of seconds, got {self.cooldown_range!r}")
        if not 1 <= numbers[0] <= numbers[1] <= _LONGEST_COOLDOWN_S:
            raise ConfigError(
                f"cooldown_range: expected 1 <= MIN <= MAX <= {_LONGEST_COOLDOWN_S:g} seconds, got "
                f"{numbers[0]:g} and {numbers[1]:g}"
            )

    def _take_least_instances(self) -> None:
        """The fields of the workers' spec say how few ranks are enough where the job does not."""
        wanted = least_trainers_of(self.task_specs)
        if wanted is None:
            return
        if self.min_proc not in (None, wanted):
            raise ConfigError(
                f"min_proc: got {self.min_proc}, but min_instances of the workers asks for {wanted}: choose"
            )
        object.__setattr__(self, "min_proc", wanted)

    def _check_preemption(self) -> None:
        if self.preemption_file is not None and not isinstance(self.preemption_file, str):
            raise ConfigError(f"preemption_file: expected a path, got {self.preemption_file!r}")
        words = self.preemption_command
        if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
            raise ConfigError(f"preemption_command: expected a command and its arguments, got {words!r}")
        for name in ("preemption_file", "preemption_command"):
            if getattr(self, name) and self.bounds is None:
                raise ConfigError(f"{name}: it needs {_LEAST}: other jobs do not go on without a node")


def _check_count(name: str, value: int | None, lowest: int) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < lowest):
        raise ConfigError(f"{name}: expected {lowest} or more, got {value!r}")


def _check_engine(engine: str, horovod_compat: bool) -> None:
    if engine not in ENGINES:
        raise ConfigError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "horovod" and horovod_compat:
        raise ConfigError(
            "horovod_compat puts tfcollective in Horovod's place, the engine horovod runs Horovod: choose"
        )


def _check_seconds(name: str, value: float, *, above_zero: bool) -> None:
    needed = unfit_seconds(value, above_zero=above_zero)
    if needed is not None:
        raise ConfigError(f"{name.replace('_', ' ')}: expected a number of seconds, {needed}, got {value!r}")


def _check_variable(name: str, value: str) -> None:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise ConfigError(f"env: {name!r} cannot be the name of a variable")
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"env: {name}: expected a string without NUL characters, got {value!r}")
