"""The stacks of a job's processes, for people and programs: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from tfcollective._base.tracebacks import Frame, folded_frames
from tfcollective._control.messages import DumpedTask

_NO_ANSWER = "its agent has not answered: it is stopped or slow, or the network between them is"


def groups_of(tasks: Sequence[DumpedTask]) -> list[list[DumpedTask]]:
    """The tasks by what they do and by their stacks, the smallest group first; of two of one size first the one that
    others may wait for."""
    groups: dict[object, list[DumpedTask]] = {}
    for one in tasks:
        groups.setdefault((_kind(one), _calls(one)), []).append(one)
    return sorted(groups.values(), key=lambda group: (len(group), _in_collective(group)))


def stack_lines(tasks: Sequence[DumpedTask]) -> Iterator[str]:
    """Yields the lines that show the stacks of these tasks, those of equal tasks once."""
    for group in groups_of(tasks):
        yield f"{_names(group)}: {_doing(group)}"
        yield from (f"  {line}" for line in _thread_lines(group[0]))


def stack_document(job: str, tasks: Sequence[DumpedTask]) -> Mapping[str, object]:
    """The same as a JSON object; ``group`` is equal for tasks with the same stacks."""
    described = [{**_document(one), "group": number} for number, group in enumerate(groups_of(tasks)) for one in group]
    return {"job": job, "tasks": described}


def _document(one: DumpedTask) -> Mapping[str, object]:
    about = {"task": str(one.task), "rank": one.rank, "host": one.host, "completed": one.completed}
    stacks = one.stacks
    found: Mapping[str, object] = {"pid": None, "activity": None, "does": None, "threads": [], "missing": _NO_ANSWER}
    if stacks is not None:
        found = {
            "pid": stacks.pid,
            "activity": asdict(stacks.activity),
            "does": stacks.activity.kind,
            "threads": [[asdict(frame) for frame in thread] for thread in stacks.threads],
            "missing": stacks.missing or None,
        }
    return {**about, "in_collective": one.in_collective, **found}


def _in_collective(group: Sequence[DumpedTask]) -> bool:
    return any(one.in_collective for one in group)


def _kind(one: DumpedTask) -> str:
    return "" if one.stacks is None else one.stacks.activity.kind + one.stacks.missing


def _calls(one: DumpedTask) -> object:
    threads: Iterable[Sequence[Frame]] = () if one.stacks is None else one.stacks.threads
    return tuple(tuple((frame.file, frame.line, frame.function) for frame in thread) for thread in threads)


def _names(group: Sequence[DumpedTask]) -> str:
    """Names a group: a single task with its process, several by their ranks."""
    if len(group) == 1:
        (one,) = group
        who = str(one.task) if one.rank is None else f"rank {one.rank} ({one.task})"
        where = [one.host] if one.host else []
        where += [f"pid {one.stacks.pid}"] if one.stacks is not None else []
        return f"{who} on {', '.join(where)}" if where else who
    return name_tasks(group)


def name_tasks(tasks: Sequence[DumpedTask]) -> str:
    """Names tasks by their ranks, in short."""
    ranks = sorted(one.rank for one in tasks if one.rank is not None)
    others = [str(one.task) for one in tasks if one.rank is None]
    named = [f"{len(ranks)} ranks ({_ranges(ranks)})"] if len(ranks) > 1 else [f"rank {rank}" for rank in ranks]
    return " and ".join([*named, *others])


def _ranges(ranks: Sequence[int]) -> str:
    """Writes sorted numbers as ranges: 0-2, 4."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][-1] == rank - 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _doing(group: Sequence[DumpedTask]) -> str:
    first = group[0]
    stacks = first.stacks
    if stacks is None:
        return f"no stack: {_NO_ANSWER}"
    does = str(stacks.activity) if len(group) == 1 else stacks.activity.kind
    if _in_collective(group):
        does = f"{does} in a collective operation"
    return f"{does}; no stack: {stacks.missing}" if stacks.missing else does


def _thread_lines(one: DumpedTask) -> Iterator[str]:
    for number, thread in enumerate(() if one.stacks is None else one.stacks.threads):
        if number:
            yield "another thread:"
        yield from (f"{'  ' * bool(number)}{line}" for line in folded_frames(thread))
