"""skein, as we use it: found when it is needed, with deadlines, and with errors that say what to mend."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tfcollective.launcher import (
    SYSTEM_CLOCK,
    TIMING,
    Clock,
    ConfigError,
    Deadline,
    LaunchError,
    environ_snapshot,
    external_variable,
    get_logger,
    on_thread,
)
from tfcollective_launchers.yarn.application import Amount
from tfcollective_launchers.yarn.cluster import NodeView

_LOG = get_logger(__name__)
_T = TypeVar("_T")
ENDPOINT_KEY = "tfcollective/coordinator"
ATTEMPT_KEY = "tfcollective/attempt"
ENDED = ("FINISHED", "FAILED", "KILLED")
UNGRANTED = ("WAITING", "REQUESTED")  # states of a container
_CALL_S = 60.0
_LOOK_S = 0.5
_LATE_S = 10.0
_CLOSE_S = 15.0
_LEAST_BYTES_PER_S = 1 << 20  # of an upload
_HERE = "file://"
_TAIL_LINES = 12


class SkeinError(LaunchError):
    """YARN or skein did not do what was asked."""


def import_skein() -> Any:
    """The module. Raises ConfigError that says how to install it."""
    try:
        with suppress(ImportError):
            # Python 3.12 has no distutils any more, of which skein uses a part; setuptools brings it back.
            import setuptools  # noqa: F401
        # gRPC's handlers of fork start its threads again in a child. A container is an agent, whose children are ranks:
        # until such a child has become the rank it closes descriptors that these threads use, and they end it.
        with external_variable("GRPC_ENABLE_FORK_SUPPORT", "0"):
            import skein
    except ImportError as error:
        raise ConfigError(f"skein cannot be used ({error}): pip install 'tfcollective[yarn]'") from error
    return skein


def within(seconds: float, what: str, work: Callable[[], _T], cancelled: Callable[[], bool] = lambda: False) -> _T:
    """Returns or raises what ``work`` does; SkeinError if it takes too long, or is ``cancelled()`` before. Skein's
    calls have no deadline of their own: one that hangs is abandoned."""
    call, deadline = on_thread(work, "tfc-skein"), Deadline.after(seconds)
    while not wait([call], min(deadline.remaining(), _LOOK_S)).done:
        if cancelled():
            raise SkeinError(f"{what} was interrupted")
        if deadline.expired():
            raise SkeinError(f"{what} took more than {seconds:g} s")
    return call.result()


@dataclass(frozen=True)
class AppState:
    """The state of an application, as YARN reports it.

    Attributes:
        state: ``ACCEPTED``, ``RUNNING``, ``FINISHED`` ...
        final_status: how it ended: ``SUCCEEDED``, ``FAILED`` ...
        diagnostics: why.
        queue: where it is.
        tracking_url: its page.
        host: the master's host, once it runs.
        port: where skein's part of the master listens there: another one in each attempt.
    """

    state: str
    final_status: str
    diagnostics: str
    queue: str
    tracking_url: str
    host: str
    port: int = 0

    @property
    def ended(self) -> bool:
        """True once it has ended."""
        return self.state in ENDED

    @property
    def too_large(self) -> bool:
        """True if it has asked for a container that its queue does not give. YARN says so in its diagnostics alone, in
        these words of its InvalidResourceRequestException."""
        return "Invalid resource request" in self.diagnostics

    @property
    def why(self) -> str:
        """The first lines of the diagnostics without Java's stack."""
        lines = [line.strip() for line in self.diagnostics.splitlines()]
        return " ".join(line for line in lines if line and not line.startswith("at "))[:1000]


