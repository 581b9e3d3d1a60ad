"""The coordinator's process: serves one job until the process that started it has ended.

Its argument is the descriptor on which it answers once:
:class:`~tfcollective._control.serve.process.CoordinatorAnswer`.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from pathlib import Path

from tfcollective._base import log
from tfcollective._base.clock import SYSTEM_CLOCK
from tfcollective._base.codec import decode, encode_line
from tfcollective._base.descriptors import raise_limit
from tfcollective._base.errors import ConfigError, TfCollectiveError
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode
from tfcollective._base.failures import ExitRecord
from tfcollective._control.messages import Exited
from tfcollective._control.records import JobDirectory, JobRecord
from tfcollective._control.serve.process import CoordinatorAnswer, CoordinatorConfig
from tfcollective._control.serve.server import CoordinatorServer

_LOG = log.get_logger(__name__)
_MAX_LINE_BYTES = 1 << 22
_POLL_S = 0.5


def main() -> int:
    """Serves the job that stdin describes."""
    line = sys.stdin.buffer.readline(_MAX_LINE_BYTES)
    try:
        config = decode(line, CoordinatorConfig, "the coordinator's configuration")
    except ConfigError as error:
        _answer(CoordinatorAnswer(error=str(error)))
        return ExitCode.USAGE
    log.configure(config.log_level)
    raise_limit()
    try:
        _serve(config)
    except TfCollectiveError as error:
        _answer(CoordinatorAnswer(error=str(error)))
        return ExitCode.INTERNAL
    return 0


def _serve(config: CoordinatorConfig) -> None:
    signal.signal(signal.SIGTERM, _end)
    with CoordinatorServer(config.options) as server, _recorded(config, server):
        _answer(CoordinatorAnswer(server.endpoint))
        _wait_for_end_of(config.owner)
        server.apply(Exited(_end_of_owner(config)))


def _end(number: int, frame: object) -> None:
    """Shuts down gracefully: closes what is open."""
    del frame
    sys.exit(SIGNAL_BASE + number)


def _recorded(config: CoordinatorConfig, server: CoordinatorServer) -> JobDirectory:
    """Lets ``tfcollective status`` find the job, as long as the directory is open."""
    options, now = config.options, SYSTEM_CLOCK.wall()
    job = JobDirectory.create(Path(config.runtime_dir), f"{options.job_id}-{os.getpid()}")
    job.publish(JobRecord(options.job_id, server.endpoint, options.key, os.getpid(), now, config.command))
    return job


def _end_of_owner(config: CoordinatorConfig) -> ExitRecord:
    """The exit record of the owner, for the ranks that wait for it; this process does not know how the owner ended."""
    return ExitRecord(
        str(config.options.tasks[0]), 0, "", config.owner, None, None, SYSTEM_CLOCK.monotonic(), note="ended"
    )


def _answer(answer: CoordinatorAnswer) -> None:
    os.write(int(sys.argv[1]), encode_line(answer))


def _wait_for_end_of(owner: int) -> None:
    """Returns when our parent, the owner, has ended.

    A descriptor of the process says so at once. Kernels before 5.3 have none; there we look twice a second. (The end of
    a pipe would not do: a fork of the owner, a data loader say, holds its other end, too. Neither would the kernel's
    signal at a parent's death: it comes when the thread ends that called ``init()``.)
    """
    try:
        descriptor = os.pidfd_open(owner)
    except OSError:
        descriptor = -1
    with selectors.DefaultSelector() as selector:
        if descriptor >= 0:
            selector.register(descriptor, selectors.EVENT_READ)
        while os.getppid() == owner:
            selector.select(_POLL_S if descriptor < 0 else None)
    _LOG.info("coordinator: process %d has ended", owner)


if __name__ == "__main__":
    sys.exit(main())
