"""The identity of a process, and what the sources of identities take and give: values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tfcollective._base.addresses import is_loopback_host
from tfcollective._base.settings import Settings
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint


@dataclass(frozen=True)
class Identity:
    """The place of a process in its job.

    Attributes:
        task: its role.
        world_size: the number of processes that take part in collectives.
        coordinator: where they meet; None when the world is this process alone.
        job_id: the name of the job.
        key: the job key that authenticates everything; None when there is no coordinator, or no key is given.
        source: where it comes from, for logs: ``launcher``, ``tf_config``, ``single``, ...
        node_id: processes with equal node ids can share memory.
        trainers: where no launcher has started a coordinator: the tasks of the world, in rank order. Empty otherwise.
        hosts: the hosts of the trainers, as far as they are known; the first is that of rank 0.
        notes: what was ignored, for people.
    """

    task: TaskKey
    world_size: int
    coordinator: Endpoint | None
    job_id: str
    key: bytes | None = field(repr=False)
    source: str
    node_id: str
    trainers: tuple[TaskKey, ...] = ()
    hosts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def launched(self) -> bool:
        """True if the identity comes from one of our launchers. Only then do an agent's other variables count: a
        process of another job that a rank has started inherits them."""
        return self.source == "launcher"

    @property
    def without_launcher(self) -> bool:
        """True if the ranks meet without a launcher's coordinator: rank 0 starts one."""
        return self.coordinator is not None and bool(self.trainers)

    @property
    def starts_coordinator(self) -> bool:
        """True if this process starts the coordinator."""
        return self.without_launcher and self.trainers[0] == self.task

    @property
    def on_loopback(self) -> bool:
        """True if all hosts of the job are written as this machine's loopback interface."""
        hosts = self.hosts if self.coordinator is None else (self.coordinator.host, *self.hosts)
        return all(is_loopback_host(host) for host in hosts)


@dataclass(frozen=True)
class Facts:
    """The facts that a source may use.

    Attributes:
        settings: ours.
        environ: a snapshot of the environment, for what other systems write.
        is_own_host: whether a host name or address is one of this machine.
        ancestor: see :func:`tfcollective._control.identity.node.ancestor`.
    """

    settings: Settings
    environ: Mapping[str, str]
    is_own_host: Callable[[str], bool]
    ancestor: Callable[[Collection[str]], str | None]


@dataclass(frozen=True)
class Claim:
    """The identity that a source gives a process.

    Attributes:
        task: this process's role.
        trainers: the tasks of the world, in rank order.
        rendezvous: where rank 0 listens; None for a world of one.
        hosts: see :class:`Identity`.
        name: tells this job from others of this machine; the same on all ranks.
        notes: see :class:`Identity`.
    """

    task: TaskKey
    trainers: tuple[TaskKey, ...]
    rendezvous: Endpoint | None
    name: str
    hosts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A system that gives processes their identity.

    Attributes:
        name: for logs and ``TFCOLLECTIVE_IDENTITY``.
        needs: the variables that it goes by, for people.
        is_present: whether it has started this process.
        parse: what it says; raises ConfigError that names the variable.
    """

    name: str
    needs: str
    is_present: Callable[[Facts], bool]
    parse: Callable[[Facts], Claim]
