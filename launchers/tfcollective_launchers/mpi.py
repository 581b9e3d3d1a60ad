"""Runs a job whose processes mpirun starts: it starts an agent for each rank, and the agent starts the rank.

So MPI decides where a rank runs and which number it has, and output, failure reports, ends and exit codes are those of
every other launcher.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tfcollective.launcher import (
    ACCEPT_NEW,
    DEFAULTS,
    TIMING,
    WORDS,
    Arrival,
    Assignment,
    Capabilities,
    ConfigError,
    Enrolment,
    Host,
    JobOutcome,
    JobSpec,
    Launcher,
    LaunchError,
    NodeFacts,
    NodeProvider,
    NodeSettings,
    Placement,
    Plan,
    SshOptions,
    Went,
    answer_of,
    end_process,
    environ_snapshot,
    give_usual_limit,
    hosts_that_ask,
    is_own_host,
    own_address,
    performance,
    plan_hosts,
    program_of,
    rank_variables,
    route_address,
    run_job_on,
    share_out,
    variable,
    without_outer_job,
)

# What an agent on another host needs to be found and loaded; ranks get theirs from the plan.
_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
_BY_HAND = f"start the ranks with it by hand: {variable('engine')}=mpi mpirun -np N python script.py"


@dataclass(frozen=True)
class MpiOptions(SshOptions):
    """The options of a job that mpirun starts: on other hosts, by ssh."""

    args: tuple[str, ...] = performance(
        WORDS,
        "Further arguments for mpirun (--engine mpi), quoted as one.",
        "--mpi-args",
        (),
        more='They stand after ours: `"--mca btl_tcp_if_include ib0 --map-by node"`.',
    )


def check_flavour(version: str) -> None:
    """ConfigError unless this is what Open MPI's ``mpirun --version`` says: others take other options."""
    if "Open MPI" not in version:
        said = version.strip().partition("\n")[0] or "nothing"
        raise ConfigError(f"--engine mpi: mpirun is not Open MPI's (it says: {said}); {_BY_HAND}")


def mpirun_command(
    hosts: Sequence[Host],
    num_proc: int,
    options: MpiOptions,
    agent: Sequence[str],
    environ: Mapping[str, str],
    grace: float,
) -> tuple[str, ...]:
    """Returns the command line that runs ``agent`` once for each rank. It holds no secret: the key travels in the
    environment.

    Args:
        hosts: where, and how many at most; none for this machine.
        num_proc: how many ranks.
        options: the job's.
        agent: the command.
        environ: the launcher's environment: of the paths that are set there the agents learn.
        grace: how long (s) a rank may take to end when mpirun asks for it.
    """
    listed = ",".join(f"{host.name}:{host.slots}" for host in hosts) or f"localhost:{num_proc}"
    handed_on = [word for name in (variable("key"), *_PATHS) if name in environ for word in ("-x", name)]
    return (
        *("mpirun", "--allow-run-as-root", "-np", str(num_proc), "--host", listed, "--map-by", "slot"),
        *("--bind-to", "none", "--mca", "odls_base_sigkill_timeout", str(math.ceil(TIMING.mpirun_kills + grace))),
        *(("--mca", "plm_rsh_args", _ssh_arguments(options)) if hosts else ()),
        *handed_on,
        *options.args,
        *agent,
    )


def _ssh_arguments(options: MpiOptions) -> str:
    """Open MPI cuts this text at its spaces, so none of the words may have one."""
    words = (*options.arguments, *DEFAULTS)
    for word in words:
        if " " in word:
            raise ConfigError(f"mpirun cannot hand {word!r} to ssh, for the space in it: write it into ssh's settings")
    return " ".join(words)


_LOOPBACK = "127.0.0.1"
_VERSION_S = 30.0
_ENROLL_S = 90.0


