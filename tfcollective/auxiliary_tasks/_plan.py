"""The next action of an evaluator: a function of what it sees."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfcollective.auxiliary_tasks._checkpoints import Checkpoint

MAX_STEPS = "the last step is evaluated"
TRAINING_ENDED = "training has ended, and its last checkpoint is evaluated"
IDLE = "no new checkpoint came in time"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules for when an evaluator ends, and what it may leave out.

    Attributes:
        max_steps: it ends when a checkpoint of this training step, or a later one, is evaluated; None: no such end.
        idle_timeout: it ends when for so many seconds there was nothing to evaluate.
        poll_interval: how often it looks, in seconds; also how long a file has to stay the same before it is read.
        only_latest: of several checkpoints that wait it evaluates the newest, and leaves the others out.
    """

    max_steps: int | None = None
    idle_timeout: float = 1200.0
    poll_interval: float = 2.0
    only_latest: bool = False


@dataclass(frozen=True)
class View:
    """The situation that an evaluator sees.

    Attributes:
        found: all checkpoints, oldest first.
        settled: identities of those that were the same when it looked before: they are no longer written.
        broken: identities of those that are settled and yet not whole. They hold up nothing: if their writer continues,
            they become others.
        done: identities of those that are evaluated, or left out.
        training_ended: whether it was known, before it looked, that no checkpoint will follow.
        last_step: the highest training step that is evaluated; None: none yet.
        idle_for: seconds since there was something to evaluate.
    """

    found: tuple[Checkpoint, ...] = ()
    settled: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()
    training_ended: bool = False
    last_step: int | None = None
    idle_for: float = 0.0


@dataclass(frozen=True)
class Evaluate:
    """Evaluate this one; `left_out` will not be."""

    checkpoint: Checkpoint
    left_out: tuple[Checkpoint, ...] = field(default=())


@dataclass(frozen=True)
class Wait:
    """Look again after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Finish:
    """The evaluator ends, and why."""

    reason: str


Action = Evaluate | Wait | Finish


def next_action(view: View, policy: Policy) -> Action:
    """Returns what to do next. Checkpoints are evaluated in order: one that is being written holds up later ones."""
    if policy.max_steps is not None and view.last_step is not None and view.last_step >= policy.max_steps:
        return Finish(MAX_STEPS)
    pending = [one for one in view.found if one.identity not in view.done | view.broken]
    ready = _leading_settled(pending, view.settled)
    if ready and policy.only_latest:
        return Evaluate(ready[-1], tuple(ready[:-1]))
    if ready:
        return Evaluate(ready[0])
    if view.training_ended and not pending:
        return Finish(TRAINING_ENDED)
    if view.idle_for >= policy.idle_timeout:
        return Finish(IDLE)
    return Wait(min(policy.poll_interval, policy.idle_timeout - view.idle_for))


def _leading_settled(pending: list[Checkpoint], settled: frozenset[str]) -> list[Checkpoint]:
    ready = []
    for checkpoint in pending:
        if checkpoint.identity not in settled:
            break
        ready.append(checkpoint)
    return ready
