"""Lets people and programs watch a job over HTTP while it runs, where ``--web`` asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tfcollective._base.clock import every
from tfcollective._base.errors import UnsupportedError
from tfcollective._base.log import say
from tfcollective._base.topology import Endpoint
from tfcollective._launch.launcher import JobOutcome, Launcher
from tfcollective._launch.plan.spec import AUTO_WEB, JobSpec

if TYPE_CHECKING:
    from tfcollective._launch.web.server import WatchServer

_LOOPBACK = "127.0.0.1"
_EACH_S = 1.0


@contextlib.contextmanager
def watching(launcher: Launcher, spec: JobSpec) -> Iterator[Callable[[JobOutcome], None]]:
    """Serves the launcher's job while the context is open, if the job asks for that, and says where; yields what takes
    the outcome. Raises UnsupportedError when the coordinator runs elsewhere,
    and CoordinatorError when nothing can listen there."""
    if spec.web is None:
        yield lambda outcome: None
        return
    if not launcher.observable:
        raise UnsupportedError(
            "web (--web): the coordinator of this job runs on the platform, not here: `tfcollective status JOB` asks it"
        )
    with serving(spec.web, spec.log_dir) as server, launcher.observed_by(server.take):
        yield server.end


@contextlib.contextmanager
def serving(address: str, log_dir: str | None) -> Iterator[WatchServer]:
    """Serves a page at an address, or at :data:`AUTO_WEB`, while the context is open, and says where. Raises
    CoordinatorError when it cannot listen."""
    from tfcollective._launch.web.server import WatchServer  # not sooner: aiohttp takes a moment

    at = Endpoint(_LOOPBACK, 0) if address == AUTO_WEB else Endpoint.parse(address)
    with WatchServer(at, log_dir) as server, every(_EACH_S, server.read_log, "tfc-log-tail"):
        say(f"watch the job at {server.url}")
        yield server
