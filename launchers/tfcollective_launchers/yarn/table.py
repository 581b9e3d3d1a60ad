"""The table at the end of a job on YARN: pure."""

from __future__ import annotations

from collections.abc import Mapping

from tfcollective.launcher import ContainerRow, ExitRecord, HostedOutcome

_COLUMNS = ("task", "host", "state", "duration", "exit", "log")


def render_table(app_id: str, ended: HostedOutcome) -> str:
    """Returns one row a task; empty if nothing is known of the containers."""
    exits = {record.task: record for record in (*ended.outcome.exits, *ended.outcome.survived)}
    exits.update({end.task: end.exit for end in ended.outcome.auxiliary_tasks if end.exit is not None})
    lost = {record.task for record in ended.outcome.survived}
    rows = [_row(task, container, exits, task in lost) for container in ended.containers for task in container.tasks]
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in (_COLUMNS, *rows)) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in (_COLUMNS, *rows)
    ]
    return "\n".join([f"tfcollective: {app_id}", *(f"  {line}" for line in lines)]) + "\n"


def _row(task: str, container: ContainerRow, exits: Mapping[str, ExitRecord], lost: bool) -> tuple[str, ...]:
    record = exits.get(task)
    duration = "" if container.duration is None else f"{container.duration:.1f} s"
    state = "lost" if lost else _state(container, record)
    return (task, container.host or "-", state, duration, _how(record), container.log)


def _state(container: ContainerRow, record: ExitRecord | None) -> str:
    if record is None:
        if not container.host:
            return "never came"
        return "not used" if container.duration is None else "lost"
    if not record.failed:
        return "succeeded"
    return "stopped" if record.stopped else "failed"


def _how(record: ExitRecord | None) -> str:
    if record is None:
        return ""
    if record.exception is not None:
        return record.exception.type
    return record.how