class YarnClient:
    """The submitter's connection to YARN: a Java process of skein's that ends with it."""

    def __init__(
        self,
        client: Any,
        skein: Any,
        clock: Clock = SYSTEM_CLOCK,
        start: float = TIMING.submission,
        late: float = _LATE_S,
    ) -> None:
        """``late`` is how long (s) skein's process lives on to see what became of an application that took longer than
        ``start`` to submit."""
        self._client = client
        self._skein = skein
        self._clock = clock
        self._start = start
        self._late = late

    @classmethod
    @contextmanager
    def start(cls, given: Any = None) -> Iterator[YarnClient]:
        """Starts it, or uses a ``given`` client of skein's. Raises ConfigError or LaunchError: what is missing."""
        skein = import_skein()
        if given is not None:
            yield cls(given, skein)
            return
        check_programs()
        with tempfile.TemporaryDirectory(prefix="tfcollective-skein-") as folder:
            log = Path(folder) / "driver.log"
            client = _start_driver(skein, log)
            try:
                yield cls(client, skein)
            finally:
                end_driver(client)

    def nodes(self) -> tuple[NodeView, ...]:
        """The nodes that run."""
        reports = self._call("YARN's list of nodes", lambda: self._client.get_nodes(states=["RUNNING"]))
        return tuple(
            NodeView(
                report.id,
                frozenset(label for label in report.labels if label),
                _amount(report.total_resources),
                _amount(report.used_resources),
            )
            for report in reports
        )

    def check_queue(self, name: str) -> str:
        """The name; ConfigError that names the queues there are when this one cannot be used."""
        try:
            queue = self._call(f"YARN's queue {name}", lambda: self._client.get_queue(name))
        except SkeinError as error:
            with suppress(SkeinError):
                queues = self._call("YARN's queues", self._client.get_all_queues)
                known = ", ".join(sorted(queue.name for queue in queues))
                raise ConfigError(f"YARN has no queue {name!r}; there are: {known}") from error
            raise
        if str(queue.state) != "RUNNING":
            raise ConfigError(f"YARN's queue {name!r} is {str(queue.state).lower()}: it takes no applications")
        return name

    def submit(
        self, document: Mapping[str, Any], cancelled: Callable[[], bool] = lambda: False
    ) -> tuple[str, Any] | None:
        """Submits an application with credentials of its own; its id and the credentials, or None when it was
        ``cancelled()`` before. Its files that are here are copied to the cluster meanwhile, for which there is a second
        for every MiB."""
        try:
            spec = self._skein.ApplicationSpec.from_dict(dict(document))
            security = self._skein.Security.new_credentials()
        except (TypeError, ValueError) as error:
            raise LaunchError(f"the application cannot be described to YARN: {error}") from error
        spec.master.security = security
        if cancelled():
            return None
        submission = _Submission(self._client, spec)
        limit = self._start + upload_time(document)
        try:
            return self._call("submitting the application", submission.make, limit, cancelled), security
        except SkeinError:
            submission.give_up(self._late)
            if cancelled():
                return None
            raise

    def state(self, app_id: str) -> AppState:
        """Asks YARN for the state of an application."""
        report = self._call(f"YARN's report of {app_id}", lambda: self._client.application_report(app_id))
        return AppState(
            state=str(report.state),
            final_status=str(report.final_status),
            diagnostics=report.diagnostics or "",
            queue=report.queue,
            tracking_url=report.tracking_url or "",
            host=report.host or "",
            port=report.port or 0,
        )

    def endpoint(self, app_id: str, security: Any) -> str | None:
        """Returns where the coordinator listens, or None until the master has reported it."""
        return self._said(app_id, security, ENDPOINT_KEY)

    def attempt(self, app_id: str, security: Any) -> int | None:
        """Returns which of the application's masters runs now: 1, 2 ..., or None until it has reported that."""
        found = self._said(app_id, security, ATTEMPT_KEY)
        return None if found is None else int(found)

    def ungranted(self, app_id: str, security: Any) -> frozenset[str] | None:
        """The services with a container that YARN has not granted yet; None if the master does not say."""
        found = self._ask_master(app_id, security, lambda app: app.get_containers(states=UNGRANTED))
        return None if found is None else frozenset(container.service_name for container in found)

    def _said(self, app_id: str, security: Any, key: str) -> str | None:
        found = self._ask_master(app_id, security, lambda app: app.kv.get(key))
        return None if found is None else found.decode()

    def _ask_master(self, app_id: str, security: Any, question: Callable[[Any], Any]) -> Any:
        """The answer of skein's part of the master; None when there is none."""

        def ask() -> Any:
            with self._client.connect(app_id, wait=False, security=security) as app:
                return question(app)

        try:
            return within(_CALL_S, f"asking the master of {app_id}", ask)
        except (SkeinError, self._skein.exceptions.SkeinError, OSError) as error:
            _LOG.info("yarn: %s", error)
            return None

    def credentials(self, certificate: bytes, key: bytes) -> Any:
        """Returns the credentials of an application, from the result of :func:`credential_bytes`."""
        return self._skein.Security(cert_bytes=certificate, key_bytes=key)

    def kill(self, app_id: str) -> None:
        """Ends an application; nothing if it has ended. Raises SkeinError when YARN does not obey."""
        try:
            self._call(f"killing {app_id}", lambda: self._client.kill_application(app_id))
        except SkeinError:
            if not self.state(app_id).ended:
                raise

    def wait_for_end(self, app_id: str, seconds: float, cancelled: Callable[[], bool] = lambda: False) -> AppState:
        """Returns its state once it has ended, at the latest after that time or when it is ``cancelled()``. Raises
        SkeinError if YARN gives none."""
        deadline = Deadline.after(seconds, self._clock)
        level = logging.WARNING
        while True:
            try:
                state = self.state(app_id)
                if state.ended or cancelled() or deadline.expired(self._clock):
                    return state
            except SkeinError as error:
                if cancelled() or deadline.expired(self._clock):
                    raise
                _LOG.log(level, "yarn: %s", error)
                level = logging.DEBUG
            self._clock.sleep(0.25)  # YARN has no call that waits

    def _call(
        self, what: str, work: Callable[[], _T], seconds: float = _CALL_S, cancelled: Callable[[], bool] = lambda: False
    ) -> _T:
        try:
            return within(seconds, what, work, cancelled)
        except self._skein.exceptions.SkeinError as error:
            raise SkeinError(f"{what}: {first_line(error)}") from error
        except (OSError, ValueError, KeyError) as error:
            raise SkeinError(f"{what}: {first_line(error)}") from error


