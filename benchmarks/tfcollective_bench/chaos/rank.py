"""The program of each rank of a disturbed job.

    tfcollective run -np 4 --min-np 1 -m tfcollective_bench.chaos.rank DIRECTORY SEED STEP_MS FRAMEWORK

Trains :mod:`.model` until the file ``stop`` is in DIRECTORY, and leaves its journal there. FRAMEWORK is ``numpy`` or
``tensorflow``. What it is to do to itself comes as :class:`Order` through a pipe that is named after its task. A step
takes STEP_MS milliseconds at least, as if an accelerator computed: how fast the others are then does not depend on how
many ranks share the cores.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tfcollective as tfc
from tfcollective import _runtime as runtime
from tfcollective import elastic
from tfcollective._base.settings import Settings
from tfcollective_bench.chaos import model
from tfcollective_bench.journal import DIES, ENDS, READY, STARTS, STEP, Journal

__all__ = [
    "ALLREDUCE",
    "COMMIT",
    "CONNECT",
    "EXIT",
    "SLOW",
    "STOP_FILE",
    "SYNC",
    "Order",
    "main",
    "pipe_of",
]

NUMPY = "numpy"
STOP_FILE = "stop"
ALLREDUCE, COMMIT, SYNC, CONNECT, EXIT, SLOW = "allreduce", "commit", "sync", "connect", "exit", "slow"
_TYPICAL_S = 0.002  # of a phase that was not seen yet
_LOOK_S = 0.0005  # for the moment between two worlds
_SLOW_STEP_S = 0.2
_EXIT_CODE = 3


@dataclass(frozen=True)
class Order:
    """An order to a rank to do something to itself.

    Attributes:
        what: kill itself in this phase, ``exit``, or be ``slow``.
        moment: how far into the phase, from 0 to 1; seconds of slowness.
    """

    what: str
    moment: float

    def encode(self) -> bytes:
        """Returns the order as one line."""
        return json.dumps(asdict(self)).encode("ascii") + b"\n"


def pipe_of(directory: Path, task: str) -> Path:
    """Returns the pipe through which a task's process gets its orders."""
    return directory / f"{task.replace(':', '-')}.orders"


