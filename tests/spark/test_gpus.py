"""The GPUs that Spark gives to a task are those of its rank: a script stands for what finds a machine's."""

import re

import pytest
from launching import Run
from spark_testbed import CONF, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
START_S = 300.0


@pytest.fixture
def with_gpus(tmp_path):
    """One worker that finds two GPUs."""
    script = tmp_path / "gpus.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["3", "5"]}'\n""")
    script.chmod(0o755)
    folder = tmp_path / "cluster"
    folder.mkdir()
    with spark_cluster(folder, workers=1, gpu_script=script) as made:
        yield made


def test_each_rank_sees_the_gpu_of_its_task(with_gpus):
    program = "import os; print('my GPU is', os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OMP_NUM_THREADS'])"
    amounts = ("spark.executor.resource.gpu.amount", "spark.task.resource.gpu.amount", "spark.executor.cores")
    conf = {**CONF, **dict.fromkeys(amounts, "1")}
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    place = ("-np", "2", "--launcher", "spark", "--master", with_gpus.url, *words)
    with Run((*place, "python", "-c", program)) as job:
        code, out, err = job.finish(START_S)
        job.wait_until_gone(20)
    assert code == 0, err
    assert sorted(re.findall(r"my GPU is (\S+) 1", out)) == ["3", "5"]
