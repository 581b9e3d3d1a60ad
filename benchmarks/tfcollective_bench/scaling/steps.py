"""A rank that reduces the gradients of steps: tfcollective's or Horovod's ``DistributedGradientTape``.

    python -m tfcollective_bench.scaling.steps ours|horovod ITERATIONS BYTES TENSORS...

Runs in every environment that has TensorFlow and the library. A step is a ``tf.function`` that takes the gradients of
so many variables, whose loss costs nearly nothing, through the tape; the same step with TensorFlow's own tape is timed
next to it. Rank 0 prints a line of JSON for every number of tensors.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["main"]

_WARM_UP = 3
_FLOAT_BYTES = 4


class _Steps:
    """Steps over `tensors` gradients, `total_bytes` together, on one rank of a library (Horovod's words)."""

    def __init__(self, library: Any, tensors: int, total_bytes: int) -> None:
        import tensorflow as tf

        self._tf, self._library = tf, library
        elements = max(1, total_bytes // tensors // _FLOAT_BYTES)
        self._variables = [tf.Variable(tf.zeros((elements,)), name=f"scaling{tensors}/{i}") for i in range(tensors)]
        self._scale = tf.Variable(float(library.rank() + 1))
        self.reduced = self._function(library.DistributedGradientTape)
        self.local = self._function(lambda tape: tape)

    def _function(self, wrap: Callable[[Any], Any]) -> Callable[[], Any]:
        tf = self._tf

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = self._scale * tf.add_n([tf.reduce_sum(variable) for variable in self._variables])
            return wrap(tape).gradient(loss, self._variables)

        run: Callable[[], Any] = tf.function(step, jit_compile=False, autograph=False)
        return run

    def check(self) -> None:
        """Ends the process with a message unless every gradient is the average over the ranks."""
        expected = (self._library.size() + 1) / 2
        for gradient in self.reduced():
            values = gradient.numpy()
            if values.min() != expected or values.max() != expected:
                sys.exit(f"wrong gradient on rank {self._library.rank()}: {values.min()} to {values.max()}")


class _World:
    """The collective operations of the ranks outside the steps."""

    def __init__(self, library: Any) -> None:
        import tensorflow as tf

        self._library, self._tf = library, tf
        self._one = tf.ones(())

    def barrier(self) -> None:
        """Returns when all ranks have come."""
        self._library.allreduce(self._one, name="scaling/barrier")

    def mean(self, values: Sequence[float]) -> list[float]:
        """The means over the ranks."""
        tensor = self._tf.constant(values, self._tf.float64)
        return [float(value) for value in self._library.allreduce(tensor, name=f"scaling/mean{len(values)}").numpy()]


def _times(world: _World, run: Callable[[], Any], count: int) -> list[float]:
    """Seconds of each of `count` calls, a barrier before each."""
    found = []
    for _ in range(count):
        world.barrier()
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return found


def _processor_time(world: _World, run: Callable[[], Any], count: int) -> float:
    world.barrier()
    begin = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - begin) / count


def _measure(library: Any, tensors: int, total_bytes: int, iterations: int) -> dict[str, Any]:
    world, steps = _World(library), _Steps(library, tensors, total_bytes)
    steps.check()
    for run in (steps.reduced, steps.local):
        _times(world, run, _WARM_UP)
    times = world.mean(_times(world, steps.reduced, iterations))
    local = world.mean(_times(world, steps.local, iterations))
    (cpu,) = world.mean([_processor_time(world, steps.reduced, iterations)])
    return {"tensors": tensors, "times": times, "local": local, "cpu": cpu * library.size()}


def main(arguments: Sequence[str]) -> None:
    """Measures; see the module."""
    kind, iterations, total_bytes, *tensors = arguments
    if kind == "horovod":
        import horovod.tensorflow as library
    else:
        import tfcollective.tensorflow as library
    library.init()
    for count in map(int, tensors):
        document = _measure(library, count, int(total_bytes), int(iterations))
        if library.rank() == 0:
            print(json.dumps(document), flush=True)
    library.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