class Orders:
    """Carries out what this process is ordered to do to itself."""

    def __init__(self, directory: Path, journal: Journal) -> None:
        self._journal = journal
        self._next: Order | None = None
        self._typical: dict[str, float] = {}
        self._slow_until = 0.0
        self._path = pipe_of(directory, str(tfc.task()))
        if not self._path.exists():
            os.mkfifo(self._path, 0o600)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while True:
            with self._path.open("rb") as pipe:  # until one writes into it
                for line in pipe:
                    self._take(Order(**json.loads(line)))

    def _take(self, order: Order) -> None:
        if order.what == SLOW:
            self._slow_until = time.monotonic() + order.moment
            return
        self._next = order
        if order.what == CONNECT:
            while not runtime.current().between_worlds:
                time.sleep(_LOOK_S)  # the moment to be hit gives no notice; this thread ends with the process
            self._die_in(CONNECT, order)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Puts the process into this phase while it is open."""
        began, order = time.monotonic(), self._next
        if order is not None and order.what == phase:
            threading.Thread(target=self._die_in, args=(phase, order), daemon=True).start()
        yield
        self._typical[phase] = time.monotonic() - began

    def _die_in(self, phase: str, order: Order) -> None:
        time.sleep(order.moment * self._typical.get(phase, _TYPICAL_S))  # so far into the phase
        self._journal.note(DIES)
        os.kill(os.getpid(), signal.SIGKILL)

    def between_steps(self) -> None:
        """Ends the process, or holds it up, where that is ordered."""
        order = self._next
        if order is not None and order.what == EXIT:
            self._journal.note(DIES)
            sys.exit(_EXIT_CODE)
        if time.monotonic() < self._slow_until:
            time.sleep(_SLOW_STEP_S)  # the fault is to be slow


class NumpyTraining:
    """The model in arrays.

    Args:
        seed: of the data.
        orders: the actions in the phases of a step.
    """

    def __init__(self, seed: int, orders: Orders) -> None:
        self._seed, self._orders = seed, orders

        class State(elastic.ObjectState):
            """Knows when it is taken over."""

            def take(self, root: int) -> None:
                with orders.during(SYNC):
                    super().take(root)

        self.state: Any = State(step=0, weights=np.zeros(model.DIMENSION), load=np.zeros(model.LOAD))

    def step(self, stop: bool) -> bool:
        """Does one step of all ranks. Returns true if one of them wants to stop."""
        state, rank = self.state, tfc.rank()
        values = np.empty(model.DIMENSION + 1 + model.LOAD)
        values[: model.DIMENSION] = model.gradient(state.weights, self._seed, state.step, rank, tfc.size())
        values[model.DIMENSION] = stop
        values[model.DIMENSION + 1 :] = model.load_of(state.step, rank)
        with self._orders.during(ALLREDUCE):
            summed = tfc.get_communicator().allreduce(values, tfc.Sum)
        state.weights = state.weights - model.learning_rate(state.step) * summed[: model.DIMENSION]
        state.load = state.load + summed[model.DIMENSION + 1 :]
        return bool(summed[model.DIMENSION])

    def result(self) -> tuple[list[float], float, float]:
        """The weights, and the smallest and the largest value of the load."""
        return self.state.weights.tolist(), float(self.state.load.min()), float(self.state.load.max())


class TensorFlowTraining:
    """The same in variables, in a function that is traced once."""

    def __init__(self, seed: int, orders: Orders) -> None:
        import tensorflow as tf

        import tfcollective.tensorflow as tfc_tf

        self._seed, self._orders = seed, orders
        self._tf, self._traces = tf, 0
        weights = tf.Variable(np.zeros(model.DIMENSION))
        load, stop = tf.Variable(np.zeros(model.LOAD)), tf.Variable(np.float64(0))
        self._variables = weights, load, stop

        class State(tfc_tf.elastic.TensorFlowState):
            """Knows when it is taken over."""

            def take(self, root: int) -> None:
                with orders.during(SYNC):
                    super().take(root)

        scalar = tf.TensorSpec([], tf.float64)
        rows = tf.TensorSpec([None, model.DIMENSION], tf.float64)
        wanted = tf.TensorSpec([None], tf.float64)

        # AutoGraph, which a killed process leaves files of, has nothing to do here.
        @tf.function(input_signature=[rows, wanted, scalar, scalar, scalar], autograph=False)  # type: ignore[untyped-decorator]
        def step(rows: Any, wanted: Any, rate: Any, added: Any, stops: Any) -> Any:
            self._traces += 1
            with tfc_tf.DistributedGradientTape(tf.GradientTape(), op=tfc.Sum) as tape:
                error = tf.linalg.matvec(rows, weights) - wanted
                loss = 0.5 / model.BATCH * tf.reduce_sum(error**2) + tf.reduce_sum(load) * added + stop * stops
            gradients = tape.gradient(loss, self._variables)
            weights.assign_sub(rate * gradients[0])
            load.assign_add(gradients[1])
            return gradients[2]

        self._step: Callable[..., Any] = step
        # Traced before it joins: the others would wait for that. With zeros it changes nothing.
        nothing = np.float64(0)
        step(np.zeros((1, model.DIMENSION)), np.zeros(1), nothing, nothing, nothing)
        self.state: Any = State(list(self._variables), step=0)

    def step(self, stop: bool) -> bool:
        """See :class:`NumpyTraining`."""
        number, rank = self.state.step, tfc.rank()
        rows, wanted = model.batch(self._seed, number, rank, tfc.size())
        rate = np.float64(model.learning_rate(number))
        with self._orders.during(ALLREDUCE):
            stops = self._step(rows, wanted, rate, np.float64(model.load_of(number, rank)), np.float64(stop))
        if self._traces > 1:
            raise AssertionError(f"the step was traced {self._traces} times")
        return float(stops) > 0

    def result(self) -> tuple[list[float], float, float]:
        """See :class:`NumpyTraining`."""
        weights, load, _ = (variable.numpy() for variable in self._variables)
        return weights.tolist(), float(load.min()), float(load.max())


def main(arguments: Sequence[str]) -> None:
    """Trains; see the module."""
    directory, seed, step_s, framework = Path(arguments[0]), int(arguments[1]), float(arguments[2]) / 1e3, arguments[3]
    task = str(Settings.load().task)
    journal = Journal(directory, task)
    journal.note(STARTS)
    with (directory / f"{task.replace(':', '-')}.{os.getpid()}.stacks").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        tfc.init()
        orders = Orders(directory, journal)
        training = (NumpyTraining if framework == NUMPY else TensorFlowTraining)(seed, orders)
        _train(training, directory / STOP_FILE, step_s, journal, orders)
        weights, least, most = training.result()
        if tfc.rank() == 0:
            document = {"step": training.state.step, "weights": weights, "load": [least, most]}
            (directory / "result.json").write_text(json.dumps(document))
        journal.note(ENDS)
        faulthandler.unregister(signal.SIGUSR1)


def _train(training: Any, stop: Path, step_s: float, journal: Journal, orders: Orders) -> None:
    @elastic.run
    def train(state: Any) -> None:
        generation, rank, size = runtime.generation(), tfc.rank(), tfc.size()
        journal.note(READY, generation, rank, size, state.step)
        while True:
            due = time.monotonic() + step_s
            ends = training.step(stop.exists())
            state.step += 1
            # Before the commit, which may not return: of the lines of a step, that of the newest world counts.
            journal.note(STEP, generation, rank, size, state.step)
            if ends:
                state.save()
                return
            with orders.during(COMMIT):
                state.commit()
            orders.between_steps()
            time.sleep(max(0.0, due - time.monotonic()))

    train(training.state)


if __name__ == "__main__":
    main(sys.argv[1:])
