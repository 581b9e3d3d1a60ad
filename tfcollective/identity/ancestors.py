"""The process that has started this one, for launchers that give their jobs no name."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

__all__ = ["ancestor"]

_PARENT_FIELD, _START_FIELD = 1, 19  # behind the name, counted from the state on; see proc(5)
_MOST_NAME_BYTES = 15  # the kernel keeps this much of a program's name


def ancestor(names: Collection[str]) -> str | None:
    """The nearest ancestor of this process that runs a program of one of these names; None if there is none.

    Its number and its start time, as a text: equal for all processes that it has started, and for no others of this
    boot.
    """
    known = {name[:_MOST_NAME_BYTES] for name in names}
    pid = os.getppid()
    while pid > 0:
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except OSError:
            return None
        head, _, rest = text.rpartition(")")  # the name may hold anything
        fields = rest.split()
        if head.partition("(")[2] in known:
            return f"{pid}-{fields[_START_FIELD]}"
        pid = int(fields[_PARENT_FIELD])
    return None
