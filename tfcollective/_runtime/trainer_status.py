"""Tells Kubeflow's Trainer how far a TrainJob has come.

With its feature ``TrainJobStatus`` the Trainer writes into each pod where its status server is, with which certificate
authority, and where the token stands. The request is that of ``update_trainjob_status`` in the ``kubeflow`` package
0.5.0, and of ``UpdateTrainJobStatusRequest`` in ``kubeflow-trainer-api`` 2.3.0.
"""

from __future__ import annotations

import json
import math
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from http.client import HTTPException
from pathlib import Path

from tfcollective._base.log import get_logger

_URL, _CA, _TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_CA_CERT", "KUBEFLOW_TRAINER_SERVER_TOKEN"
_TIMEOUT_S = 5.0
_INTERVAL_S = 5.0  # what the Trainer's own client keeps to
_LOG = get_logger(__name__)

_Post = Callable[[str, bytes, Mapping[str, str], str | None], None]


class TrainerStatus:
    """Posts the newest status, every few seconds at most, on a daemon thread. An error costs a warning, once: training
    does not depend on it.

    Args:
        url: the status server's; HTTPS, since the token goes there.
        ca_file: the certificate authority's file; None: those of the system.
        token_file: read for each post, because the token changes.
        post: sends a body with headers to a URL, for tests.
        interval: how many seconds lie between two posts, at least.
    """

    def __init__(
        self, url: str, ca_file: str | None, token_file: str, post: _Post | None = None, interval: float = _INTERVAL_S
    ) -> None:
        self._url, self._ca_file, self._token_file = url, ca_file, token_file
        self._post = post or _post
        self._interval = interval
        self._changed = threading.Condition()
        self._newest: bytes | None = None
        self._ended = False
        self._troubled = False
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> TrainerStatus | None:
        """Returns the status of the server that these variables name; None where they name none."""
        url, token_file = environ.get(_URL), environ.get(_TOKEN)
        if not url or not token_file:
            return None
        if not url.startswith("https://"):
            _LOG.warning("%s=%s: the token of %s is only sent over https", _URL, url, _TOKEN)
            return None
        return cls(url, environ.get(_CA) or None, token_file)

    def report(self, info: Mapping[str, object]) -> None:
        """Reports what is known of training, by name: its numbers become metrics; of ``step`` and ``steps`` (all of
        them) and ``steps_per_second`` follow the percentage and the seconds that are left.
        """
        with self._changed:
            self._newest = json.dumps({"trainerStatus": _status(info)}).encode()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tfc-trainer-status", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Posts what there is, and ends."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._ended)
                body, self._newest = self._newest, None
            if body is None:
                return
            self._send(body)
            with self._changed:
                self._changed.wait_for(lambda: self._ended, self._interval)

    def _send(self, body: bytes) -> None:
        try:
            token = Path(self._token_file).read_text("ascii").strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            self._post(self._url, body, headers, self._ca_file)
        except (OSError, ValueError, HTTPException) as error:
            if not self._troubled:
                _LOG.warning("the Trainer's status server does not hear of the progress: %s", error)
            self._troubled = True


def _status(info: Mapping[str, object]) -> dict[str, object]:
    numbers = {
        name: value
        for name, value in info.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    status: dict[str, object] = {"lastUpdatedTime": datetime.now(timezone.utc).isoformat()}
    step, steps, speed = (numbers.get(name) for name in ("step", "steps", "steps_per_second"))
    if step is not None and steps:
        status["progressPercentage"] = max(0, min(100, int(100 * step / steps)))
        if speed:
            status["estimatedRemainingSeconds"] = max(0, round((steps - step) / speed))
    status["metrics"] = [{"name": name, "value": str(value)} for name, value in numbers.items()]
    return status


class _StayHere(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the token is for this server alone, and urllib would send it to the other one."""

    def redirect_request(self, *unused: object) -> None:
        """Follows no redirect: urllib raises HTTPError instead."""


def _post(url: str, body: bytes, headers: Mapping[str, str], ca_file: str | None) -> None:
    """Raises OSError for anything but success."""
    context = ssl.create_default_context(cafile=ca_file)
    request = urllib.request.Request(url, body, dict(headers), method="POST")  # noqa: S310  https, see above
    opener = urllib.request.build_opener(_StayHere, urllib.request.HTTPSHandler(context=context))
    with opener.open(request, timeout=_TIMEOUT_S):
        pass
