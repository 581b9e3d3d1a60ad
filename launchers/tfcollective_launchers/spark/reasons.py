"""Spark's reason for the failure of a job, as one sentence: pure."""

from __future__ import annotations

import re

#: Begins what a task says when its agent did not end in order.
AGENT_ENDED = "tfcollective: the agent"
_HEADS = ("Most recent failure reason:", "Job aborted due to stage failure:")
_BARRIER = re.compile(
    r"Stage failed because barrier task \w+\(\d+, (?P<partition>\d+)\) finished unsuccessfully\.?\s*", re.DOTALL
)
_OURS = re.compile(re.escape(AGENT_ENDED) + r"[^\n]*(?:\n    [^\n]*)*")
_MISMATCH = re.compile(r"\[PYTHON_VERSION_MISMATCH\]([^\n]*)")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(tfcollective\w*|pyarrow)")
_SLOTS = re.compile(r"\[?SPARK-24819\]?:?[^\n]*")
_LOST = re.compile(r"ExecutorLostFailure[^\n]*")
_CRASHED = "Python worker exited unexpectedly"


def lost_partition(text: str) -> int | None:
    """The task whose end was the first, where Spark names it."""
    found = _BARRIER.search(text)
    return None if found is None else int(found["partition"])


def reason_of(text: str) -> str:
    """Returns what happened to the tasks of a job, as the predicate of a sentence about an agent: ``was lost with its
    executor: ...``.
    """
    ours = _OURS.search(text)
    if ours is not None:
        return ours.group()[len(AGENT_ENDED) :].strip()
    mismatch = _MISMATCH.search(text)
    if mismatch is not None:
        return (
            f"could not be started: {mismatch.group(1).strip()} Set PYSPARK_PYTHON (--remote-python) to an interpreter "
            "of the driver's version that has tfcollective"
        )
    missing = _MISSING.search(text)
    if missing is not None:
        return (
            f"could not be started: the Python of the executors has no {missing.group(1)}: install tfcollective[spark] "
            "there, or name an interpreter that has it with PYSPARK_PYTHON (--remote-python)"
        )
    lost = _LOST.search(text)
    if lost is not None:
        return f"was lost with its executor: {lost.group().strip()}"
    if _CRASHED in text:
        return f"was lost with its task: {_CRASHED} (killed, or out of memory)"
    slots = _SLOTS.search(text)
    if slots is not None:
        return f"could not be started: {slots.group().strip()}"
    return f"was ended by Spark: {_first_of(text)}"


def _first_of(text: str) -> str:
    after = next((text.partition(head)[2] for head in _HEADS if head in text), text)
    left = _BARRIER.sub("", after)
    lines = [line.strip() for line in left.splitlines() if line.strip()]
    return lines[0] if lines else "it does not say why"
