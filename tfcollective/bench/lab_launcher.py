"""Our jobs on the hosts of a :mod:`~tfcollective.bench.netlab` lab: an agent each, the coordinator on the bridge.

    python -m tfcollective.bench.lab_launcher GATEWAY NAMESPACE=ADDRESS,... -m MODULE [ARGUMENTS...]

starts one rank on every host; its exit code is that of ``tfcollective run``.
"""

from __future__ import annotations

import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tfcollective.agent.config import AgentConfig, WorkerConfig
from tfcollective.coordinator.auth import new_key
from tfcollective.coordinator.server import CoordinatorServer, ServerOptions
from tfcollective.errors import ConfigError, UnsupportedError
from tfcollective.launch.agent_process import AgentProcess
from tfcollective.launch.cores import available_cores
from tfcollective.launch.launcher import JobOutcome, Launcher, StartFailure
from tfcollective.launch.planner import Plan, WorkerPlan, plan_local
from tfcollective.launch.report import exit_code, render
from tfcollective.launch.signals import forward_signals
from tfcollective.launch.spec import JobSpec
from tfcollective.launch.sweep import end_processes_of
from tfcollective.settings import environ_snapshot, variable

__all__ = ["LabLauncher", "main", "plan_lab"]


class LabLauncher(Launcher):
    """Runs jobs on the hosts of a lab.

    Args:
        gateway: the address of this side of the bridge.
        hosts: (namespace, address) of the hosts; ranks are dealt to them in turn, equally many to each.
    """

    def __init__(self, gateway: str, hosts: Sequence[tuple[str, str]]) -> None:
        self._gateway = gateway
        self._hosts = tuple(hosts)

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        plan = plan_local(spec, cores=available_cores(), environ=environ_snapshot())
        return plan_lab(plan, [address for _, address in self._hosts])

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`. The agents' failures are told in the order of the hosts."""
        if spec.call is not None:
            raise UnsupportedError("function calls run on this machine only: use the launcher 'local'")
        plan = self.plan(spec)
        job_id = f"lab-{secrets.token_hex(4)}"
        options = ServerOptions(job_id, new_key(), plan.tasks, spec.start_timeout, bind_host=self._gateway)
        with tempfile.TemporaryDirectory() as scratch, CoordinatorServer(options) as coordinator:
            agents = _Agents()
            try:
                for number, (namespace, _) in enumerate(self._hosts):
                    workers = _on_host(plan, number, len(self._hosts))
                    config = _agent_config(spec, workers, options, str(coordinator.endpoint), Path(scratch) / namespace)
                    agents.start(namespace, config)
                with forward_signals(stop_signals, agents.stop) as received:
                    failures = agents.wait(
                        lambda: any(t.exit is not None and t.exit.failed for t in coordinator.view().tasks)
                    )
            finally:
                end_processes_of(job_id)
            view = coordinator.view()
        failure = view.failure
        return JobOutcome(
            exits=tuple(task.exit for task in view.tasks if task.exit is not None),
            initialised=view.initialised,
            start_failure=None if failure is None else StartFailure(failure.message, failure.timed_out),
            stopped_by=received[0] if received else None,
            agent_failure=failures[0] if failures else None,
        )


class _Agents:
    """One agent a host."""

    def __init__(self) -> None:
        self._agents: list[AgentProcess] = []

    def start(self, namespace: str, config: AgentConfig) -> None:
        """Starts one more."""
        Path(config.scratch_dir).mkdir(mode=0o700)
        self._agents.append(AgentProcess.start(config, inside=("ip", "netns", "exec", namespace)))

    def stop(self, number: int) -> None:
        """Tells all to end their processes, with this signal first."""
        for agent in self._agents:
            agent.stop(number)

    def wait(self, failed: Callable[[], bool]) -> list[str]:
        """Blocks until all have ended; what happened to those that did not end in order.

        An agent looks after its own host. When one has ended and ``failed()``, the others are told to stop: their
        ranks may never have met the one that failed.
        """
        found: list[str | None] = [None] * len(self._agents)

        def watch(index: int) -> None:
            found[index] = self._agents[index].wait()
            if found[index] is not None or failed():
                self.stop(signal.SIGTERM)

        threads = [threading.Thread(target=watch, args=(index,), daemon=True) for index in range(len(self._agents))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [one for one in found if one is not None]


def plan_lab(plan: Plan, addresses: Sequence[str]) -> Plan:
    """The plan with its ranks dealt to hosts with these addresses; ConfigError unless equally many come to each."""
    if not addresses or len(plan.workers) % len(addresses):
        raise ConfigError(f"{len(plan.workers)} ranks cannot be shared out equally to {len(addresses)} hosts")
    per_host = len(plan.workers) // len(addresses)
    workers = [
        replace(
            worker,
            local_rank=worker.rank % per_host,
            env={**worker.env, variable("bind_host"): addresses[worker.rank // per_host]},
        )
        for worker in plan.workers
    ]
    return replace(plan, workers=tuple(workers))


def _on_host(plan: Plan, number: int, hosts: int) -> tuple[WorkerPlan, ...]:
    per_host = len(plan.workers) // hosts
    return plan.workers[number * per_host : (number + 1) * per_host]


def _agent_config(
    spec: JobSpec, workers: Sequence[WorkerPlan], options: ServerOptions, coordinator: str, scratch: Path
) -> AgentConfig:
    return AgentConfig(
        job_id=options.job_id,
        coordinator=coordinator,
        key=options.key.hex(),
        workers=tuple(WorkerConfig(str(worker.task), worker.rank, worker.argv, worker.env) for worker in workers),
        scratch_dir=str(scratch),
        cwd=spec.cwd,
        log_dir=spec.log_dir,
        prefix=spec.prefix,
        log_level=spec.log_level,
    )


def main() -> int:
    """Runs the module on all hosts; returns the exit code."""
    gateway, hosts, flag, module, *arguments = sys.argv[1:]
    pairs = [(name, address) for name, _, address in (host.partition("=") for host in hosts.split(","))]
    command = (sys.executable, flag, module, *arguments)
    spec = JobSpec(command=command, num_proc=len(pairs), prefix=False)
    outcome = LabLauncher(gateway, pairs).run(spec, stop_signals=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    text = render(outcome)
    if text:
        sys.stderr.write(f"{text}\n")
    return exit_code(outcome)


if __name__ == "__main__":
    sys.exit(main())
