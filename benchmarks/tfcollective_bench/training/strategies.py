"""Ways of training together: one small class each, all with the same interface. Runs in the training processes only.

Every library is imported when its strategy is chosen: the environments of the benchmark have one of them each.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tfcollective_bench.training.task import TrainingTask

__all__ = ["STRATEGIES", "Strategy"]

_POLL_S = 0.002
_MIN_SHARD_BYTES = 256 << 10


class Strategy:
    """A process alone: what the other strategies change."""

    def __init__(self, task: TrainingTask) -> None:
        self.task = task
        self.rank = task.rank or 0

    #: Whether this process's samples are those of all workers.
    counts_all = False

    def start(self) -> None:
        """Joins the other processes. Before TensorFlow has made any thread."""

    def scope(self) -> AbstractContextManager[Any]:
        """Returns the context in which model and optimizer are created."""
        return contextlib.nullcontext()

    def optimizer(self, optimizer: Any) -> Any:
        """The optimizer to compile with."""
        return optimizer

    def callbacks(self) -> list[Any]:
        """Callbacks that ``fit`` needs."""
        return []

    def dataset(self, make: Any) -> Any:
        """Returns the dataset for ``fit``; ``make(rank, ...)`` gives that of the batches of these processes."""
        return make(self.rank)

    def steps(self) -> int:
        """``steps_per_epoch`` for ``fit``."""
        return self.task.steps

    def wait_for_all(self) -> None:
        """Returns when all training processes have come here; raises TimeoutError when one does not come in time."""

    def versions(self) -> Mapping[str, str]:
        """Returns the versions of the libraries that this strategy adds."""
        return {}


class Unconnected(Strategy):
    """Processes that only start together: the most that processes on these cores can do."""

    def wait_for_all(self) -> None:
        """Leaves a file for this process and waits for those of the others."""
        directory = Path(self.task.results)
        (directory / f"ready.{self.rank}").touch()
        deadline = time.monotonic() + self.task.timeout
        while len(list(directory.glob("ready.*"))) < self.task.size:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all {self.task.size} processes were ready after {self.task.timeout:g} s")
            time.sleep(_POLL_S)  # nothing connects these processes, so nothing can wake them


class Ours(Strategy):
    """tfcollective."""

    def start(self) -> None:
        """Joins the world."""
        import tfcollective

        tfcollective.init()
        self.rank = tfcollective.rank()

    def optimizer(self, optimizer: Any) -> Any:
        """Reduces gradients."""
        import tfcollective.keras as tfk

        return tfk.DistributedOptimizer(optimizer, compression=self.compression(tfk.Compression))

    def compression(self, known: Any) -> Any:
        """Returns the compression of the gradients."""
        return known.none

    def callbacks(self) -> list[Any]:
        """Equal weights at the start."""
        import tfcollective.keras as tfk

        return [tfk.BroadcastGlobalVariablesCallback(0)]

    def wait_for_all(self) -> None:
        """A barrier."""
        import tfcollective.keras as tfk

        tfk.barrier()

    def versions(self) -> Mapping[str, str]:
        """Ours."""
        import tfcollective

        return {"tfcollective": tfcollective.__version__}


class OursBfloat16(Ours):
    """tfcollective with half the bytes on the wire."""

    def compression(self, known: Any) -> Any:
        """Returns the compression to bfloat16."""
        return known.bf16


class OursUnmodified(Ours):
    """What a script is with ``--data-parallel``: it has batches of all processes' rows, and no word of tfcollective."""

    def optimizer(self, optimizer: Any) -> Any:
        """Keras's."""
        return optimizer

    def callbacks(self) -> list[Any]:
        """None."""
        return []

    def dataset(self, make: Any) -> Any:
        """The batches of all processes together."""
        return make(*range(self.task.size))


class Horovod(Strategy):
    """Horovod, with its defaults."""

    def start(self) -> None:
        """Joins the world."""
        import horovod.tensorflow.keras as hvd

        hvd.init()
        self.rank = hvd.rank()

    def optimizer(self, optimizer: Any) -> Any:
        """Reduces gradients."""
        import horovod.tensorflow.keras as hvd

        return hvd.DistributedOptimizer(optimizer)

    def callbacks(self) -> list[Any]:
        """Equal weights at the start."""
        import horovod.tensorflow.keras as hvd

        return [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]

    def wait_for_all(self) -> None:
        """A small all-reduce, which every version has."""
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.allreduce(tf.zeros(()), name="bench/wait_for_all")

    def versions(self) -> Mapping[str, str]:
        """Horovod's."""
        import horovod

        return {"horovod": horovod.__version__}


class MultiWorkerMirrored(Strategy):
    """``tf.distribute.MultiWorkerMirroredStrategy`` with the ring over gRPC; Keras 2. Cluster from TF_CONFIG."""

    def start(self) -> None:
        """Starts the strategy. Must be the first thing that a program does with TensorFlow."""
        import tensorflow as tf

        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def scope(self) -> AbstractContextManager[Any]:
        """The strategy's."""
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def dataset(self, make: Any) -> Any:
        """Makes this worker's own batches, so that nothing has to be split."""
        return self._strategy.distribute_datasets_from_function(lambda context: make(self.rank))


class ParameterServer(Strategy):
    """The coordinator of ``tf.distribute.ParameterServerStrategy`` (asynchronous; Keras 2). Cluster from TF_CONFIG.

    The coordinator does not train; servers and workers run :class:`ParameterServerTask`.
    """

    counts_all = True

    def start(self) -> None:
        """Connects to servers and workers, with variables split over the servers."""
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=_MIN_SHARD_BYTES, max_shards=self.task.shards
        )
        self._strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)

    def scope(self) -> AbstractContextManager[Any]:
        """The strategy's."""
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def dataset(self, make: Any) -> Any:
        """Made on every worker. The function runs in a graph, where a worker's number is not known: all workers have
        the batches of all, and each starts where chance puts it."""
        import tensorflow as tf

        def mixed(context: Any) -> Any:
            del context
            choices = [make(rank) for rank in range(self.task.size)]
            return tf.data.Dataset.sample_from_datasets(choices)

        return tf.keras.utils.experimental.DatasetCreator(mixed)

    def steps(self) -> int:
        """A step is one worker's batch, so that equal samples need as many steps as all workers make."""
        return self.task.steps * self.task.size


class ParameterServerTask(Strategy):
    """A server or a worker of a parameter-server job: serves until it is ended."""

    def start(self) -> None:
        """Does not return."""
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            start=True,
        )
        server.join()


STRATEGIES: Mapping[str, type[Strategy]] = {
    "single": Strategy,
    "unconnected": Unconnected,
    "ours": Ours,
    "ours-bf16": OursBfloat16,
    "ours-unmodified": OursUnmodified,
    "horovod": Horovod,
    "mwms": MultiWorkerMirrored,
    "ps": ParameterServer,
    "ps-task": ParameterServerTask,
}
