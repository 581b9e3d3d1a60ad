"""A cluster on which all prove by Kerberos who they are: `make test-kerberos`. The KDC is a real one."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import yarn_jobs

import tfcollective
from tfcollective import LaunchError, TaskSpec

pytestmark = [pytest.mark.yarn, pytest.mark.kerberos, pytest.mark.timeout(1500)]

USER = "alice"
PAIR = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 1)}
RENEWED_S = 60.0  # as tools/hadoop configures HDFS


@pytest.fixture(autouse=True)
def own_tickets(tmp_path, monkeypatch):
    """Without a ticket."""
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "tickets"))


@pytest.fixture
def ticket(hadoop_state):
    keytab = Path(hadoop_state) / "kerberos" / f"{USER}.keytab"
    subprocess.run(["kinit", "-k", "-t", keytab, USER], check=True, timeout=60)


@pytest.fixture
def place(yarn, ticket, tmp_path):
    """A file of the user's on HDFS, which only they can read."""
    local = tmp_path / "data"
    local.write_text("only for alice")
    folder = f"{yarn.file_system}/user/{USER}/{uuid.uuid4().hex}"
    for words in (
        ("-mkdir", folder),
        ("-put", str(local), f"{folder}/data"),
        ("-chmod", "600", f"{folder}/data"),
    ):
        subprocess.run(["hdfs", "dfs", *words], check=True, capture_output=True, timeout=300)
    return f"{folder}/data"


def test_ranks_use_files_with_a_users_ticket(yarn, place, on_yarn):
    """They have no ticket: skein gets tokens for them."""
    texts = tfcollective.run(yarn_jobs.read_and_write, (place,), task_specs=PAIR, **on_yarn())
    assert texts == [("only for alice", False)] * 2
    shown = subprocess.run(["hdfs", "dfs", "-cat", f"{place}.new"], capture_output=True, timeout=300, check=True)
    assert shown.stdout == b"new"
    assert yarn.latest()["user"] == USER
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_tokens_are_renewed_while_a_job_runs(yarn, place, on_yarn, when_all_run, tmp_path):
    def wait(app_id):
        time.sleep(1.5 * RENEWED_S)  # what the ranks got would be of no use any longer
        (tmp_path / "go").touch()

    when_all_run(wait)
    texts = tfcollective.run(yarn_jobs.read_and_write, (place, "go"), task_specs=PAIR, **on_yarn())
    assert texts == [("only for alice", False)] * 2


def test_without_a_ticket_nothing_is_sent(yarn, on_yarn):
    with pytest.raises(LaunchError, match="kinit"):
        tfcollective.run(yarn_jobs.report, task_specs=PAIR, **on_yarn())
    assert not yarn.apps()


def test_the_command_line_says_so_too(yarn):
    run = [sys.executable, "-m", "tfcollective", "run", "--launcher", "yarn", "--remote-python", sys.executable]
    done = subprocess.run(
        [*run, "-np", "1", sys.executable, "-c", ""],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "kinit" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_check_without_a_ticket_gives_advice(yarn):
    check = [sys.executable, "-m", "tfcollective", "check", "--launcher", "yarn"]
    done = subprocess.run(check, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "FAILED ResourceManager: YARN's list of nodes: Kerberos ticket not found" in done.stdout
    assert "to mend it: run `kinit`" in done.stdout
