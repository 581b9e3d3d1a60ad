"""What a process that failed has said last. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["last_word"]

# TensorFlow's logs, also behind the rank that some launchers put in front of every line.
_RANK = r"^(?:\[\d+\]<std(?:out|err)>: ?)?"
_INFORMATION = re.compile(_RANK + r"(?:I\d{4} |\d{4}-\d\d-\d\d \S+ I |WARNING: All log messages )")
# What our launcher's report says after the cause.
_AFTERWARDS = re.compile(r"  then |tfcollective: note: ")


def last_word(lines: Sequence[str]) -> str:
    """The last line that tells of the cause, or else the last line; empty when there is none."""
    words = [line for line in lines if not _INFORMATION.match(line) and not _AFTERWARDS.match(line)]
    return (words or lines)[-1] if lines else ""
