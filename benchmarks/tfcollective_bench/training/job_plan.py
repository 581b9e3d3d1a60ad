"""Plans the processes of the job of a case (runner, model, link, ...): pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfcollective._base.codec import encode
from tfcollective._base.machine.cores import THREAD_VARIABLES
from tfcollective._base.settings import variable
from tfcollective_bench.training.models import MODELS
from tfcollective_bench.training.task import TrainingTask

__all__ = ["Case", "JobPlan", "PlannedProcess", "Site", "plan_job", "ports_needed", "trace_path"]

_WORKER = "tfcollective_bench.training.worker"
_TESTBED_LAUNCHER = "tfcollective_bench.testbed_launcher"
_RENDEZVOUS = "tfcollective_bench.training.horovod_rendezvous"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Case:
    """A job of the benchmark.

    Attributes:
        strategy: how the processes train together, a name of ``strategies.STRATEGIES``.
        python: the interpreter that runs them.
        model: name of the model.
        size: training processes.
        steps: steps of one process per epoch.
        epochs: measured epochs.
        servers: parameter servers; 0 but for ``ps``.
        steps_per_execution: steps per call of the training function.
        cores: the cores of every slot; a training process has a slot. Empty: no process is pinned.
        threads: threads of every process's pools.
        timeout: how long (s) processes wait for each other.
        own_slots: whether servers take slots of their own (view ``cores``) or run beside the slots (``processes``).
        timeline: whether ours record what they do.
    """

    strategy: str
    python: str
    model: str
    size: int
    steps: int
    epochs: int
    servers: int = 0
    steps_per_execution: int = 1
    cores: tuple[tuple[int, ...], ...] = ()
    threads: int = 1
    timeout: float = 120.0
    own_slots: bool = False
    timeline: bool = False

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"there is no model {self.model!r}")


@dataclass(frozen=True)
class Site:
    """The place where a job runs.

    Attributes:
        hosts: the addresses of the hosts, one namespace each; empty: everything on loopback.
        namespaces: their names, in the same order.
        ports: free ports for what has to know its port beforehand; the same on every host.
        interfaces: the ends on this side of the hosts' links, in the same order.
        results: an existing directory for the processes' results.
        gateway: the address of this side of the bridge.
    """

    results: str = ""
    ports: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    gateway: str = _LOOPBACK

    def address(self, slot: int) -> str:
        """The address of a slot's host."""
        return self.hosts[slot] if self.hosts else _LOOPBACK


