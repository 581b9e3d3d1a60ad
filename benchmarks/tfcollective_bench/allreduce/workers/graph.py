"""Ranks that reduce inside a ``tf.function``: tfcollective's op, Horovod's, or TensorFlow's own collectives.

Runs in every environment that has TensorFlow and the library asked for.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective_bench.allreduce.measure import measure, parse_arguments, pin

__all__ = ["main"]

# Far from the keys that the strategy gives to operations of its own.
_GROUP_KEY, _INSTANCE_KEY = 9000, 900_000


class _GraphOperation:
    """Calls a ``tf.function``; inputs and outputs are eager tensors, as in a training step."""

    def __init__(self, function: Any, tf: Any, count: int, dtype: str) -> None:
        self._tf = tf
        self._shape = (count,)
        self._dtype = tf.as_dtype(dtype)
        self._run = function.get_concrete_function(tf.TensorSpec(self._shape, self._dtype))
        self._input: Any = None
        self._output: Any = None

    def write(self, value: float) -> None:
        """See Operation."""
        self._output = None
        self._input = self._tf.fill(self._shape, self._tf.constant(value, self._dtype))

    def run(self) -> None:
        """See Operation."""
        self._output = self._run(self._input)

    def extremes(self) -> tuple[float, float]:
        """See Operation."""
        result = self._output.numpy()
        return float(result.min()), float(result.max())


class _Endpoint:
    """A rank whose collectives are TensorFlow functions; `reduce` sums a tensor over the ranks."""

    def __init__(self, tf: Any, rank: int, size: int, reduce: Callable[[Any], Any]) -> None:
        self._tf = tf
        self.rank = rank
        self.size = size
        self._function = tf.function(reduce, jit_compile=False, autograph=False)
        nothing = tf.function(tf.identity, autograph=False).get_concrete_function(tf.TensorSpec((1,), tf.float32))
        one = tf.zeros((1,))
        self.empty_call = lambda: nothing(one)
        self._token = _GraphOperation(self._function, tf, 1, "float32")
        self._token.write(0)
        self.barrier = self._token.run

    def operation(self, count: int, dtype: str) -> _GraphOperation:
        """See Endpoint."""
        return _GraphOperation(self._function, self._tf, count, dtype)

    def total(self, values: Sequence[float]) -> list[float]:
        """See Endpoint."""
        return [float(value) for value in self._function(self._tf.constant(values, self._tf.float64)).numpy()]


def _ours(pinned: bool, require_shm: bool) -> _Endpoint:
    from tfcollective._control.identity import discover

    pin(discover(Settings.load(), environ_snapshot()).task.index, pinned)
    import tensorflow as tf

    import tfcollective
    import tfcollective.tensorflow as tfc

    tfc.init()
    if require_shm and not tfcollective.get_communicator().info().uses_shared_memory:
        sys.exit("the ranks do not share memory")
    return _Endpoint(tf, tfc.rank(), tfc.size(), lambda tensor: tfc.allreduce(tensor, op=tfc.Sum))


def _horovod(pinned: bool) -> _Endpoint:
    pin(int(environ_snapshot()["HOROVOD_LOCAL_RANK"]), pinned)
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    return _Endpoint(tf, hvd.rank(), hvd.size(), lambda tensor: hvd.allreduce(tensor, op=hvd.Sum))


def _tensorflow(pinned: bool) -> _Endpoint:
    """CollectiveReduceV2 with its ring over gRPC, which MultiWorkerMirroredStrategy uses and sets up for us."""
    import tfcollective

    tfcollective.init()
    rank, size = tfcollective.rank(), tfcollective.size()
    pin(rank, pinned)
    workers = _addresses()
    tfcollective.shutdown()
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers}), task_type="worker", task_id=rank, rpc_layer="grpc"
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    (device,) = strategy.extended.worker_devices
    instances = itertools.count(_INSTANCE_KEY)

    def reduce(tensor: Any) -> Any:
        with tf.device(device):
            return tf.raw_ops.CollectiveReduceV2(
                input=tensor,
                group_size=size,
                group_key=_GROUP_KEY,
                instance_key=next(instances),  # every trace is an operation of its own, the same on all ranks
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
                communication_hint="ring",
            )

    return _Endpoint(tf, rank, size, reduce)


def _addresses() -> list[str]:
    """Finds a free port on every rank and tells the others. TensorFlow cannot take over a bound socket, so another
    program could take the port first; TensorFlow then says so and this run fails."""
    import numpy as np

    import tfcollective

    host = Settings.load().bind_host
    with closing(socket.socket()) as probe:
        probe.bind((host, 0))
        mine = [int(ipaddress.IPv4Address(host)), probe.getsockname()[1]]
        everybody = tfcollective.get_communicator().allgather(np.array([mine], np.int64))
    return [f"{ipaddress.IPv4Address(int(address))}:{port}" for address, port in everybody]


def main(arguments: Sequence[str]) -> None:
    """``ours|horovod|tensorflow`` and the options of measure.py."""
    options = parse_arguments(arguments[1:])
    kind = arguments[0]
    if kind == "horovod":
        endpoint = _horovod(options.pin)
    elif kind == "tensorflow":
        endpoint = _tensorflow(options.pin)
    else:
        endpoint = _ours(options.pin, options.require_shm)
    measure(endpoint, options)


if __name__ == "__main__":
    main(sys.argv[1:])
