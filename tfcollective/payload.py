"""The one module that pickles: user objects only (functions, results, objects of collectives), never control messages.

Unpickling runs code. Callers hand :func:`loads` only bytes that came over a channel on which both ends have proved
that they hold the job key.
"""

from __future__ import annotations

from typing import Any

from tfcollective.errors import InvalidArgumentError


def dumps(value: Any, what: str) -> bytes:
    """``value`` as bytes; InvalidArgumentError that says ``what`` cannot be sent when it cannot be pickled."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # pickling runs the value's own code, which may raise anything
        raise InvalidArgumentError(f"{what} cannot be sent to another process: {error}") from error
    return data


def loads(data: bytes) -> Any:
    """The value that :func:`dumps` made ``data`` of. Raises whatever the value's own code raises."""
    import cloudpickle

    return cloudpickle.loads(data)
