"""Runs a job on SLURM: inside an allocation on its nodes, outside of one as a batch job that does so."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tfcollective.launcher import (
    Capabilities,
    CheckedLauncher,
    ConfigError,
    Finding,
    Host,
    Job,
    JobDescription,
    JobManager,
    JobOutcome,
    JobSnapshot,
    JobSpec,
    Launcher,
    LaunchError,
    Plan,
    UnsupportedError,
    all_enrolled,
    client_of,
    environ_snapshot,
    forward_signals,
    from_document,
    new_job_id,
    own_address,
    plan_hosts,
    program_of,
    route_address,
    run_job_on,
    say,
    share_out,
    without_outer_job,
)
from tfcollective_launchers.slurm import control
from tfcollective_launchers.slurm.allocation import Allocation, environment_of_srun
from tfcollective_launchers.slurm.call_folder import left, stage
from tfcollective_launchers.slurm.check import findings
from tfcollective_launchers.slurm.control import JobState, SlurmError
from tfcollective_launchers.slurm.options import SlurmOptions
from tfcollective_launchers.slurm.provider import AllocationHosts, SlurmProvider, srun_command
from tfcollective_launchers.slurm.script import batch_script
from tfcollective_launchers.slurm.submission import Followed, ended_by, facts_of, wait_for_end

_NUMBER = re.compile(r"[0-9]+(?:[_+][0-9]+)?")
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)")
_OVERLAP_SINCE = (20, 11)
_LOOPBACK = "127.0.0.1"


class SlurmLauncher(Launcher, CheckedLauncher, JobManager):
    """An agent on every node of the allocation, started by srun; without one, a batch job is submitted."""

    options = SlurmOptions
    else_ranks = ", or run this in an allocation of salloc or sbatch, whose tasks are then the ranks"
    capabilities = Capabilities(
        start="`srun` on each node of the allocation; without one, `sbatch` submits the job",
        logs="live, each line with its rank, and in the job's output file; `--log-dir` on the nodes",
        gpus="those of the allocation (`--gres`), or `--gpus-per-proc`",
        elastic="lost ranks and agents are replaced; the job leaves nodes that fail or drain, and takes them back",
        preemption="sbatch's `--signal`; SIGTERM to the agent or a rank; `--preemption-file`, `--preemption-command`",
        restart="`--max-restarts` in the allocation; `--requeue` as another start of the job",
        secrets="srun's standard input",
        evaluator="on the first node",
    )

    @property
    def delegates(self) -> bool:  # type: ignore[override]
        """True if a job is submitted, not run in this process's allocation."""
        return Allocation.of(environ_snapshot()) is None

    def granted_hosts(self) -> tuple[Host, ...]:
        """See :class:`Launcher`."""
        allocation = Allocation.of(environ_snapshot())
        return () if allocation is None else allocation.hosts

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`. For a job that will be submitted, it is not known yet where its ranks will run."""
        _check(spec)
        allocation = Allocation.of(environ_snapshot())
        if allocation is None:
            raise ConfigError("the launcher 'slurm' knows where ranks run inside an allocation only: salloc or sbatch")
        return plan_hosts(spec, share_out(_hosts(spec, allocation), spec.num_proc), environ_snapshot())

    def preview(self, spec: JobSpec) -> str:
        """See :class:`Launcher`: outside of an allocation, the batch script."""
        if Allocation.of(environ_snapshot()) is not None:
            return super().preview(spec)
        options = SlurmOptions.of(_checked_for_submission(spec).platform)
        return batch_script(spec, options, () if spec.call is None else _function_command(options, Path("FOLDER")))

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        _check(spec)
        allocation = Allocation.of(environ_snapshot())
        if allocation is None:
            return _submit(_checked_for_submission(spec), stop_signals)
        options = SlurmOptions.of(spec.platform)
        outcome = self._run_in(allocation, spec, options, stop_signals)
        if options.requeue and ended_by(outcome):
            _requeue(allocation.job_id)
        return outcome

    def check(self, platform: Mapping[str, Any]) -> Iterator[Finding]:
        """See :class:`CheckedLauncher`."""
        options = SlurmOptions.of(platform)
        spec = JobSpec(("true",), (options.nodes or 1) * (options.ntasks_per_node or 1))
        return findings(batch_script(spec, options, spec.command))

    def owns(self, job: str) -> bool:
        """See :class:`JobManager`."""
        return _NUMBER.fullmatch(job) is not None

    def describe(self, job: str) -> JobDescription:
        """See :class:`JobManager`."""
        state = control.job_state(job)
        return JobDescription(facts_of(state, job), _status_in(job, state) if state.state == "RUNNING" else None)

    def show_logs(self, job: str) -> int:
        """See :class:`JobManager`."""
        state = control.job_state(job)
        for path in dict.fromkeys((state["StdOut"], state["StdErr"])):
            if not path or path == os.devnull:
                continue
            try:
                with Path(path).open(encoding="utf-8", errors="replace") as file:
                    shutil.copyfileobj(file, sys.stdout)
            except OSError as error:
                waits = ", for the job has not begun" if state.waits else ""
                raise SlurmError(f"{path}: {error.strerror}{waits}") from error
        return 0

    def kill(self, job: str) -> None:
        """See :class:`JobManager`."""
        control.cancel(job)
        wait_for_end(job)

    def _run_in(
        self, allocation: Allocation, spec: JobSpec, options: SlurmOptions, stop_signals: Sequence[int]
    ) -> JobOutcome:
        spec = spec if spec.cwd is not None else replace(spec, cwd=os.getcwd())  # noqa: PTH109  a text is wanted
        spec = placed(_started_again(spec, allocation.restarts, options), allocation)
        plan = plan_hosts(spec, share_out(spec.hosts, spec.num_proc), environ_snapshot())
        overlap = _knows_overlap()
        nodes = [host.name for host in spec.hosts]
        commands = {name: srun_command(name, options, overlap=overlap) for name in nodes}
        environ = environment_of_srun(without_outer_job(environ_snapshot()))
        elastic = spec.bounds is not None
        return run_job_on(
            lambda job: SlurmProvider(
                allocation.job_id, commands, environ, elastic=elastic, enrolled=partial(_names_enrolled, job)
            ),
            spec,
            plan,
            bind_host=_bind_host(nodes, spec.network_interfaces),
            job_id=new_job_id(_prefix(allocation.job_id)),
            observers=self.observers,
            stop_signals=stop_signals,
            discovery=AllocationHosts(allocation.job_id, spec.hosts) if elastic else None,
        )


def _prefix(job_id: str) -> str:
    """Returns how the names of our jobs in a SLURM job begin."""
    return f"slurm-{job_id}"


def _names_enrolled(job: Job) -> set[str]:
    """The nodes whose agents have come."""
    with client_of(job, 0) as client:
        return {facts.name for facts in all_enrolled(client)}


def _check(spec: JobSpec) -> None:
    SlurmOptions.of(spec.platform)
    if spec.discovery:
        raise UnsupportedError("discovery: the job follows the nodes of its allocation by itself")
    if spec.emit_tf_config:
        raise UnsupportedError("emit_tf_config: srun's own ranks may use it: see docs/howto/tf_config.md")


def _checked_for_submission(spec: JobSpec) -> JobSpec:
    _check(spec)
    if spec.hosts:
        raise ConfigError(
            "SLURM chooses the nodes of a job that is submitted: leave out the hosts, or ask for some with "
            "--sbatch-args '--nodelist=...'"
        )
    options = SlurmOptions.of(spec.platform)
    if spec.call is not None and options.detach:
        raise ConfigError("detach: the results of a function need a process that waits for them")
    return spec


def _hosts(spec: JobSpec, allocation: Allocation) -> tuple[Host, ...]:
    """Returns the hosts of the ranks; raises ConfigError for a host outside the allocation."""
    there = {host.name for host in allocation.hosts}
    elsewhere = [host.name for host in spec.hosts if host.name not in there]
    if elsewhere:
        names = ", ".join(host.name for host in allocation.hosts)
        raise ConfigError(f"{elsewhere[0]} is not among the nodes of job {allocation.job_id}: {names}")
    return spec.hosts or allocation.hosts


def placed(spec: JobSpec, allocation: Allocation) -> JobSpec:
    """The job on its nodes: one that may grow begins with as many ranks as they take."""
    hosts = _hosts(spec, allocation)
    grows = spec.bounds is not None and spec.max_proc is not None and not spec.tasks
    return spec.on(hosts) if grows else replace(spec, hosts=hosts)


def _started_again(spec: JobSpec, count: int, options: SlurmOptions) -> JobSpec:
    """The job as one that SLURM has started again so often: its ranks learn of that, and keep their earlier output."""
    if options.requeue and not spec.max_restarts:
        spec = replace(spec, max_restarts=1)  # what trains keeps backups where it may be started again
    if not count:
        return spec
    log_dir = spec.log_dir
    if log_dir is not None:
        parent = Path(log_dir) if spec.restarts == 0 else Path(log_dir).parent
        log_dir = str(parent / f"restart.{spec.restarts + count}")
    restarts, most = spec.restarts + count, spec.max_restarts + count
    return replace(spec, restarts=restarts, max_restarts=most, log_dir=log_dir)


def _bind_host(nodes: Sequence[str], interfaces: Sequence[str]) -> str:
    """Returns where the coordinator listens: on the chosen interface, else on the one with the route to the nodes."""
    if interfaces:
        return own_address(interfaces)
    try:
        addresses = [one.address for one in control.node_states(nodes).values()]
    except SlurmError:
        addresses = []
    found = [route for place in (*addresses, *nodes) if (route := route_address(place)) is not None]
    return next((one for one in found if one != _LOOPBACK), found[0] if found else own_address(()))


def _knows_overlap() -> bool:
    found = _VERSION.search(control.ask("srun", "--version"))
    return found is None or (int(found.group(1)), int(found.group(2))) >= _OVERLAP_SINCE


def _requeue(job_id: str) -> None:
    """Has SLURM start the job again, unless it does so by itself, or the job was cancelled."""
    try:
        if control.job_state(job_id).state != "RUNNING":
            return
        say(f"job {job_id} goes back into the queue")  # before SLURM ends this process
        control.requeue(job_id)
    except SlurmError as error:
        say(f"job {job_id} cannot be started again: {error}")


def _status_in(job_id: str, state: JobState) -> JobSnapshot | None:
    """Asks the coordinator by a step on its node, so that the job key stays there. None: no answer."""
    step = ("--jobid", job_id, "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={state['BatchHost']}", "--mpi=none")
    with suppress(SlurmError, ConfigError, ValueError):
        answer = control.ask("srun", *step, sys.executable, "-m", "tfcollective", "status", "--json")
        document = answer[answer.rfind("\n[") + 1 :]  # a site may have Python print at its start
        # This user's other jobs there may use the same directory.
        here = [one for one in json.loads(document) if one["job"].startswith(f"{_prefix(job_id)}-")]
        answered = (one for one in here if one["unreachable"] is None)
        return next((from_document(one, JobSnapshot, "the status") for one in answered), None)
    return None


def _function_command(options: SlurmOptions, folder: Path) -> tuple[str, ...]:
    return (options.python, *program_of("tfcollective_launchers.slurm.submitted"), str(folder))


def _submit(spec: JobSpec, stop_signals: Sequence[int]) -> JobOutcome:
    options = SlurmOptions.of(spec.platform)
    if spec.call is None:
        return _follow(batch_script(spec, options), options, stop_signals)
    where = Path(options.folder or ".").absolute()
    with tempfile.TemporaryDirectory(prefix="tfcollective-slurm-", dir=where) as name:
        folder = Path(name)
        stage(folder, spec)
        try:
            outcome = _follow(batch_script(spec, options, _function_command(options, folder)), options, stop_signals)
        except LaunchError:  # as where SLURM has forgotten the job while its controller was away from here
            found = left(folder)
            if found is None:
                raise
            return found
        return outcome if outcome.stopped_by is not None else left(folder) or outcome


def _follow(script: str, options: SlurmOptions, stop_signals: Sequence[int]) -> JobOutcome:
    with forward_signals(stop_signals, lambda number: None) as received:  # a job that sbatch has taken does not stay
        job_id = control.submit(script, without_outer_job(environ_snapshot()))
        say(f"job {job_id}: submitted")
        if options.detach and not received:
            say(f"it runs by itself: tfcollective status|logs|kill {job_id}")
            return JobOutcome((), initialised=True)
        return Followed(job_id, options.allocation_timeout).to_its_end(received)
