"""An elastic job on Spark: it grows when the cluster does, and goes on when an executor is lost."""

import pytest
from elastic_jobs import Training, disturbing, train_on
from spark_testbed import ancestors, spark_cluster
from tfcollective_launchers.spark import run_elastic

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(900)]
START_S = 300.0


@pytest.fixture
def small(tmp_path_factory):
    """Two workers with one core each: their executors have two slots together."""
    with spark_cluster(tmp_path_factory.mktemp("small"), workers=2, cores=1) as made:
        yield made


@pytest.fixture
def context(small, make_context):
    return make_context(**{"spark.master": small.url, "spark.cores.max": "3"})


@pytest.fixture
def disturb(tmp_path):
    """Runs a function beside a job, and ends the training afterwards; its error is the test's."""
    with disturbing(Training(tmp_path)) as start:
        yield start


def test_a_job_grows_and_outlasts_an_executor(small, context, tmp_path, disturb, caplog):
    def act(training):
        training.trains_with(2)
        small.add_workers(1, cores=1)
        step = training.trains_with(3)
        newest = training.ranks(3)["worker:2"]
        ancestors(newest["pid"])[-1].kill()
        step = training.trains_with(2, after=step)
        training.trains_with(3, after=step)

    disturb(act)
    options = {"min_np": 1, "max_np": 3, "start_timeout": START_S, "env": {"TFC_TEST_FOLDER": str(tmp_path)}}
    totals = run_elastic(train_on, num_proc=2, **options)
    assert len(totals) == 3
    assert len(set(totals)) == 1
    assert "the agent was lost with its executor: ExecutorLost" in caplog.text