@dataclass(frozen=True)
class PlannedProcess:
    """A process to start.

    Attributes:
        name: for messages.
        argv: its command.
        env: added to what it inherits.
        trains: the job is over when all processes that train have ended; the others are then ended.
        announces: it prints the mark ``ready``, and the next process starts after that.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    trains: bool = True
    announces: bool = False


@dataclass(frozen=True)
class JobPlan:
    """The processes of a job, in the order of starting, and the number of results that they leave."""

    processes: tuple[PlannedProcess, ...]
    results: int


def trace_path(site: Site) -> str:
    """Returns the path to which a job that records writes its trace."""
    return f"{site.results}/timeline.trace"


def ports_needed(case: Case) -> int:
    """Returns the number of ports that the site needs."""
    return {"mwms": case.size, "ps": case.size + case.servers + 1, "horovod": 1}.get(case.strategy, 0)


def plan_job(case: Case, site: Site) -> JobPlan:
    """The processes of ``case`` at ``site``."""
    plans = {"horovod": _plan_horovod, "mwms": _plan_mwms, "ps": _plan_ps}
    others = _plan_ours if case.strategy.startswith("ours") else _plan_alone
    processes = plans.get(case.strategy, others)(case, site)
    common = {name: str(case.threads) for name in THREAD_VARIABLES}
    common.update({"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"})
    return JobPlan(
        tuple(replace(process, env={**common, **process.env}) for process in processes),
        1 if case.strategy == "ps" else case.size,
    )


def _task(case: Case, site: Site, strategy: str, rank: int | None, cores: Sequence[Sequence[int]]) -> str:
    task = TrainingTask(
        strategy=strategy,
        model=case.model,
        size=case.size,
        rank=rank,
        steps=case.steps,
        epochs=case.epochs,
        results=site.results,
        steps_per_execution=case.steps_per_execution,
        shards=max(1, case.servers),
        cores=tuple(tuple(one) for one in cores),
        timeout=case.timeout,
    )
    return encode(task).decode()


def _inside(site: Site, slot: int, argv: Sequence[str]) -> tuple[str, ...]:
    """The command on the host of a slot."""
    return (*(("ip", "netns", "exec", site.namespaces[slot]) if site.hosts else ()), *argv)


def _worker(case: Case, site: Site, rank: int, env: Mapping[str, str] | None = None) -> PlannedProcess:
    argv = (case.python, "-m", _WORKER, _task(case, site, case.strategy, rank, case.cores))
    return PlannedProcess(f"worker {rank}", _inside(site, rank, argv), env or {})


def _plan_alone(case: Case, site: Site) -> list[PlannedProcess]:
    return [_worker(case, site, rank) for rank in range(case.size)]


def _plan_ours(case: Case, site: Site) -> list[PlannedProcess]:
    """Plans one command: our launcher starts the ranks."""
    module = ("-m", _WORKER, _task(case, site, case.strategy, None, case.cores))
    hosts = [f"{name}={address}" for name, address in zip(site.namespaces, site.hosts, strict=True)]
    unmodified = case.strategy == "ours-unmodified"
    launcher = ["tfcollective", "run", *["--data-parallel"] * unmodified, "-np", str(case.size), "--no-prefix"]
    env = {variable("timeline"): trace_path(site)} if case.timeline else {}
    if hosts:
        launcher = [_TESTBED_LAUNCHER, site.gateway, ",".join(hosts[: case.size])]
        env |= {variable("data_parallel"): "1"} if unmodified else {}
    return [PlannedProcess("launcher", (case.python, "-m", *launcher, *module), env)]


def _plan_horovod(case: Case, site: Site) -> list[PlannedProcess]:
    """The rendezvous server and the ranks, with the environment that ``horovodrun --gloo`` gives them."""
    server, port = site.gateway if site.hosts else _LOOPBACK, site.ports[0]
    local = 1 if site.hosts else case.size
    addresses = sorted({site.address(rank) for rank in range(case.size)})
    argv = (case.python, "-m", _RENDEZVOUS, server, str(port), ",".join(f"{one}:{local}" for one in addresses))
    processes = [PlannedProcess("rendezvous server", argv, trains=False, announces=True)]
    for rank in range(case.size):
        processes.append(_worker(case, site, rank, _horovod_variables(case, site, rank, f"{server}:{port}")))
    return processes


def _horovod_variables(case: Case, site: Site, rank: int, rendezvous: str) -> dict[str, str]:
    host, _, port = rendezvous.rpartition(":")
    apart = bool(site.hosts)
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "eth0" if apart else "lo",
        "HOROVOD_HOSTNAME": site.address(rank),
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(case.size),
        "HOROVOD_LOCAL_RANK": "0" if apart else str(rank),
        "HOROVOD_LOCAL_SIZE": "1" if apart else str(case.size),
        "HOROVOD_CROSS_RANK": str(rank) if apart else "0",
        "HOROVOD_CROSS_SIZE": str(case.size) if apart else "1",
    }


def _plan_mwms(case: Case, site: Site) -> list[PlannedProcess]:
    cluster = {"worker": [f"{site.address(rank)}:{site.ports[rank]}" for rank in range(case.size)]}
    return [_worker(case, site, rank, _tf_config(cluster, "worker", rank)) for rank in range(case.size)]


def _plan_ps(case: Case, site: Site) -> list[PlannedProcess]:
    """Servers and workers serve; the coordinator drives them and ends the job. It runs beside the first server."""
    server_slots = range(case.size, case.size + case.servers)
    ports = iter(site.ports)
    cluster = {
        "worker": [f"{site.address(rank)}:{next(ports)}" for rank in range(case.size)],
        "ps": [f"{site.address(slot)}:{next(ports)}" for slot in server_slots],
        "chief": [f"{site.address(case.size)}:{next(ports)}"],
    }
    slots = {"worker": range(case.size), "ps": server_slots, "chief": range(case.size, case.size + 1)}
    processes = []
    for role in ("ps", "worker", "chief"):
        for index, slot in enumerate(slots[role]):
            pinned = case.cores and (role == "worker" or case.own_slots)
            strategy = "ps" if role == "chief" else "ps-task"
            task = _task(case, site, strategy, 0, [case.cores[slot]] if pinned else [])
            argv = _inside(site, slot, (case.python, "-m", _WORKER, task))
            env = {
                "GRPC_FAIL_FAST": "use_caller",
                # With fewer threads a server hangs whose threads all wait for a worker: TensorFlow's guide asks for it.
                "TF_NUM_INTEROP_THREADS": str(max(case.threads, case.size + 1)),
                **_tf_config(cluster, role, index),
            }
            processes.append(PlannedProcess(f"{role} {index}", argv, env, trains=role == "chief"))
    return processes


def _tf_config(cluster: Mapping[str, Sequence[str]], role: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})}
