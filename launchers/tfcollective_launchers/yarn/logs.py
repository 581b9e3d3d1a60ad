"""The logs of an application, by Hadoop's own command, which knows where its version keeps them; and what a node's web
service tells of a container: how it ended, and the end of its log. That is there for people, and may be closed to us.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence

from tfcollective.launcher import LaunchError, answer_of, poll

_TIMEOUT_S = 60.0
_COLLECTED_S = 20.0
_LINES = 20
_OWN_FILES = {b"LogType:" + name: b"End of LogType:" + name for name in (b"launch_container.sh", b"directory.info")}
# What the command adds to the lines of a log.
_MARKS = (
    *("LogType:", "LogLength:", "LogContents:", "LogLastModifiedTime:", "LogAggregationType:", "End of LogType:"),
    *("Container:", "=====", "****"),
)


def logs_command(app_id: str, files: Sequence[str] = ()) -> list[str]:
    """Returns the command that prints the logs of an application: all files, or these."""
    return ["yarn", "logs", "-applicationId", app_id, *(("-log_files", ",".join(files)) if files else ())]


def show_logs(app_id: str) -> int:
    """Prints them, without what YARN itself puts there; the command's exit code. Raises LaunchError when there is no
    command."""
    if shutil.which("yarn") is None:
        raise LaunchError("there is no command `yarn` on the PATH: it reads the logs")
    command = logs_command(app_id)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in without_own_files(process.stdout):
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
    return process.returncode


def without_own_files(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of the logs but for the contents of the files by which a node starts a container: they show the values
    of all variables that the job gives its processes."""
    hidden = b""
    for line in lines:
        if not hidden:
            yield line
            hidden = next((end for name, end in _OWN_FILES.items() if line.rstrip() == name), b"")
        elif line.startswith(hidden):
            hidden = b""
            yield line


def end_of_log(app_id: str, file: str) -> tuple[str, ...]:
    """The last lines of a file of an application that has ended; none when they cannot be had.

    YARN collects the logs when an application has ended, which takes it a while.
    """

    def look() -> tuple[str, ...] | None:
        done = answer_of(logs_command(app_id, (file,)), _TIMEOUT_S)
        if done is None:
            return ()
        lines = [line for line in done.stdout.splitlines() if line.strip() and not line.startswith(_MARKS)]
        return tuple(lines[-_LINES:]) if done.returncode == 0 and lines else None

    return () if shutil.which("yarn") is None else poll(look, _COLLECTED_S, 1.0) or ()


_WEB_TIMEOUT_S = 5.0
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
    """Returns the page on which people read the log of a container."""
    return f"http://{node}/node/containerlogs/{container}/{user}"


def _get(url: str) -> bytes | None:
    try:
        with _OPENER.open(url, timeout=_WEB_TIMEOUT_S) as reply:
            data: bytes = reply.read(_MAX_BYTES)
            return data
    except (OSError, ValueError, urllib.error.URLError):
        return None
