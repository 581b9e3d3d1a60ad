"""What the cluster does not do when a job needs it: HDFS is full or read-only, the ResourceManager away for a while, an
environment damaged, a certificate out of date."""

import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yarn_jobs

import tfcollective
from tfcollective import LaunchError, TaskSpec, WorkerFailedError, files

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(1200)]

PAIR = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 1)}
HADOOP = Path(__file__).resolve().parents[2] / "tools" / "hadoop" / "cluster.py"


@pytest.fixture
def writable_afterwards(hdfs):
    yield
    hdfs("dfsadmin", "-safemode", "leave")


@pytest.fixture
def read_only(hdfs, writable_afterwards):
    hdfs("dfsadmin", "-safemode", "enter")


def test_hdfs_is_full(yarn, on_yarn, hdfs):
    place = f"{hdfs.url}/full/model"
    with files.written_whole(place) as path:
        path.write_text("old")
    hdfs("dfsadmin", "-setSpaceQuota", "1m", f"{hdfs.url}/full")
    with pytest.raises(WorkerFailedError, match=r"cannot write hdfs://.*/full/model: .*quota") as caught:
        tfcollective.run(yarn_jobs.write, (place,), task_specs=PAIR, **on_yarn())
    assert caught.value.first["task"] == "chief:0"
    with files.local_copy(place) as path:
        assert path.read_text() == "old"
    assert list(files.list_files(f"{hdfs.url}/full")) == ["model"]


def test_hdfs_is_read_only_at_submission(yarn, on_yarn, read_only):
    with pytest.raises(LaunchError, match="safe mode"):
        tfcollective.run(yarn_jobs.report, task_specs=PAIR, **on_yarn())
    assert not yarn.apps()


def test_hdfs_becomes_read_only_while_a_job_runs(yarn, on_yarn, hdfs, when_all_run, tmp_path, writable_afterwards):
    place = f"{hdfs.url}/model"
    with files.written_whole(place) as path:
        path.write_text("old")

    def forbid(app_id):
        hdfs("dfsadmin", "-safemode", "enter")
        (tmp_path / "go").touch()

    when_all_run(forbid)
    with pytest.raises(WorkerFailedError, match=r"(?s)cannot write hdfs://.*/model: .*safe mode") as caught:
        tfcollective.run(yarn_jobs.write, (place, "go"), task_specs=PAIR, **on_yarn())
    assert caught.value.first["task"] == "chief:0"
    with files.local_copy(place) as path:
        assert path.read_text() == "old"


def test_a_job_outlasts_the_resource_managers_restart(yarn, on_yarn, when_all_run, tmp_path):
    def restart(app_id):
        command = [sys.executable, str(HADOOP), "restart", "resourcemanager", "--state", os.environ["HADOOP_HOME"]]
        subprocess.run(command, check=True, capture_output=True, timeout=700)
        (tmp_path / "go").touch()

    thread = when_all_run(restart)
    assert tfcollective.run(yarn_jobs.wait_for, ("go",), task_specs=PAIR, **on_yarn()) == [2.0, 2.0]
    thread.join(60)
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_an_environment_that_cannot_be_unpacked_is_named(yarn, on_yarn, tmp_path):
    archive = tmp_path / "environment.tar.gz"
    archive.write_bytes(b"no archive" * 1000)
    with pytest.raises(LaunchError, match=r"(?s)without its coordinator's report.*environment"):
        tfcollective.run(yarn_jobs.report, task_specs=PAIR, **on_yarn(python=None, archive=str(archive)))


def test_without_yarn_on_the_path_nothing_begins(yarn, on_yarn, tmp_path):
    run = [sys.executable, "-m", "tfcollective", "run", "--launcher", "yarn", "--remote-python", sys.executable]
    environ = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [*run, "-np", "1", sys.executable, "-c", ""],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 64
    assert "there is no command `yarn` on the PATH: run this where Hadoop's client is installed" in done.stderr
    assert "Traceback" not in done.stderr


def expired_credentials(folder):
    """skein's own, a year too late."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "skein-internal")])
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - timedelta(days=366))
    certificate = builder.not_valid_after(now - timedelta(days=1)).sign(key, hashes.SHA256())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "skein.crt").write_bytes(certificate.public_bytes(pem))
    (folder / "skein.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def test_outdated_skein_credentials_do_not_matter(yarn, on_yarn, tmp_path):
    expired_credentials(tmp_path)
    environ = {**os.environ, "SKEIN_CONFIG": str(tmp_path)}
    theirs = [sys.executable, "-c", "import skein; skein.Client()"]
    refused = subprocess.run(theirs, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert refused.returncode != 0
    assert "Unable to connect" in refused.stderr
    arguments = [f"--env={name}={value}" for name, value in on_yarn()["env"].items()]
    run = [sys.executable, "-m", "tfcollective", "run", "--launcher", "yarn", "--remote-python", sys.executable]
    script = ["--task-spec=worker:memory=400MiB,vcores=1", sys.executable, "-c", "print('it ran')"]
    ours = subprocess.run(
        [*run, *arguments, *script], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert ours.returncode == 0, ours.stderr
    assert "it ran" in ours.stdout
