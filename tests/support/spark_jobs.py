"""The functions that jobs on Spark run in the tests, without TensorFlow but where they say so."""

import os
import time
from pathlib import Path

from elastic_jobs import LONG_S, sum_of

SPARKS = ("SPARK_", "PYTHON_WORKER", "PYTHON_UDF", "PYTHON_DAEMON", "PYTHONHASHSEED")


def report(*args, **kwargs):
    """What each rank finds, and what they have in common."""
    import tfcollective

    tfcollective.init()
    print(f"rank {tfcollective.rank()} says hello", flush=True)
    return {
        "rank": tfcollective.rank(),
        "size": tfcollective.size(),
        "sum": sum_of(tfcollective.rank() + 1.0),
        "given": (args, kwargs),
        "key": Path(os.environ["TFCOLLECTIVE_KEY_FILE"]).read_text(),
        "of_spark": sorted(name for name in os.environ if name.startswith(SPARKS)),
        "path": os.environ.get("PYTHONPATH", ""),
        "threads": os.environ["TF_NUM_INTRAOP_THREADS"],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def fail_on_one():
    """Rank 1 raises while the others are in a collective."""
    import tfcollective

    tfcollective.init()
    if tfcollective.rank() == 1:
        raise ValueError("this rank has had enough")
    sum_of(1.0)


def name_agent(folder):
    """Each process leaves the process id of its agent, in a file with the name of its task."""
    import tfcollective

    tfcollective.init()
    (Path(folder) / str(tfcollective.task())).write_text(str(os.getppid()))


def go_on(folder, until="finish"):
    """Collectives until there is a file of this name; each rank says its process id in one of its own."""
    import tfcollective

    tfcollective.init()
    (Path(folder) / f"rank-{tfcollective.rank()}-{os.getpid()}").touch()
    deadline = time.monotonic() + LONG_S
    while sum_of(float((Path(folder) / until).exists())) == 0.0:
        assert time.monotonic() < deadline, f"{until} has not come"
        time.sleep(0.1)
    return tfcollective.size()


def read_rows(batch_size, label):
    """What a rank gets of a DataFrame, batch by batch, and how many steps it makes with the others. TensorFlow's."""
    import numpy
    import tensorflow as tf

    import tfcollective.tensorflow as tfc
    from tfcollective import spark

    tfc.init()
    data = spark.dataset(batch_size, label=label)
    seen, sizes = [], []
    for features, labels in data:
        seen += [
            (int(number), text.decode(), vector.tolist(), float(one))
            for number, text, vector, one in zip(
                features["number"].numpy(), features["text"].numpy(), features["vector"].numpy(), labels.numpy()
            )
        ]
        sizes.append(len(labels))
        tfc.allreduce(tf.ones([1]), name="step")
    last = int(tfc.join())
    try:
        next(iter(data))
        again = ""
    except tf.errors.OpError as error:
        again = error.message
    return {"seen": seen, "sizes": sizes, "last": last, "again": again, "numpy": numpy.__version__}


def read_late(folder):
    """Reads a first batch, waits until there is a file called `go`, and reads the others; how many rows there were."""
    import tfcollective
    from tfcollective import spark

    tfcollective.init()
    batches = iter(spark.dataset(10))
    count = len(next(batches)["text"])
    (Path(folder) / "reads").touch()
    deadline = time.monotonic() + LONG_S
    while not (Path(folder) / "go").exists():
        assert time.monotonic() < deadline, "go has not come"
        time.sleep(0.1)
    return count + sum(len(batch["text"]) for batch in batches)


def stop_reading():
    """Ends after the first batch of many."""
    import tfcollective
    from tfcollective import spark

    tfcollective.init()
    return len(next(iter(spark.dataset(10))))
