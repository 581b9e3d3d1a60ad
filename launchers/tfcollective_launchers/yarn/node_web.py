"""What a node's web service tells of a container on it: how it ended, and the end of its log.

It is there for people, and may be closed to us; then nothing is known.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request

__all__ = ["ContainerEnd", "container_end", "last_lines", "log_page"]

_TIMEOUT_S = 5.0
_MAX_BYTES = 1 << 20
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

ContainerEnd = tuple["int | None", str]


def container_end(node: str, container: str) -> ContainerEnd | None:
    """A container's exit code and what the node says of its end; None when it tells nothing."""
    data = _get(f"http://{node}/ws/v1/node/containers/{container}")
    try:
        found = json.loads(data or b"{}").get("container", {})
        code = found.get("exitCode")
        # A container that runs has the code -1000.
        known = isinstance(code, int) and code != _RUNNING
        return (code if known else None), " ".join(str(found.get("diagnostics", "")).split())
    except (ValueError, AttributeError):
        return None


_RUNNING = -1000


def last_lines(node: str, container: str, file: str, count: int) -> tuple[str, ...]:
    """The last lines of a container's log; none when they cannot be had."""
    data = _get(f"http://{node}/ws/v1/node/containers/{container}/logs/{file}?size=-16384")
    if data is None:
        return ()
    text = data.decode("utf-8", "replace")
    # The service puts a head before the text and a line after it.
    body = text.partition("LogContents:")[2].lstrip("\n") or text
    lines = [line for line in body.partition("End of LogType:")[0].splitlines() if line.strip()]
    return tuple(lines[-count:])


def log_page(node: str, container: str, user: str) -> str:
    """Where people read the log of a container."""
    return f"http://{node}/node/containerlogs/{container}/{user}"


def _get(url: str) -> bytes | None:
    try:
        with _OPENER.open(url, timeout=_TIMEOUT_S) as reply:
            data: bytes = reply.read(_MAX_BYTES)
            return data
    except (OSError, ValueError, urllib.error.URLError):
        return None
