"""The work of a Spark task: it holds an agent, a subprocess that lives as long as the task does.

Spark ends the Python of a task by SIGKILL, which a subprocess outlives. So the agent reads its stdin, whose other end
only the task has: it ends with it (see :mod:`tfcollective_launchers.spark.agent`). Nothing is changed in this process,
which Spark may use again for other tasks: neither variables nor the working directory, and no thread is left.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tfcollective.launcher import (
    SIGNAL_BASE,
    THREAD_VARIABLES,
    TIMING,
    VISIBLE,
    end_process,
    environ_snapshot,
    signal_name,
    thread_variables,
    visible_gpus,
)
from tfcollective_launchers.spark.reasons import AGENT_ENDED

AGENT_MODULE = "tfcollective_launchers.spark.agent"
_TAIL_LINES = 20
# Spark's own: a secret, a hash seed, settings of its workers.
_DROPPED = re.compile(
    r"PYTHON_WORKER_FACTORY_\w+|PYTHONHASHSEED|PYTHON_UDF_\w+|PYTHON_DAEMON_\w+|PYTHON_FAULTHANDLER_DIR|SPARK_.*"
)
_OF_SPARK = re.compile(r"(pyspark\.zip|py4j-[^/]*\.zip|spark-core_[^/]*\.jar)$")


@dataclass(frozen=True)
class Part:
    """The input of the tasks of one Spark job; it travels in their function, as Spark's own code does.

    Attributes:
        lines: the settings of each task's agent, a line of JSON for each. They hold the job key.
        files: what the ranks need in their working directory: contents by relative path.
        logged: whether what the agents print is kept in the executor's log: not where that is the driver's terminal,
            where the launcher shows it.
        schema: the columns of the rows that its rank gets, as Arrow writes them; empty: it gets none.
    """

    lines: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    logged: bool = True
    schema: bytes = b""


def hold_agent(part: Part, rows: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Runs the agent of this task to its end; yields the number of the task and the agent's exit code.

    Raises RuntimeError when the agent was killed or could not work, which ends the tasks of the other agents, too: what
    is left of them could not go on alone.
    """
    del rows
    from pyspark import BarrierTaskContext

    me = BarrierTaskContext.get()
    yield me.partitionId(), run_agent(part, part.lines[me.partitionId()], task_environment(me))


@dataclass(frozen=True)
class Feed:
    """The data that a task sends to its rank: ``send`` returns at the end, or raises OSError after ``stop``."""

    send: Callable[[], None]
    stop: Callable[[], None]


def task_environment(context: Any) -> dict[str, str]:
    """The variables of the agent of this task, whose BarrierTaskContext is given."""
    gpus = context.resources().get("gpu")
    return agent_environment(environ_snapshot(), context.cpus(), () if gpus is None else gpus.addresses)


def agent_environment(environ: Mapping[str, str], cores: int, gpus: Sequence[str]) -> dict[str, str]:
    """The variables of an agent, and so of its rank: those of the task without what is Spark's own.

    Args:
        environ: the task's.
        cores: of the task (``spark.task.cpus``).
        gpus: the addresses of its GPUs; positions in ``CUDA_VISIBLE_DEVICES`` where the executor has it.
    """
    kept = {name: value for name, value in environ.items() if _DROPPED.fullmatch(name) is None}
    paths = [path for path in kept.pop("PYTHONPATH", "").split(os.pathsep) if path and not _OF_SPARK.search(path)]
    if paths:
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    kept.update(thread_variables(cores, {name: kept[name] for name in THREAD_VARIABLES if name in kept}))
    if gpus:
        there = visible_gpus(kept) if VISIBLE in kept else ()
        kept[VISIBLE] = ",".join(there[int(one)] if one.isdigit() and int(one) < len(there) else one for one in gpus)
    return kept


def _directory(part: Part) -> str:
    """The working directory of the agent: Spark's own for its files, where other tasks may have put these before. They
    stay there, as all of Spark's do, until it removes the executor's directory."""
    from pyspark import SparkFiles

    root = Path(SparkFiles.getRootDirectory())
    for name, contents in part.files.items():
        path = root / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(contents)
        Path(file.name).rename(path)
    return str(root)


def run_agent(part: Part, settings: str, environ: Mapping[str, str], feed: Feed | None = None) -> int:
    """The exit code of an agent with these settings; meanwhile, its rank gets what ``feed`` has for it. Raises
    RuntimeError as :func:`hold_agent` does."""
    agent = subprocess.Popen(
        [sys.executable, "-m", AGENT_MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        cwd=_directory(part),
        start_new_session=True,  # Spark signals the group of its workers
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    shown = threading.Thread(target=_show, args=(agent.stdout, tail, part.logged), daemon=True)
    shown.start()
    try:
        with suppress(OSError):  # it has ended already: its exit code says more
            agent.stdin.write(settings.encode() + b"\n")
            agent.stdin.flush()
        if feed is not None:
            _feed_while_it_runs(agent, feed)
        code = agent.wait()
    finally:
        with suppress(OSError):
            agent.stdin.close()  # its end ends the agent
        end_process(agent, TIMING.spark_abandoned, ask=False)
        shown.join(TIMING.late_drain)
    if code < 0 or 0 < code < SIGNAL_BASE:
        raise RuntimeError(_failure(agent.pid, code, tail))
    return code


def _feed_while_it_runs(agent: subprocess.Popen[bytes], feed: Feed) -> None:
    def stop_with_agent() -> None:
        agent.wait()
        feed.stop()

    threading.Thread(target=stop_with_agent, daemon=True).start()
    with suppress(OSError):  # its rank has ended, or wants no more
        feed.send()


def _failure(pid: int, code: int, tail: Iterable[str]) -> str:
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    return "\n    ".join([f"{AGENT_ENDED} {how} (pid {pid})", *tail])


def _show(source: IO[bytes], tail: deque[str], logged: bool) -> None:
    """Copies what the agent prints to the executor's log, and remembers the end."""
    for line in source:
        if logged:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
        tail.append(line.decode("utf-8", "replace").rstrip("\n"))
