"""The rendezvous of the two jobs of a compute service: rank 0 of the compute job starts a store for both.

It is a coordinator with a key of its own, so that only processes that have read the service's file join.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tfcollective._base.clock import Deadline
from tfcollective._base.errors import CoordinatorError, RendezvousError
from tfcollective._base.job_keys import new_key
from tfcollective._base.log import get_logger
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.tasks import workers
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.serve.process import CoordinatorConfig, CoordinatorProcess
from tfcollective._control.wire.protocol import ServerOptions

_LOG = get_logger(__name__)
_SHUTDOWN = "shutdown"


class ComputeService:
    """Rank 0's: a coordinator in a process of its own, which ends with this one. A context manager; leaving it tells
    everybody to end.

    Raises CoordinatorError when it cannot listen.
    """

    def __init__(self, bind_host: str) -> None:
        self.key = new_key()
        self._bind_host = bind_host
        self._process: CoordinatorProcess | None = None

    def __enter__(self) -> ComputeService:
        settings = Settings.load()
        options = ServerOptions(
            f"data-service-{secrets.token_hex(4)}",
            self.key,
            workers(1),  # no rank joins: it is a store
            settings.start_timeout,
            bind_host=self._bind_host,
            ports=settings.port_range,
        )
        config = CoordinatorConfig.of_this_process(options, settings)
        self._process = CoordinatorProcess.start(config, environ_snapshot())
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process is not None:
            self._process.close()

    @property
    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """The addresses at which it listens, in Horovod's form: by interface, of which ours has no name."""
        if self._process is None:
            raise CoordinatorError("the compute service has not been started")
        endpoint = self._process.endpoint
        return {"": [(endpoint.host, endpoint.port)]}


class ComputeClient:
    """The client by which processes of both jobs talk to each other. Every call raises CoordinatorError when the
    service is gone.

    Args:
        addresses: where the service listens, as :attr:`ComputeService.addresses`.
        key: its key.
        workers_per_dispatcher: how many workers each dispatcher waits for.
        verbose: Horovod's; without effect.
    """

    def __init__(
        self,
        addresses: Mapping[str, Sequence[tuple[str, int]]],
        key: bytes,
        workers_per_dispatcher: int,
        verbose: int = 1,
    ) -> None:
        del verbose
        host, port = next(address for found in addresses.values() for address in found)
        self._workers = workers_per_dispatcher
        self._client = CoordinatorClient(Endpoint(host, port), key)

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """A dispatcher listens there (``grpc://HOST:PORT``)."""
        self._client.put(f"dispatcher/{dispatcher_id}", dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """A dispatcher's address, once it has one. Raises RendezvousError after ``timeout`` seconds."""
        return str(self._wait(f"dispatcher/{dispatcher_id}", Deadline.after(timeout), f"dispatcher {dispatcher_id}"))

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """A worker works for this dispatcher."""
        self._client.put(f"worker/{worker_id}", dispatcher_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Waits until all workers of a dispatcher are there. Raises RendezvousError, which names a missing one."""
        deadline = Deadline.after(timeout)
        first = dispatcher_id * self._workers
        for worker in range(first, first + self._workers):
            self._wait(f"worker/{worker}", deadline, f"worker {worker} of dispatcher {dispatcher_id}")

    def shutdown(self) -> None:
        """Tells the compute job to end: for rank 0 of training, when it needs no data any longer."""
        try:
            self._client.put(_SHUTDOWN, True)
        except CoordinatorError as error:
            _LOG.info("the compute service has ended already: %s", error)

    def wait_for_shutdown(self) -> None:
        """Waits until training calls :meth:`shutdown`, or the service is gone."""
        try:
            while self._client.wait(_SHUTDOWN, timeout=TIMING.poll) is None:
                pass
        except CoordinatorError as error:
            _LOG.info("the compute service has ended: %s", error)

    def _wait(self, key: str, deadline: Deadline, who: str) -> Any:
        entry = self._client.wait(key, timeout=deadline.remaining())
        if entry is None:
            raise RendezvousError(f"{who} of the compute service has not started in time: see the compute job's output")
        return entry.value
