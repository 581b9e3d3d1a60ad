"""The program of every container but the master's: finds the coordinator, and is an agent of its job."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcollective.launcher import (
    TIMING,
    ExitCode,
    LaunchError,
    NodeSettings,
    TfCollectiveError,
    environ_snapshot,
    get_logger,
    poll,
    say,
    serve_container,
    wait_for_key,
)
from tfcollective_launchers.yarn.application import KEY_FILE
from tfcollective_launchers.yarn.skein_client import ENDPOINT_KEY, application_client, import_skein, within

_LOG = get_logger(__name__)
_CALL_S = 10.0
_POLL_S = 0.25


def main() -> int:
    """``container NAME SECONDS INTERPRETER``: what it is called, how long all containers may take to come, and what
    ranks are to run: inside a pex, ``sys.executable`` may be an interpreter that does not find the packages."""
    name, timeout, interpreter = sys.argv[1], float(sys.argv[2]) + TIMING.container_margin, sys.argv[3]
    try:
        coordinator = _find_coordinator(application_client(import_skein()), timeout)
        key = wait_for_key(Path(KEY_FILE), 0.0)
        settings = NodeSettings(coordinator, key.hex(), name, timeout=timeout, executable=interpreter)
        return serve_container(replace(settings, instance=environ_snapshot().get("CONTAINER_ID", "")))
    except TfCollectiveError as error:
        say(str(error))
        return ExitCode.INTERNAL


def _find_coordinator(app: Any, timeout: float) -> str:
    """Asks again and again: skein's own wait would hang forever once the master is gone."""

    def look() -> bytes | None:
        try:
            found: bytes | None = within(_CALL_S, "asking for the coordinator", lambda: app.kv.get(ENDPOINT_KEY))
        except Exception as error:  # noqa: BLE001  skein raises many kinds; the deadline ends it
            _LOG.info("yarn: %s", error)
            return None
        return found

    found = poll(look, timeout, _POLL_S)
    if found is None:
        raise LaunchError(f"the application's master has not started the coordinator within {timeout:g} s")
    return found.decode()


if __name__ == "__main__":
    sys.exit(main())
