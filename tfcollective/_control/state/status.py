"""A job as people and programs see it: the answer to :class:`~tfcollective._control.messages.Status`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tfcollective._control.state.job import Job
from tfcollective._control.state.membership import Membership, TaskView
from tfcollective._control.state.rounds import NO_LIMIT


def status_of(job: Job, now: float, wall: float) -> Mapping[str, object]:
    """The job as a JSON object; ``now`` is the monotonic time, ``wall`` that of calendars."""
    membership = job.membership
    elastic = membership.bounds.replaces
    members = set(membership.members) if elastic else ()  # others of an elastic job have no rank
    return {
        "job": job.job_id,
        "generation": membership.world.generation if membership.world else 0,
        "failure": membership.failure.message if membership.failure else None,
        "tasks": [
            _describe(view, now, ranked=view.task in members or not members)
            for view in (*membership.views, *membership.side_views)
        ],
        "elastic": _describe_world(membership, now, wall) if elastic else None,
    }


def _describe_world(membership: Membership, now: float, wall: float) -> Mapping[str, object]:
    """Describes how the world of an elastic job has changed, and what it waits for."""
    return {
        "size": len(membership.members),
        "min_size": membership.bounds.smallest,
        "max_size": membership.bounds.largest if membership.bounds.largest < NO_LIMIT else None,
        "pending": membership.pending or None,
        "leaving": {str(task): why for task, why in membership.leaving.items()},
        "left": {str(task): why for task, why in membership.leavers.items()},
        "changes": [
            {
                "generation": change.generation,
                "size": change.size,
                "without": [str(task) for task in change.lost],
                "with": [str(task) for task in change.joined],
                "cause": change.cause,
                "seconds": round(change.seconds, 6),
                "phases": {name: round(value, 6) for name, value in change.phases.items()},
                "time": round(wall - (now - change.at), 3),
            }
            for change in membership.changes
        ],
    }


def _describe(view: TaskView, now: float, *, ranked: bool) -> Mapping[str, object]:
    age = None if view.last_heartbeat is None else round(now - view.last_heartbeat, 3)
    return {
        "task": str(view.task),
        "rank": view.rank if view.task.is_trainer and ranked else None,
        "state": view.state.value,
        "activity": view.activity,
        "node": view.node,
        "host": view.host,
        "pid": view.pid,
        "heartbeat_age_s": age,
        "info": dict(view.info),
        # Without its last output, which the report has: a long job replaces hundreds of tasks, which is too much.
        "exit": None if view.exit is None else replace(view.exit, stderr_tail=()),
    }
