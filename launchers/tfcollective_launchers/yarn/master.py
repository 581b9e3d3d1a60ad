"""The program of the application master's container: the coordinator, and the launcher's part of the job."""

from __future__ import annotations

import math
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from tfcollective.launcher import (
    SYSTEM_CLOCK,
    TIMING,
    Clock,
    ContainerProvider,
    ExitCode,
    HostedJob,
    HostedOutcome,
    NodeFacts,
    NodeSettings,
    Refill,
    TfCollectiveError,
    Went,
    choose_address,
    decode,
    environ_snapshot,
    exit_code,
    get_logger,
    interface_addresses,
    log,
    poll,
    render,
    serve_job,
    started_again,
)
from tfcollective_launchers.yarn import logs
from tfcollective_launchers.yarn.application import CALL_FILE, JOB_FILE, SERVING_FILE, Request
from tfcollective_launchers.yarn.skein_client import (
    ATTEMPT_KEY,
    ENDPOINT_KEY,
    UNGRANTED,
    SkeinError,
    application_client,
    first_line,
    import_skein,
    within,
)

_LOG = get_logger(__name__)
_TAIL_LINES = 20
_ASK_S = 2.0
_OVER = ("FAILED", "KILLED", "SUCCEEDED")
_MAX_DIAGNOSTICS = 4000


def main() -> int:
    """``master PID``: runs the job that the files here describe; the application ends with it. PID is skein's
    process."""
    try:
        skeins = psutil.Process(int(sys.argv[1]))
        hosted = _read(Path.cwd())
        log.configure(hosted.spec.log_level)
        wanted = decode(Path(JOB_FILE).read_bytes(), _Wanted, "the containers of the job")
        attempt = attempt_of(environ_snapshot().get("CONTAINER_ID", ""))
        platform = SkeinPlatform(application_client(import_skein()), wanted.requests, attempt=attempt, skeins=skeins)
        bind_host = _own_address(hosted.spec.network_interfaces, environ_snapshot())
        lost = [f"the application's master was lost (attempt {number})" for number in range(1, attempt)]
        with _serving():
            ended = serve_job(started_again(hosted, lost), bind_host, platform)
    except (TfCollectiveError, psutil.Error) as error:
        log.say(str(error))
        return ExitCode.INTERNAL
    return _finish(platform, ended)


def attempt_of(container: str) -> int:
    """Returns which of the application's masters runs in this container: 1, 2 ...; 1 if its id does not say."""
    found = re.fullmatch(r"container_(?:e\d+_)?\d+_\d+_(\d+)_\d+", container)
    return int(found[1]) if found else 1


@contextmanager
def _serving() -> Iterator[None]:
    """While the job is served there is a file, by which the script that runs us sees that we did not end in order."""
    Path(SERVING_FILE).touch()
    try:
        yield
    finally:
        Path(SERVING_FILE).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Wanted:
    """The containers that the job asks for."""

    requests: tuple[Request, ...]


def _read(folder: Path) -> HostedJob:
    call = folder / CALL_FILE
    function = call.read_bytes() if call.exists() else b""
    return HostedJob.from_bytes((folder / JOB_FILE).read_bytes(), function)