class MpiLauncher(Launcher):
    """Starts one ``mpirun`` for the whole job: on ``spec.hosts``, or on this machine."""

    options = MpiOptions
    capabilities = Capabilities(
        start="`mpirun` (Open MPI) on this machine or the hosts of `-H`",
        logs="live, each line with its rank; `--log-dir` on the hosts",
        gpus="all of the node, or `--gpus-per-proc`",
        elastic="",
        preemption="",
        restart="`--max-restarts`",
        secrets="a variable that mpirun passes on by its name",
        evaluator="",
    )

    starts_mpi = True

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`. MPI may deal the ranks to the hosts in another way, if its arguments ask for that."""
        MpiOptions.of(spec.platform)
        if spec.auxiliary_tasks:
            raise ConfigError(
                f"{spec.auxiliary_tasks[0]}: mpirun starts ranks only; run auxiliary tasks as a job of their own"
            )
        if spec.emit_tf_config:
            raise ConfigError("a TF_CONFIG is for TensorFlow's own collectives: use it without --engine mpi")
        hosts = spec.hosts or (Host("", spec.num_proc),)
        return plan_hosts(spec, share_out(hosts, spec.num_proc), environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        options = MpiOptions.of(spec.platform)
        spec = spec if spec.cwd is not None else replace(spec, cwd=os.getcwd())  # noqa: PTH109  a text is wanted
        plan = self.plan(spec)
        _check_mpirun()
        return run_job_on(
            lambda job: MpirunProvider(lambda coordinator: _command(coordinator, spec, options), lambda: job.failed),
            spec,
            plan,
            bind_host=_bind_host(spec),
            enrolment=Enrolment([""] * spec.num_proc, lambda found: _assigned(plan, found, spec), _ENROLL_S),
            observers=self.observers,
            stop_signals=stop_signals,
        )


class MpirunProvider(NodeProvider):
    """An mpirun, which starts an agent for each rank.

    Args:
        command: how to run it, for the address of the coordinator.
        failed: whether the job has failed. Then mpirun, which keeps looking for processes to kill, is not waited for.
    """

    arrival = Arrival.COUNTED

    def __init__(self, command: Callable[[str], Sequence[str]], failed: Callable[[], bool]) -> None:
        self._command = command
        self._failed = failed
        self._process: subprocess.Popen[bytes] | None = None
        self._reported = False

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """See :class:`NodeProvider`."""
        command = self._command(nodes[0].coordinator)
        environ: Mapping[str, str] = {**without_outer_job(environ_snapshot()), variable("key"): nodes[0].key}
        try:
            # A session of its own: a Ctrl-C at the terminal is for the launcher to pass on.
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, env=dict(environ), start_new_session=True
            )
        except OSError as error:
            raise LaunchError(f"cannot run {command[0]}: {error}") from error
        give_usual_limit(self._process.pid)

    def release(self, name: str) -> None:
        """See :class:`NodeProvider`: mpirun ends all of its agents or none."""

    def close(self) -> None:
        """See :class:`NodeProvider`."""
        if self._process is not None:
            end_process(self._process, TIMING.mpirun_abort if self._failed() else TIMING.mpirun_end, ask=False)

    def events(self) -> Sequence[Went]:
        """See :class:`NodeProvider`."""
        code = None if self._process is None else self._process.poll()
        if code is None or self._reported:
            return ()
        self._reported = True
        return (Went("", f"has ended with code {code}", "what it said stands above"),)

    def subject(self, node: NodeFacts) -> str:
        """See :class:`NodeProvider`."""
        return f"mpirun (agent on {node.host})" if node.host else "mpirun"


def _assigned(plan: Plan, found: Sequence[NodeFacts], spec: JobSpec) -> Assignment:
    by_rank = _in_rank_order(found)
    made = placed(plan, by_rank, spec.rank_env, named=bool(spec.hosts))
    return Assignment(made, tuple((facts, (worker,)) for facts, worker in zip(by_rank, made.workers, strict=True)))


def placed(plan: Plan, by_rank: Sequence[NodeFacts], given: Mapping[str, str], *, named: bool) -> Plan:
    """The same processes where MPI has put them.

    Args:
        plan: what was planned.
        by_rank: the agents, in the order of MPI's ranks.
        given: what the user sets in the environment of the ranks.
        named: whether reports are to name the hosts.
    """
    nodes = [(one.host, one.address) for one in by_rank]  # containers may share a name
    sizes = Counter(nodes)  # in the order of their lowest ranks
    before: Counter[tuple[str, str]] = Counter()
    workers = []
    for rank, (worker, node) in enumerate(zip(plan.workers, nodes, strict=True)):
        local_rank = before[node]
        before[node] += 1
        cross = [other for other, size in sizes.items() if size > local_rank]
        place = Placement(rank, len(nodes), local_rank, sizes[node], cross.index(node), len(cross))
        env = {**worker.env, **rank_variables(place, given)}
        workers.append(replace(worker, host=node[0] if named else "", local_rank=local_rank, env=env))
    return Plan(tuple(workers))


def _bind_host(spec: JobSpec) -> str:
    """Returns the coordinator's address: on the interface that is wanted, else on the one that leads to the hosts."""
    if spec.network_interfaces:
        return own_address(spec.network_interfaces)
    others = [host.name for host in spec.hosts if not is_own_host(host.name)]
    if not others:
        return _LOOPBACK
    return route_address(others[0].rpartition("@")[2]) or own_address(())


def _in_rank_order(facts: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Raises LaunchError where MPI's ranks are not those of one world."""
    ordered = sorted(facts, key=lambda one: -1 if one.rank is None else one.rank)
    if [one.rank for one in ordered] != list(range(len(ordered))):
        raise LaunchError(f"mpirun has given its processes the ranks {[one.rank for one in ordered]}")
    return ordered


def _command(coordinator: str, spec: JobSpec, options: MpiOptions) -> tuple[str, ...]:
    interfaces = [word for name in spec.network_interfaces for word in ("--network-interface", name)]
    agent = (options.python, *program_of("tfcollective._cli"), "agent", "--mpi", "--join", coordinator, *interfaces)
    environ = {**without_outer_job(environ_snapshot()), variable("key"): ""}
    names = {host.name for host in spec.hosts}
    if names and hosts_that_ask(names, options.options) == names:  # mpirun has one list of arguments for all of them
        options = replace(options, options=(*options.options, *ACCEPT_NEW))
    return mpirun_command(spec.hosts, spec.num_proc, options, agent, environ, spec.grace)


def _check_mpirun() -> None:
    if shutil.which("mpirun") is None:
        raise ConfigError("--engine mpi needs mpirun, which is not here: install Open MPI (Debian: openmpi-bin)")
    done = answer_of(["mpirun", "--version"], _VERSION_S)
    if done is None:
        raise LaunchError(f"mpirun --version: cannot be run, or gives no answer within {_VERSION_S:g} s")
    check_flavour(done.stdout or done.stderr)
