"""The first job of docs/howto/kubernetes.md, word for word, with the real ``kubectl`` where it is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes_testbed import this_python
from time_limits import within

pytestmark = [pytest.mark.kubernetes, pytest.mark.tensorflow, pytest.mark.multiprocess]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "kubernetes.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S)


def block(begin):
    """The block that begins so."""
    (found,) = (text for text in BLOCKS if text.startswith(begin))
    return found


@pytest.fixture
def type_in(make_cluster, tmp_path):
    """Runs lines as they are typed, in a folder that is the image's working directory, too."""
    folder = tmp_path / "app"
    folder.mkdir()
    image = this_python(app=folder)
    image.workdir = "/app"
    cluster = make_cluster(image=image)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path}

    def run(text):
        command = ["bash", "-ec", "set -o pipefail\n" + text]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=within(240), stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout, done.stderr

    run(block("cat >train.py"))
    return run


def test_the_check(type_in):
    out, _ = type_in(block("pip install").partition("\n")[2])
    assert re.search(r"objects of a job: accepted, and none was made", out), out


@pytest.mark.skipif(not (shutil.which("kubectl") and shutil.which("openssl")), reason="needs kubectl and openssl")
def test_the_first_job(type_in):
    type_in(block("tfcollective manifest -np 2 --image"))
    out, _ = type_in(block("openssl rand"))
    said, shown = (re.sub(r"(?m)^(\[pod/train-\d)-\w{5}/", r"\1/", text) for text in (out, block("[pod/train")))
    assert sorted(line for line in said.splitlines() if "] rank" in line) == shown.splitlines()
    assert 'job.batch "train" deleted' in out


def test_the_job_that_is_waited_for(type_in):
    out, err = type_in(block("tfcollective run --launcher kubernetes"))
    first, *ranks = block("tfcollective: default/tfcollective-").splitlines()
    assert re.sub("-[0-9a-f]{6}:", ":", first) in [re.sub("-[0-9a-f]{6}:", ":", line) for line in err.splitlines()]
    assert sorted(line for line in out.splitlines() if "rank" in line) == ranks
