import os
import stat
import subprocess
from pathlib import Path

import psutil
import pytest

from tfcollective.coordinator.records import JobDirectory, JobRecord, running_jobs, start_ticks
from tfcollective.errors import ConfigError
from tfcollective.private_directory import runtime_directory
from tfcollective.topology import Endpoint


def record(name="job", *, pid=None, ticks=None):
    own = start_ticks(os.getpid())
    return JobRecord(
        name, Endpoint("127.0.0.1", 5), b"k" * 32, pid or os.getpid(), ticks or own, 9.0, ("python", "x.py")
    )


def published(parent, one):
    job = JobDirectory.create(parent, one.job_id)
    job.publish(one)
    return job


def test_a_running_job_is_found_and_a_closed_one_is_not(tmp_path):
    job = published(tmp_path, record())
    assert list(running_jobs(tmp_path)) == [record()]
    assert stat.S_IMODE((job.path / "record.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(job.path.stat().st_mode) == 0o700
    job.close()
    job.close()
    assert list(running_jobs(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"pid": 2**22 - 1}, {"ticks": 1}])
def test_what_a_dead_job_has_left_is_removed(tmp_path, change):
    published(tmp_path, record(**change))
    assert list(running_jobs(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_new_job_clears_away_dead_ones(tmp_path):
    published(tmp_path, record("dead", ticks=1))
    published(tmp_path, record("alive"))
    JobDirectory.create(tmp_path, "next")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive", "next"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1, "created": 1.0, "command": []}'])
def test_a_record_of_another_version_is_left_alone(tmp_path, text, caplog):
    job = JobDirectory.create(tmp_path, "job")
    (job.path / "record.json").write_text(text)
    assert list(running_jobs(tmp_path)) == []
    assert (job.path / "record.json").read_text() == text
    assert "ignoring" in caplog.text


def test_the_key_is_not_shown():
    assert "kkk" not in repr(record())


def test_where_records_are(tmp_path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    expected = tmp_path / "tfcollective"
    assert runtime_directory(None, environ, str(temporary)) == expected
    assert stat.S_IMODE(expected.stat().st_mode) == 0o700
    assert runtime_directory(None, environ, str(temporary)) == expected
    own = temporary / f"tfcollective-{os.getuid()}"
    assert runtime_directory(None, {"XDG_RUNTIME_DIR": "/does/not/exist"}, str(temporary)) == own
    assert runtime_directory(None, {}, str(temporary)) == own
    assert runtime_directory(str(tmp_path / "a" / "b"), environ, "") == tmp_path / "a" / "b"


def test_a_directory_that_others_can_use_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)  # whatever the umask is
    with pytest.raises(ConfigError, match="mode 700"):
        runtime_directory(str(tmp_path / "open"), {}, "")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="mode 700"):
        runtime_directory(str(tmp_path / "link"), {}, "")
    Path(tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use"):
        runtime_directory(str(tmp_path / "file"), {}, "")


def test_setting_the_clock_ends_no_job(tmp_path, monkeypatch):
    job = published(tmp_path, record())
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 5.0)  # follows the time of day
    assert [one.job_id for one in running_jobs(tmp_path)] == ["job"]
    job.close()


def test_a_process_has_a_start_as_long_as_it_runs():
    with subprocess.Popen(["sleep", "100"]) as sleeper:
        assert start_ticks(sleeper.pid) >= start_ticks(os.getpid())
        sleeper.kill()
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(sleeper.pid) is None  # a zombie does not run
    assert start_ticks(sleeper.pid) is None


def test_a_place_that_cannot_be_written_is_named():
    with pytest.raises(ConfigError, match=r"cannot use /proc/job .*TFCOLLECTIVE_RUNTIME_DIR names another place"):
        JobDirectory.create(Path("/proc"), "job")
