"""A job as text, and the command that runs it."""

import io
import sys
from types import SimpleNamespace

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._cli import job as command
from tfcollective._cli import main
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.job_file import job_text, read_job
from tfcollective._launch.plan.spec import FunctionCall, JobSpec

SPEC = JobSpec((sys.executable, "-c", "print(1)\n"), 2, env={"A": "b c"}, min_proc=1, port_range=None, bucket_mb="auto")


@pytest.fixture
def ran(monkeypatch):
    """(launcher, job) of each call."""
    calls = []
    monkeypatch.setattr(command, "run_spec", lambda *call: calls.append(call) or 3)
    return calls


def test_the_text_holds_no_default_or_secret():
    said = job_text(JobSpec(("x",), 2, key=b"secret", call=FunctionCall(b"pickled", ())))
    assert said == '{\n  "command": [\n    "x"\n  ],\n  "num_proc": 2\n}'
    assert read_job(job_text(SPEC)) == SPEC


def test_an_option_of_another_version_is_named():
    with pytest.raises(ConfigError, match="unknown option in the description of the job: 'min_procs'; did you mean"):
        read_job('{"command": ["x"], "num_proc": 2, "min_procs": 1}')
    for text in ("[]", "{", "null", '{"command": ["x"]}', '{"command": ["x"], "num_proc": 0}'):
        with pytest.raises(ConfigError, match="the description of the job cannot be read"):
            read_job(text)


def test_jobs_are_read_from_stdin_or_argument(ran, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(job_text(SPEC).encode())))
    assert main(["job", "--launcher", "slurm"]) == 3
    assert main(["job", "--launcher", "slurm", job_text(SPEC)]) == 3
    assert ran == [("slurm", SPEC)] * 2


def test_its_hosts_may_be_in_a_file(ran, tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\n")
    assert main(["job", "--launcher", "ssh", "--hostfile", str(tmp_path / "hosts"), job_text(SPEC)]) == 3
    assert ran[0][1].hosts == (Host("a", 2),)
