"""Every limit and grace of the control side, in one value: what depends on what stands here, and a test checks it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TIMING", "Timing"]


@dataclass(frozen=True)
class Timing:
    """All in seconds.

    Signs of life, and when their absence counts:

    Attributes:
        heartbeat: between two signs of life of a rank, an agent or a submitter to the coordinator.
        watch: between two looks of the coordinator for those that are silent.
        longest_gap: as much of the time between two looks counts as silence at most: in the rest the coordinator was
            itself stopped.
        coordinator_lost: how long a coordinator may be silent before a rank ends.
        submitter_comes: how long a hosted job waits for its submitter's first sign of life.
        submitter_lost: how long that submitter may be silent before the job is ended.
        job_lost: how long a hosted job's coordinator may be silent before the submitter gives it up: what is left of
            the job has ended by itself then.
        job_lost_after_signal: the same once the submitter has been asked to end the job.

    The end of a hosted job:

    Attributes:
        last_output: how long its submitter waits for the last output.
        platform_knows: how long it waits until the platform says why it has ended the job.

    Calls to the coordinator:

    Attributes:
        connect: for a connection to open.
        reply: for an answer, on top of what a call waits for on purpose.
        short_reply: the same where another coordinator's silence is to be noticed soon.
        long_reply: the same over a slow network, for a submitter.
        poll: how long one request waits for something to happen; a call that waits longer makes several.
        longest_poll: what the coordinator allows a request to wait.
        join_margin: the coordinator judges the start timeout; a rank gives up this much later.
        retry: between two tries.
        remind: between two messages to the user about what is waited for.
        retry_for: how long to try again what has to succeed.
        idle: a thread that waits for something to send looks so often whether it is needed any longer.
    """

    heartbeat: float = 2.0
    watch: float = 1.0
    longest_gap: float = 2.0
    coordinator_lost: float = 30.0
    submitter_comes: float = 120.0
    submitter_lost: float = 30.0
    job_lost: float = 60.0
    job_lost_after_signal: float = 20.0

    last_output: float = 3.0
    platform_knows: float = 30.0

    connect: float = 5.0
    reply: float = 10.0
    short_reply: float = 3.0
    long_reply: float = 15.0
    poll: float = 20.0
    longest_poll: float = 30.0
    join_margin: float = 15.0
    retry: float = 0.5
    remind: float = 15.0
    retry_for: float = 30.0
    idle: float = 5.0


TIMING = Timing()
