"""A ``tf.data`` service that a job of its own runs beside training: Horovod's
``horovod.tensorflow.data.compute_service``.

One job computes (``python -m tfcollective.tensorflow.data.compute_worker FILE``), another trains; the file, of mode
0600, tells the second where the first one is. TensorFlow's dispatchers and workers listen on all interfaces and know no
authentication: use them in networks that you trust.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.clock import poll
from tfcollective._base.codec import decode, encode, from_document, to_document
from tfcollective._base.errors import ConfigError, InvalidArgumentError, RendezvousError, UnsupportedError
from tfcollective._base.private_directory import write_private
from tfcollective._base.settings import Settings
from tfcollective.tensorflow.data._rendezvous import ComputeClient

__all__ = ["SIDES", "TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

#: Where dispatchers may run.
SIDES = ("compute", "training")
_LOOK_S = 0.2
_jobs = itertools.count()  # shared passes by their names, which the ranks agree on without a word
_HEARTBEAT_MS = 1000


@dataclass(frozen=True)
class TfDataServiceConfig:
    """The facts about a compute service that a training job needs.

    Attributes:
        dispatchers: their number; one serves all ranks, otherwise rank i uses dispatcher i.
        workers_per_dispatcher: how many processes of the compute job work for each.
        dispatcher_side: "compute" or "training": which job runs the dispatchers.
        addresses: where the service listens: by interface, pairs of host and port.
        key: what proves that one may talk to it.
        timeout: how long (s) to wait for dispatchers and workers.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = field(repr=False)
    timeout: int = 60

    def __post_init__(self) -> None:
        if self.dispatcher_side not in SIDES:
            raise InvalidArgumentError(f"dispatcher_side: expected one of {', '.join(SIDES)}: {self.dispatcher_side!r}")
        for name in ("dispatchers", "workers_per_dispatcher"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}: expected 1 or more, got {getattr(self, name)}")

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A connection to the service; its ``shutdown()`` ends the compute job."""
        return ComputeClient(self.addresses, self.key, self.workers_per_dispatcher, verbose)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        document: dict[str, Any] = to_document(self)
        return document

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """Reverses :meth:`to_dict`; raises ConfigError if ``config`` is anything else."""
        return from_document(dict(config), TfDataServiceConfig, "the description of a compute service")

    def write(self, filename: str) -> None:
        """Puts it into a file that only this user can read, whole or not at all."""
        write_private(Path(filename), encode(self))

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False, timeout: float = 600.0) -> TfDataServiceConfig:
        """Reads what :meth:`write` has written to the file.

        Args:
            filename: the file.
            wait_for_file_creation: wait until the compute job has written it.
            timeout: how long (s) to wait.

        Raises:
            RendezvousError: it has not come in time.
            ConfigError: it cannot be read, or says something else.
        """
        path = Path(filename)
        if wait_for_file_creation and poll(lambda: path.exists() or None, timeout, _LOOK_S) is None:
            raise RendezvousError(f"no compute service has written {filename} within {timeout:g} s")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{filename}: {error}") from error
        return decode(data, TfDataServiceConfig, f"{filename}, the description of a compute service,")


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The address of the dispatcher for a rank of training, once its workers are there.

    With dispatchers on the side of training, they run while the block does: read all data inside.

    Raises:
        InvalidArgumentError: there are several dispatchers, but none for this rank.
        RendezvousError: the dispatcher or a worker has not come in time.
        CoordinatorError: the compute job is gone.
    """
    number = rank if compute_config.dispatchers > 1 else 0
    if number >= compute_config.dispatchers:
        raise InvalidArgumentError(
            f"rank {rank} has no dispatcher, there are {compute_config.dispatchers}: as many as ranks, or one for all"
        )
    with contextlib.ExitStack() as opened:
        client = compute_config.compute_client()
        if compute_config.dispatcher_side == "training" and rank == number:
            client.register_dispatcher(number, opened.enter_context(_dispatcher()))
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(number, compute_config.timeout)
        yield address


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """The dataset as the compute service's workers compute it. Also a method of ``tf.data.Dataset``.

    Args:
        dataset: a ``tf.data.Dataset``: what comes before this call is computed there.
        compute_config: of the service; its dispatchers are on the side of the compute job.
        rank: of this process.
        size: of the world, for ``round_robin``.
        processing_mode: of ``tf.data.experimental.service.distribute``.
        reuse_dataset: all ranks share one pass over the data; otherwise each gets its own. The ranks make their shared
            datasets in one order.
        round_robin: with ``reuse_dataset``, and a dataset without end: ranks take their batches in turn.

    Raises:
        UnsupportedError: the dispatchers are on the side of training: use :func:`tf_data_service`.
    """
    if compute_config.dispatcher_side == "training":
        raise UnsupportedError(
            "the dispatchers run in the training job: use tf_data_service, and apply "
            "tf.data.experimental.service.distribute inside its block"
        )
    in_turn = reuse_dataset and round_robin
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=f"job.{next(_jobs)}" if reuse_dataset else None,
                consumer_index=rank if in_turn else None,
                num_consumers=size if in_turn else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Runs every process of the compute job, until training shuts the service down.

    Raises:
        RendezvousError: this worker's dispatcher has not come in time.
        CoordinatorError: rank 0, which serves the store, is gone.
    """
    runtime.init()
    index = runtime.rank()
    number, place = divmod(index, compute_config.workers_per_dispatcher)
    client = compute_config.compute_client()
    with contextlib.ExitStack() as opened:
        if compute_config.dispatcher_side == "compute" and place == 0:
            client.register_dispatcher(number, opened.enter_context(_dispatcher()))
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        opened.enter_context(_worker(address, compute_config.timeout))
        client.register_worker_for_dispatcher(number, index)
        client.wait_for_shutdown()


def own_host() -> str:
    """The host name or address at which others reach this process."""
    settings = runtime.settings() if runtime.is_initialized() else Settings.load()
    return settings.bind_host or "127.0.0.1"


@contextlib.contextmanager
def _dispatcher() -> Iterator[str]:
    server = tf.data.experimental.service.DispatchServer()
    try:
        protocol, _, local = server.target.partition("://")
        yield f"{protocol}://{_in_url(own_host())}:{local.rpartition(':')[2]}"
    finally:
        server._stop()  # there is no other way to end one


@contextlib.contextmanager
def _worker(dispatcher: str, timeout: int) -> Iterator[None]:
    server = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(
            dispatcher_address=dispatcher.partition("://")[2],
            worker_address=f"{_in_url(own_host())}:%port%",
            heartbeat_interval_ms=_HEARTBEAT_MS,
            dispatcher_timeout_ms=timeout * 1000,
        )
    )
    try:
        server.start()
        yield
    finally:
        server._stop()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
