"""A job whose launcher runs on the platform, in a container of its own: the values that travel to and fro.

The submitter sends a :class:`HostedJob` with the containers and follows the job from afar (:mod:`submitter_side`). What
runs there (:mod:`platform_side`) is what the launcher's own process is elsewhere: it runs the coordinator, deals
the ranks to the agents of the other containers and sees how they end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tfcollective._base.codec import decode, encode
from tfcollective._launch.launcher import JobOutcome
from tfcollective._launch.plan.planner import Plan
from tfcollective._launch.plan.spec import JobSpec

# Keys in the coordinator's store.
STOP = "hosted/stop"  # the numbers of the signals that the submitter has got
OUTCOME = "hosted/outcome"  # how it all ended
DONE = "hosted/done"  # the submitter has seen that

SUBMITTER = "submitter"  # its name among those that send heartbeats: its job ends with it


@dataclass(frozen=True)
class HostedJob:
    """The job that the platform's side gets: a value that travels as a file of JSON.

    Attributes:
        job_id: the name of the job.
        key: the job key.
        spec: what to run, without the function's bytes; the hosts of an elastic job are all containers that it may
            have for its ranks.
        plan: its processes; their hosts are the names of containers.
        python: the submitter's interpreter, for which each container takes its own.
        allocation_timeout: how long (s) to wait until all containers are there.
        followed: whether the job ends when the submitter is gone.
        earlier: what became of the launchers that the platform has run for this job before, a line each.
    """

    job_id: str
    key: bytes = field(repr=False)
    spec: JobSpec
    plan: Plan
    python: str
    allocation_timeout: float
    followed: bool
    earlier: tuple[str, ...] = ()

    def to_bytes(self, **more: object) -> bytes:
        """The file for the platform's side, with ``more`` beside the job: :meth:`from_bytes` reads the job again.

        The pickled function is not in it, nor what only the submitter needs.
        """
        call = None if self.spec.call is None else replace(self.spec.call, payload=b"")
        spec = replace(self.spec, call=call, platform={}, key=None)
        return encode({"job": replace(self, spec=spec), **more})

    @classmethod
    def from_bytes(cls, data: bytes, function: bytes) -> HostedJob:
        """Reads what :meth:`to_bytes` wrote; ``function`` is the job's, pickled, where it has one. ConfigError when it
        is something else."""
        job = decode(data, _JobFile, "the description of the job").job
        if job.spec.call is None:
            return job
        return replace(job, spec=replace(job.spec, call=replace(job.spec.call, payload=function)))


@dataclass(frozen=True)
class _JobFile:
    job: HostedJob


@dataclass(frozen=True)
class ContainerRow:
    """A container at the end of a job, for people.

    Attributes:
        name: what it is called.
        tasks: the tasks that ran in it.
        host: where it was; empty when it never came.
        log: where its log can be read, as far as is known.
        duration: how long (s) its tasks ran, or None.
    """

    name: str
    tasks: tuple[str, ...]
    host: str = ""
    log: str = ""
    duration: float | None = None


@dataclass(frozen=True)
class HostedOutcome:
    """The end of a job and its containers. The results of its function stay with the coordinator.

    Attributes:
        outcome: as any launcher has it, without results.
        containers: a row for each.
        training_s: from the first task's start to the last one's end, in seconds, or None.
    """

    outcome: JobOutcome
    containers: tuple[ContainerRow, ...]
    training_s: float | None = None
