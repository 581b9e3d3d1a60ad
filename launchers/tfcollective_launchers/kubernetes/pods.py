"""The program in the pods of ``--launcher kubernetes``: the launcher, or an agent of its job.

python -m tfcollective_launchers.kubernetes.pods launcher
python -m tfcollective_launchers.kubernetes.pods agent HOST:PORT SLOTS SECONDS
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tfcollective.launcher import (
    TIMING,
    Arrival,
    ConfigError,
    ContainerProvider,
    ExitCode,
    HostedJob,
    LaunchError,
    NodeFacts,
    NodeSettings,
    TfCollectiveError,
    choose_address,
    dealt_assignment,
    elastic_assignment,
    environ_snapshot,
    exit_code,
    interface_addresses,
    log,
    numbered_name,
    poll,
    render,
    serve_container,
    serve_job,
    wait_for_key,
)
from tfcollective_launchers.kubernetes.kinds.common import PORT
from tfcollective_launchers.kubernetes.names import CALL_FILE, JOB_FILE, KEY_DIRECTORY, KEY_FILE, POD_IP, POD_UID
from tfcollective_launchers.kubernetes.relay import Relay


def main() -> int:
    """See the module."""
    part, *arguments = sys.argv[1:]
    try:
        return _launcher(Path(KEY_DIRECTORY)) if part == "launcher" else _agent(Path(KEY_DIRECTORY), *arguments)
    except TfCollectiveError as error:
        log.say(str(error))
        return ExitCode.USAGE if isinstance(error, ConfigError) else ExitCode.INTERNAL


def _launcher(folder: Path) -> int:
    """Runs the coordinator and the job. The agents come by themselves: pods need no rights in the cluster."""
    call = folder / CALL_FILE
    function = call.read_bytes() if call.exists() else b""
    hosted = HostedJob.from_bytes((folder / JOB_FILE).read_bytes(), function)
    log.configure(hosted.spec.log_level)
    share = max(len(hosted.plan.on(host)) for host in hosted.plan.hosts)
    spec = hosted.spec
    assign = (
        partial(dealt_assignment, spec=spec)
        if spec.bounds is None
        else partial(elastic_assignment, spec=spec, share=share)
    )
    address = _own_address(spec.network_interfaces, environ_snapshot())
    # Ports are forwarded to the pod's loopback interface.
    with Relay(partial(_connected, address), PORT):
        ended = serve_job(hosted, address, PodProvider(share), bind_port=PORT, assign=assign)
    text = render(ended.outcome)
    if text:
        log.say(text)
    return exit_code(ended.outcome)


def _connected(address: str) -> socket.socket:
    """A connection to the coordinator, on which requests may wait for long."""
    connection = socket.create_connection((address, PORT), TIMING.connect)
    connection.settimeout(None)
    return connection


def _own_address(wanted: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns the address at which the other pods and the submitter reach this one."""
    if wanted:
        return choose_address(interface_addresses(), wanted)
    return environ.get(POD_IP) or socket.gethostbyname(socket.gethostname())


class PodProvider(ContainerProvider):
    """The pods of a Job of agents. Kubernetes starts each of them, also in place of one that is gone, when there is
    room for it; so they come by themselves.

    Args:
        share: how many ranks each takes.
    """

    units = "pods"
    arrival = Arrival.OPEN

    def __init__(self, share: int) -> None:
        self._share = share

    def subject(self, node: NodeFacts) -> str:
        """See :class:`NodeProvider`."""
        return f"the agent in the pod {node.name}"

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """See :class:`NodeProvider`: they were requested with the job."""

    def take_in(self, facts: NodeFacts) -> tuple[NodeFacts, int]:
        """Takes an agent in. A pod has the host name of the one that it replaces."""
        return replace(facts, name=numbered_name(facts)), facts.slots or self._share

    def places(self) -> Mapping[str, tuple[str, str]]:
        """See :class:`ContainerProvider`: the submitter knows more."""
        return {}


def _agent(folder: Path, coordinator: str, slots: str, seconds: str) -> int:
    """An agent, whose output the submitter sees. A name is there when its pod has an address."""
    timeout = float(seconds)
    key = wait_for_key(folder / KEY_FILE, 0.0)
    host, _, port = coordinator.rpartition(":")
    address = poll(partial(_resolved, host), timeout, TIMING.retry)
    if address is None:
        raise LaunchError(f"the launcher's pod {host} has got no address within {timeout:g} s")
    settings = NodeSettings(
        f"{address}:{port}",
        key.hex(),
        socket.gethostname(),
        slots=int(slots),
        timeout=timeout,
        executable=sys.executable,
        instance=environ_snapshot().get(POD_UID, ""),
    )
    return serve_container(settings)


def _resolved(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
