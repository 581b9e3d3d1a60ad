"""The functions that jobs on YARN run in the tests. Only `train` needs TensorFlow."""

import os
import sys
import time
from pathlib import Path

from elastic_jobs import LONG_S, sum_of

AGENT = "tfcollective_launchers.yarn.container"  # the module that runs in a container


def _meet(name="here"):
    import tfcollective

    tfcollective.init()
    folder = Path(os.environ["TFC_TEST_FOLDER"])
    (folder / f"{name}-{tfcollective.rank()}").write_text(str(os.getpid()))
    return tfcollective.rank(), tfcollective.size()


def report(*args):
    """Where each rank is, and what they have in common."""
    rank, size = _meet()
    print(f"rank {rank} says hello", flush=True)
    files = sorted(str(path) for path in Path().iterdir())
    here = str(Path.cwd())
    return rank, size, sum_of(float(rank)), os.environ["NM_HOST"], here, files, len(args and args[0]), sys.prefix


def go_on():
    """Runs collectives until it is ended from outside."""
    rank, _ = _meet()
    print(f"rank {rank} is up", flush=True)
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        sum_of(1.0)
        time.sleep(0.05)


def wait_for(name):
    """Collectives until a file is there; how many ranks have seen it."""
    _meet()
    path = Path(os.environ["TFC_TEST_FOLDER"]) / name
    deadline = time.monotonic() + LONG_S
    while sum_of(float(path.exists())) == 0.0:
        assert time.monotonic() < deadline, f"{path} has not come"
        time.sleep(0.1)
    return sum_of(1.0)


def with_evaluator(until, *, fails):
    """Ranks that wait for a file; an evaluator that says that it is there, and then fails or stays."""
    import tfcollective

    tfcollective.init()
    if tfcollective.task().type != "evaluator":
        return wait_for(until)
    (Path(os.environ["TFC_TEST_FOLDER"]) / "evaluating").touch()
    if fails:
        raise ValueError("nothing to evaluate")
    time.sleep(LONG_S)  # its container is ended
    return None


def write(place, after=None):
    """Rank 0 puts a file somewhere, while the other ranks are in a collective; ``after`` a file has come."""
    rank, _ = _meet()
    if after is not None:
        wait_for(after)
    if rank == 0:
        from tfcollective import files

        with files.written_whole(place) as path:
            path.write_text("new")
    return sum_of(1.0)


def read_and_write(place, after=None):
    """What is in a file, and whether this rank has a ticket of Kerberos; rank 0 puts another one beside it. ``after`` a
    file has come."""
    from tfcollective import files

    rank, _ = _meet()
    if after is not None:
        wait_for(after)
    with files.local_copy(place) as path:
        text = path.read_text()
    if rank == 0:
        with files.written_whole(f"{place}.new") as path:
            path.write_text("new")
    sum_of(1.0)
    return text, "KRB5CCNAME" in os.environ


def fail_on_one():
    """Rank 1 raises while the others are in a collective."""
    rank, _ = _meet()
    if rank == 1:
        raise ValueError("this rank has had enough")
    sum_of(1.0)


def eat_memory():
    """The worker takes more memory than its container has."""
    rank, _ = _meet()
    hold = []
    while rank == 1:
        hold.append(bytes([7]) * (64 << 20))
        time.sleep(0.2)
    go_on()


def train(steps=20):
    """A small Keras model: the loss after some steps, which is the same on all ranks."""
    import numpy
    import tensorflow as tf

    import tfcollective.keras as hvd

    hvd.init()
    tf.keras.utils.set_random_seed(7)
    numbers = numpy.random.default_rng(1)
    x = numbers.normal(size=(hvd.size() * steps * 8, 4)).astype("float32")
    y = x @ numpy.array([[1.0], [-2.0], [3.0], [0.5]], "float32")
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05)), "mse")
    model.fit(
        x[hvd.rank() :: hvd.size()],
        y[hvd.rank() :: hvd.size()],
        batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    return float(model.evaluate(x, y, verbose=0))


def elastic_experiment(model_dir, epochs):
    """One whose chief waits in its second epoch until a file called `go` is there: it is to be lost there."""
    import numpy
    import tensorflow as tf

    import tfcollective.keras as tfc

    folder = Path(os.environ["TFC_TEST_FOLDER"])

    class Waits(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1 and tfc.size() == 2:
                (folder / f"here-{tfc.rank()}").write_text(str(os.getpid()))
                deadline = time.monotonic() + LONG_S
                while not (folder / "go").exists():
                    assert time.monotonic() < deadline, "nothing has been lost"
                    time.sleep(0.1)

    def model():
        made = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        made.compile(tfc.DistributedOptimizer(tf.keras.optimizers.SGD(0.05)), "mse")
        return made

    x = numpy.random.default_rng(1).normal(size=(240, 4)).astype("float32")
    return tfc.KerasExperiment(
        model=model,
        model_dir=model_dir,
        train_params={"epochs": epochs, "batch_size": 8, "verbose": 0, "callbacks": [Waits()]},
        input_data_fn=lambda: x,
        target_data_fn=lambda: x.sum(1),
    )


def experiment(model_dir, epochs, waits_in=None):
    """A Keras experiment whose data come in the same order in every epoch, also in one that is started again. The first
    time it waits in an epoch until it is killed."""
    import numpy
    import tensorflow as tf

    import tfcollective.keras as tfc

    tfc.init()
    numbers = numpy.random.default_rng(1)
    x = numbers.normal(size=(240, 4)).astype("float32")
    y = x @ numpy.array([[1.0], [-2.0], [3.0], [0.5]], "float32")

    def model():
        tf.keras.utils.set_random_seed(7)
        made = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        made.compile(tfc.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), "mse")
        return made

    def wait(epoch, logs):
        waited = Path(os.environ["TFC_TEST_FOLDER"]) / "waited"
        if epoch == waits_in and tfc.rank() == 0 and not waited.exists():
            waited.touch()
            time.sleep(LONG_S)

    return tfc.KerasExperiment(
        model=model,
        model_dir=model_dir,
        train_params={
            "epochs": epochs,
            "batch_size": 8,
            "shuffle": False,
            "verbose": 0,
            "callbacks": [tf.keras.callbacks.LambdaCallback(on_epoch_begin=wait)],
        },
        input_data_fn=lambda: x[tfc.rank() :: tfc.size()],
        target_data_fn=lambda: y[tfc.rank() :: tfc.size()],
    )