def _own_address(wanted: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns where other containers and the submitter reach us: the address by which YARN calls this node."""
    if wanted:
        return choose_address(interface_addresses(), wanted)
    return socket.gethostbyname(environ.get("NM_HOST") or socket.gethostname())


def _finish(platform: SkeinPlatform, ended: HostedOutcome) -> int:
    """Leaves the report in the log and the first of it with YARN, and ends the application."""
    text = render(ended.outcome)
    if text:
        log.say(text)
    code = exit_code(ended.outcome)
    status = "SUCCEEDED" if code == 0 else "KILLED" if ended.outcome.stopped_by is not None else "FAILED"
    platform.end(status, text[:_MAX_DIAGNOSTICS] or "all ranks have ended with code 0")
    return code


class SkeinPlatform(ContainerProvider):
    """skein's application, as the master asks it. A container that has gone is followed by another one of the same
    service, on whatever machine YARN gives; skein counts the containers of a service."""

    refill = Refill.RENEWED

    def __init__(
        self,
        app: Any,
        wanted: Sequence[Request],
        clock: Clock = SYSTEM_CLOCK,
        end_known: float = TIMING.container_end,
        attempt: int = 1,
        skeins: psutil.Process | None = None,
    ) -> None:
        self._app = app
        self._skeins = skeins
        self._attempt = attempt
        self._clock = clock
        self._end_known = end_known
        self._wanted = {request.name: request for request in wanted}
        self._user = environ_snapshot().get("USER", "")
        self._lock = threading.Lock()
        self._reported: set[str] = set()  # ids of containers whose end is known, or was our own doing
        self._newest: dict[str, Any] = {}  # by service, of those that run or have run
        self._machines: dict[str, str] = {}  # by instance
        self._asked = -math.inf
        self._published = False

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """See :class:`ContainerProvider`."""
        if self._published:
            for settings in nodes:
                self._renew(settings.name)
            return

        def put() -> None:
            self._app.kv[ATTEMPT_KEY] = str(self._attempt).encode()
            self._app.kv[ENDPOINT_KEY] = nodes[0].coordinator.encode()

        within(TIMING.platform_call, "telling where the coordinator is", put)
        self._published = True

    def _renew(self, name: str) -> None:
        """Requests one more container of a service, unless one is on its way. None that still runs is needed."""
        containers = self._of(name, (*UNGRANTED, "RUNNING", *_OVER))
        pending = [one for one in containers if str(one.state) in UNGRANTED]
        with self._lock:
            self._reported.update(one.id for one in containers if one not in pending)
            self._newest.pop(name, None)
        for container in containers:
            if str(container.state) == "RUNNING":
                self._kill(container)
        if not pending:
            _LOG.warning("another container is requested from YARN: %s", self._wanted[name])
            self._order(f"requesting another container of {name}", lambda: self._app.add_container(name))

    def orphaned(self) -> bool:
        """See :class:`ContainerProvider`."""
        return self._skeins is not None and _has_ended(self._skeins)

    def release(self, name: str) -> None:
        """See :class:`NodeProvider`."""
        try:
            for container in self._of(name, (*UNGRANTED, "RUNNING")):
                self._kill(container)
        except SkeinError as error:
            _LOG.warning("yarn: %s", error)  # it ends with the application at the latest

    def _kill(self, container: Any) -> None:
        with self._lock:
            self._reported.add(container.id)
        self._order(f"ending the container {container.id}", lambda: self._app.kill_container(container.id))

    def _order(self, what: str, work: Callable[[], Any]) -> Any:
        try:
            return within(TIMING.platform_call, what, work)
        except SkeinError:
            raise
        except Exception as error:
            raise SkeinError(f"{what}: {first_line(error)}") from error

    def _of(self, name: str, states: Sequence[str]) -> list[Any]:
        found = self._order("asking for containers", lambda: self._app.get_containers(states=states))
        return [container for container in found if container.service_name == name]

    def subject(self, node: NodeFacts) -> str:
        """See :class:`NodeProvider`. YARN's name of the machine is the one that people find in its pages."""
        with self._lock:
            host = self._machines.get(node.instance, node.host)
        return super().subject(replace(node, host=host))

    def machine(self, name: str) -> str:
        """See :class:`NodeProvider`."""
        with self._lock:
            container = self._newest.get(name)
        if container is None:
            container = self._newest_of(("RUNNING",)).get(name)
        return "" if container is None else _machine_of(container)

    def events(self) -> Sequence[Went]:
        """See :class:`NodeProvider`."""
        if self._clock.monotonic() - self._asked < _ASK_S:
            return ()
        self._asked = self._clock.monotonic()
        containers = self._containers((*_OVER, "RUNNING"))
        over = [one for one in containers if str(one.state) in _OVER]
        with self._lock:
            self._newest.update((one.service_name, one) for one in containers if one.id not in self._reported)
            self._machines.update((one.yarn_container_id, _machine_of(one)) for one in containers)
            new = [one for one in over if one.id not in self._reported]
            self._reported.update(one.id for one in new)
        return [
            Went(one.service_name, f"was ended{_how(one)}", self._end_of_log(one), one.yarn_container_id) for one in new
        ]

    def describe_missing(self, names: Sequence[str]) -> str:
        """See :class:`ContainerProvider`."""
        running = self._newest_of(("RUNNING",))
        pending = [str(self._wanted[name]) for name in names if name not in running]
        silent = [name for name in names if name in running]
        parts = [f"YARN has not granted {', '.join(pending)}"] if pending else []
        if silent:
            parts.append(f"granted, but no agent has come from {', '.join(silent)}: see `tfcollective logs`")
        return "; ".join(parts)

    def explain(self, node: NodeFacts, silent: float) -> str | None:
        """See :class:`ContainerProvider`."""

        def look() -> str | None:
            containers = self._containers((*_OVER, "RUNNING"))
            mine = [one for one in containers if one.service_name == node.name]
            same = [one for one in mine if not node.instance or one.yarn_container_id == node.instance]
            container = same[-1] if same else None
            if container is not None and str(container.state) in _OVER:
                how = _how(container)
                return f"was ended{how}" if how or silent else ""  # the agent's own message says more
            end = None if container is None else _end_of(container)
            if end is None or end[0] is None:
                return None
            return f"was ended (exit code {end[0]}{': ' + end[1] if end[1] else ''})"

        return poll(look, self._end_known, 0.5) or None

    def places(self) -> Mapping[str, tuple[str, str]]:
        """See :class:`ContainerProvider`."""
        containers = self._containers((*_OVER, "RUNNING"))
        names = {container.service_name: self._place(container) for container in containers}
        return {**names, **{container.yarn_container_id: self._place(container) for container in containers}}

    def _place(self, container: Any) -> tuple[str, str]:
        address = container.yarn_node_http_address or ""
        page = logs.log_page(address, container.yarn_container_id, self._user) if address else ""
        return _machine_of(container), page

    def end(self, status: str, diagnostics: str) -> None:
        """Ends the application, and this process with it."""
        with suppress(Exception):  # it may end us before it has answered
            within(TIMING.platform_call, "ending the application", lambda: self._app.shutdown(status, diagnostics))

    def _newest_of(self, states: Sequence[str]) -> dict[str, Any]:
        return {container.service_name: container for container in self._containers(states)}

    def _containers(self, states: Sequence[str]) -> list[Any]:
        """Returns containers, those of a service in the order of their requests; none while skein cannot be asked."""
        try:
            return list(self._order("asking for containers", lambda: self._app.get_containers(states=states)))
        except SkeinError as error:  # the job can go on without
            _LOG.warning("yarn: %s", error)
            return []

    def _end_of_log(self, container: Any) -> str:
        if not container.yarn_node_http_address:
            return ""
        node, key = container.yarn_node_http_address, container.yarn_container_id
        lines = logs.last_lines(node, key, f"{container.service_name}.log", _TAIL_LINES)
        return "\n    ".join(["the end of its log:", *lines]) if lines else ""


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def _machine_of(container: Any) -> str:
    address: str = container.yarn_node_http_address or ""
    return address.partition(":")[0]


def _end_of(container: Any) -> logs.ContainerEnd | None:
    if not container.yarn_node_http_address:
        return None
    return logs.container_end(container.yarn_node_http_address, container.yarn_container_id)


def _how(container: Any) -> str:
    """Describes a container's end: its node knows more than skein."""
    end = _end_of(container)
    code = "" if end is None or end[0] is None else f"exit code {end[0]}"
    text = (end[1] if end is not None else "") or (container.exit_message or "")
    words = ": ".join(part for part in (code, text) if part)
    return f" ({words})" if words else ""


if __name__ == "__main__":
    sys.exit(main())