class _Submission:
    """A call of skein's that may be given up while it is made: what YARN takes all the same is killed."""

    def __init__(self, client: Any, spec: Any) -> None:
        self._client = client
        self._spec = spec
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._given_up = False
        self._app_id: str | None = None

    def make(self) -> str:
        """Submits the application; its id."""
        try:
            app_id: str = self._client.submit(self._spec)
            with self._lock:
                self._app_id = app_id
                unheard = self._given_up
            if unheard:
                self._client.kill_application(app_id)
            return app_id
        finally:
            self._answered.set()

    def give_up(self, seconds: float) -> None:
        """Sees to it that no application stays, for which skein's process has to live so long at most."""
        with self._lock:
            self._given_up = True
            app_id = self._app_id
        if app_id is not None:
            with suppress(Exception):  # whatever skein raises: the job is given up for another reason
                self._client.kill_application(app_id)
        elif not self._answered.wait(seconds):
            _LOG.warning("YARN may have taken the application all the same: look at `yarn application -list`")


def credential_bytes(security: Any) -> tuple[bytes, bytes]:
    """The certificate and the key of an application's credentials."""
    return security.cert_bytes, security.key_bytes


def check_programs() -> None:
    """Raises ConfigError that says what to do when YARN cannot be reached from here."""
    if shutil.which("yarn") is None:
        raise ConfigError("there is no command `yarn` on the PATH: run this where Hadoop's client is installed")
    if shutil.which("java") is None and not _java_home_is_good():
        raise ConfigError("there is no Java: install it, or set JAVA_HOME")


def _java_home_is_good() -> bool:
    home = environ_snapshot().get("JAVA_HOME")
    return home is not None and Path(home, "bin/java").exists()


def _start_driver(skein: Any, log: Path) -> Any:
    try:
        return within(
            TIMING.submission,
            "starting skein's Java process",
            lambda: skein.Client(security=skein.Security.new_credentials(), log=str(log)),
        )
    except (skein.exceptions.SkeinError, SkeinError, OSError, ValueError) as error:
        said = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:] if log.exists() else []
        text = "\n  ".join([f"YARN cannot be reached: {first_line(error)}", *said])
        raise LaunchError(f"{text}\nsee `tfcollective check --launcher yarn`") from error


def end_driver(client: Any, seconds: float = _CLOSE_S) -> None:
    """Ends skein's Java process, for which skein itself waits without end; kills it after so many seconds."""
    try:
        within(seconds, "ending skein's Java process", client.close)
    except Exception as error:  # noqa: BLE001  what was to be done is done
        _LOG.info("yarn: %s", error)
        process = getattr(client, "_proc", None)
        if process is not None:
            process.kill()


def _amount(resources: Any) -> Amount:
    return Amount(resources.memory, resources.vcores, resources.gpus)


def upload_time(document: object) -> float:
    """Returns how long (s) it may take to send this machine's files that an application's description names."""
    return sum(map(_size, set(_sources(document)))) / _LEAST_BYTES_PER_S


def _sources(document: object) -> Iterator[str]:
    """The paths of the files on this machine that a description of an application names, some of them several times:
    skein copies each once."""
    if isinstance(document, str):
        if document.startswith(_HERE):
            yield document.removeprefix(_HERE)
    elif isinstance(document, Mapping):
        for value in document.values():
            yield from _sources(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _sources(value)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # skein says what is wrong with it


def first_line(error: BaseException) -> str:
    """Java's messages go on with a stack; some begin with a line that only announces the next; some are empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return f"skein's Java process gave no reason ({type(error).__name__})"
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def application_client(skein: Any) -> Any:
    """The connection of a container to its own application."""
    try:
        return skein.ApplicationClient.from_current()
    except Exception as error:
        raise LaunchError(f"this process does not run in a container of skein: {error}") from error
