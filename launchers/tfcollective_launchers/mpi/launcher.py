"""Runs a job whose processes mpirun starts: it starts an agent for each rank, and the agent starts the rank.

So MPI decides where a rank runs and which number it has, and output, failure reports, ends and exit codes are those of
every other launcher.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tfcollective.descriptors import give_usual_limit
from tfcollective.errors import ConfigError, LaunchError
from tfcollective.launch.launcher import JobOutcome, Launcher
from tfcollective.launch.nodes.launcher_side import Facts, Mailbox, Node, client_of, gather, version_problem
from tfcollective.launch.plan.hosts import Host, share_out
from tfcollective.launch.plan.planner import Plan, plan_hosts
from tfcollective.launch.plan.rank_variables import rank_variables
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.running.agents import Agents
from tfcollective.launch.running.job import Job
from tfcollective.launch.system.network import is_this_machine, own_address, route_address
from tfcollective.launch.system.signals import Gate, forward_signals
from tfcollective.launch.system.ssh import ACCEPT_NEW, hosts_that_ask
from tfcollective.settings import environ_snapshot, variable
from tfcollective.topology import Placement
from tfcollective_launchers.mpi.command import MpiOptions, check_flavour, mpirun_command

__all__ = ["MpiLauncher", "placed"]

_LOOPBACK = "127.0.0.1"
_VERSION_S = 30.0
_ENROLL_S = 90.0
_END_S = 20.0
_ABORT_S = 2.0
# Not `-m`, which looks into the directory where it happens to be first: a file there may be called like a module.
_PROGRAM = "import sys; del sys.path[0]; from tfcollective.cli import main; sys.exit(main())"


class MpiLauncher(Launcher):
    """One ``mpirun`` for the whole job: on ``spec.hosts``, or on this machine."""

    starts_mpi = True

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`. MPI may deal the ranks to the hosts in another way, if its arguments ask for that."""
        MpiOptions.from_platform(spec.platform)
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
        options = MpiOptions.from_platform(spec.platform)
        spec = spec if spec.cwd is not None else replace(spec, cwd=os.getcwd())  # noqa: PTH109  a text is wanted
        plan = self.plan(spec)
        _check_mpirun()
        with (
            Job(spec, plan, bind_host=_bind_host(spec), observer=self.observer) as job,
            client_of(job, spec.num_proc) as client,
            _mpirun(_command(job, spec, options), job) as process,
        ):
            facts = gather(client, spec.num_proc, _ENROLL_S, lambda: _check_alive(process))
            by_rank = _in_rank_order(facts)
            plan = placed(plan, by_rank, spec.env, named=bool(spec.hosts))
            job.replace_plan(plan)
            nodes = [Node(one, client, Mailbox(client, one.number).write, lambda: None) for one in by_rank]
            return _run(job, plan, nodes, stop_signals)


def placed(plan: Plan, by_rank: Sequence[Facts], given: Mapping[str, str], *, named: bool) -> Plan:
    """The same processes where MPI has put them.

    Args:
        plan: what was planned.
        by_rank: the agents, in the order of MPI's ranks.
        given: what the user sets in the environment of the ranks.
        named: whether reports are to name the hosts.
    """
    nodes = [(one.host, one.address) for one in by_rank]  # containers may share a name
    others = list(dict.fromkeys(nodes))
    workers = []
    for rank, (worker, node) in enumerate(zip(plan.workers, nodes, strict=True)):
        local_rank = nodes[:rank].count(node)
        cross = [other for other in others if nodes.count(other) > local_rank]
        place = Placement(rank, len(nodes), local_rank, nodes.count(node), cross.index(node), len(cross))
        env = {**worker.env, **rank_variables(place, given)}
        workers.append(replace(worker, host=node[0] if named else "", local_rank=local_rank, env=env))
    return Plan(tuple(workers))


def _bind_host(spec: JobSpec) -> str:
    """Where the coordinator listens: on the interface that is wanted, else on the one that leads to the hosts."""
    if spec.network_interfaces:
        return own_address(spec.network_interfaces)
    others = [host.name for host in spec.hosts if not is_this_machine(host.name)]
    if not others:
        return _LOOPBACK
    return route_address(others[0].rpartition("@")[2]) or own_address(())


def _in_rank_order(facts: Sequence[Facts]) -> list[Facts]:
    """Raises LaunchError where an agent cannot take part, or MPI's ranks are not those of one world."""
    problems = [problem for one in facts if (problem := version_problem(one)) is not None]
    if problems:
        raise LaunchError("nothing was started, because not all hosts can take part:\n  " + "\n  ".join(problems))
    ordered = sorted(facts, key=lambda one: -1 if one.rank is None else one.rank)
    if [one.rank for one in ordered] != list(range(len(ordered))):
        raise LaunchError(f"mpirun has given its processes the ranks {[one.rank for one in ordered]}")
    return ordered


def _run(job: Job, plan: Plan, nodes: Sequence[Node], stop_signals: Sequence[int]) -> JobOutcome:
    agents = Agents(nodes)
    stop = Gate(agents.stop)  # nobody can be stopped who has not begun
    with forward_signals(stop_signals, stop) as received:
        for worker, node in zip(plan.workers, nodes, strict=True):
            node.begin(job, (worker,), sys.executable)
        stop.open()
        failure = agents.wait(lambda: job.failed)
    return job.outcome(received, failure, host_lost=any(node.lost for node in nodes))


def _command(job: Job, spec: JobSpec, options: MpiOptions) -> tuple[str, ...]:
    interfaces = [word for name in spec.network_interfaces for word in ("--network-interface", name)]
    agent = (options.python, "-c", _PROGRAM, "agent", "--mpi", "--join", job.coordinator, *interfaces)
    environ = {**environ_snapshot(), variable("key"): ""}
    names = {host.name for host in spec.hosts}
    if names and hosts_that_ask(names, options.options) == names:  # mpirun has one list of arguments for all of them
        options = replace(options, options=(*options.options, *ACCEPT_NEW))
    return mpirun_command(spec.hosts, spec.num_proc, options, agent, environ, spec.grace)


def _check_mpirun() -> None:
    if shutil.which("mpirun") is None:
        raise ConfigError("--engine mpi needs mpirun, which is not here: install Open MPI (Debian: openmpi-bin)")
    try:
        done = subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"mpirun --version: {error}") from error
    check_flavour(done.stdout or done.stderr)


@contextlib.contextmanager
def _mpirun(command: Sequence[str], job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """Keeps mpirun while the block runs; afterwards it ends with its agents, or is ended."""
    environ: Mapping[str, str] = {**environ_snapshot(), variable("key"): job.key.hex()}
    try:
        # A session of its own: a Ctrl-C at the terminal is for the launcher to pass on.
        process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, env=dict(environ), start_new_session=True)
    except OSError as error:
        raise LaunchError(f"cannot run {command[0]}: {error}") from error
    give_usual_limit(process.pid)
    well = False
    try:
        yield process
        well = not job.failed
    finally:
        try:
            process.wait(_END_S if well else _ABORT_S)
        except subprocess.TimeoutExpired:
            # Its daemons and agents end without it. After a failure it would go on looking for processes to kill.
            process.kill()
            process.wait()


def _check_alive(process: subprocess.Popen[bytes]) -> None:
    code = process.poll()
    if code is not None:
        raise LaunchError(f"mpirun has ended with code {code} before all ranks had begun: what it said stands above")
