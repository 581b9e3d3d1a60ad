"""`tfcollective check --launcher yarn` and its old name on the real cluster: well, and with one thing wrong."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(600)]

STEPS = ("configuration", "Java", "command yarn", "skein", "ResourceManager", "queue", "HDFS")
PROBE = "an application with one container"
OLD_NAME = "import sys; from tfcollective._cli import check_hadoop_main; sys.exit(check_hadoop_main())"


def check(*words, **environ):
    environ = {**os.environ, **environ}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=500, check=False, env=environ
    )


def test_all_is_well(yarn):
    done = check("-m", "tfcollective", "check", "--launcher", "yarn", "--remote-python", sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line.removeprefix("ok    ").strip().partition(":")[0] for line in done.stdout.splitlines()]
    assert found == ["versions", "native library", *STEPS, PROBE]
    assert "2 nodes, 12288 MiB, 16 vcores, labels: gpu" in done.stdout
    assert yarn.latest()["name"] == "tfcollective-check"


def test_the_old_name_reports_problems_and_result(yarn, tmp_path):
    before = len(yarn.apps("FINISHED"))
    done = check("-c", OLD_NAME, "--remote-python", sys.executable, "--queue", "nosuch", HADOOP_CONF_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "FAILED configuration: " in done.stdout
    assert "to mend it: let HADOOP_CONF_DIR name the directory" in done.stdout
    assert done.stdout.splitlines()[-1] == "Hadoop setup: KO"
    done = check("-c", OLD_NAME, "--remote-python", sys.executable, "--queue", "nosuch")
    assert done.returncode == 1
    assert "FAILED queue: YARN has no queue 'nosuch'; there are: default" in done.stdout
    assert len(yarn.apps("FINISHED")) == before
