"""A real Spark cluster on this machine's loopback, brought up once."""

import sys
import tempfile

import pytest
from spark_testbed import CONF, HOST, spark_cluster


@pytest.fixture(scope="session", autouse=True)
def _surroundings():
    """All on the loopback; a directory of records of our own: other containers on this machine may sweep the usual."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="tfc-spark-") as folder:
        patch.setenv("SPARK_LOCAL_IP", HOST)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("TFCOLLECTIVE_RUNTIME_DIR", folder)
        yield


@pytest.fixture(scope="session")
def cluster(_surroundings, tmp_path_factory):
    """A master and two workers with two cores each."""
    with spark_cluster(tmp_path_factory.mktemp("spark")) as made:
        yield made


@pytest.fixture(scope="session")
def options(cluster):
    """The arguments of ``tfcollective run`` for a job on it."""
    conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    return ("--launcher", "spark", "--master", cluster.url, *conf)


@pytest.fixture(scope="module")
def make_context(cluster, tmp_path_factory):
    """Makes the SparkContext of a module's tests; it is stopped after them."""
    import pyspark

    made = []

    def make(**more):
        conf = pyspark.SparkConf().setMaster(cluster.url).setAppName("tests")
        log = tmp_path_factory.mktemp("event-log")
        defaults = {
            **CONF,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.executor.cores": "1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{log}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
        for name, value in {**defaults, **more}.items():
            conf.set(name, value)
        context = pyspark.SparkContext(conf=conf)
        context.event_log = log
        made.append(context)
        return context

    yield make
    for context in made:
        context.stop()
