import errno
import fcntl
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.private_directory import runtime_directory
from tfcollective._base.topology import Endpoint
from tfcollective._control.records import JobDirectory, JobRecord, open_owner, running_jobs

# Makes the directory of a job, prints a line, and keeps it until its stdin ends; then it exits without cleaning up.
OWNER = """
import os, sys
from pathlib import Path
from tfcollective._control.records import JobDirectory, JobRecord
from tfcollective._base.topology import Endpoint
job = JobDirectory.create(Path(sys.argv[1]), sys.argv[2])
if "--record" in sys.argv:
    job.publish(JobRecord(sys.argv[2], Endpoint("127.0.0.1", 5), b"k" * 32, 1, 9.0, ("python", "x.py")))
print("made", flush=True)
sys.stdin.read()
os._exit(0)
"""


def record(name="job"):
    # A pid says nothing about the owner: it may be of another PID namespace.
    return JobRecord(name, Endpoint("127.0.0.1", 5), b"k" * 32, 2**22 - 1, 9.0, ("python", "x.py"))


def published(parent, one):
    job = JobDirectory.create(parent, one.job_id)
    job.publish(one)
    return job


def owned_elsewhere(parent, name, *options, within=()):
    """A process that owns the directory of a job."""
    command = [*within, sys.executable, "-c", OWNER, str(parent), name, *options]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"made\n"
    return owner


def names(parent):
    return sorted(path.name for path in parent.iterdir())


def test_running_jobs_are_found_closed_ones_not(tmp_path):
    job = published(tmp_path, record())
    assert list(running_jobs(tmp_path)) == [record()]
    assert stat.S_IMODE((job.path / "record.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(job.path.stat().st_mode) == 0o700
    job.close()
    job.close()
    assert list(running_jobs(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kill", [True, False])
def test_what_an_ended_job_has_left_is_removed(tmp_path, kill):
    with owned_elsewhere(tmp_path, "job", "--record") as owner:
        assert [one.job_id for one in running_jobs(tmp_path)] == ["job"]
        if kill:
            owner.kill()
        owner.communicate()
        assert list(running_jobs(tmp_path)) == []
    assert names(tmp_path) == []


def test_a_new_job_removes_leftovers_of_others(tmp_path):
    with owned_elsewhere(tmp_path, "job", "--record") as owner, owned_elsewhere(tmp_path, "node") as node:
        one = JobDirectory.create(tmp_path, "next")
        assert names(tmp_path) == ["job", "next", "node"]
        node.kill()
        owner.kill()
    JobDirectory.create(tmp_path, "last").close()
    assert names(tmp_path) == ["next"]
    one.close()


def test_jobs_of_other_hosts_are_left_alone(tmp_path):
    with owned_elsewhere(tmp_path, "job", "--record") as owner:
        owner.kill()
    (tmp_path / "job/owner").write_text("5a1d2f0c-0000-4000-8000-000000000000\n")
    assert list(running_jobs(tmp_path)) == []
    JobDirectory.create(tmp_path, "next").close()
    assert names(tmp_path) == ["job"]


def test_a_directory_not_locked_yet_stays(tmp_path):
    (tmp_path / "starting").mkdir()
    JobDirectory.create(tmp_path, "next").close()
    assert names(tmp_path) == ["starting"]


def test_a_job_in_a_container_keeps_its_directory(tmp_path):
    """With a PID namespace of its own and this directory in it."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no PID namespaces here for this user")
    with owned_elsewhere(tmp_path, "inside", within=command) as inside:
        JobDirectory.create(tmp_path, "outside").close()
        assert names(tmp_path) == ["inside"]
        inside.communicate()
    JobDirectory.create(tmp_path, "outside").close()
    assert names(tmp_path) == []


def test_a_directory_recreated_during_a_search_stays(tmp_path, monkeypatch):
    """As by the next attempt of a job, at the moment between two system calls of the one that looks."""
    first, then = published(tmp_path, record()), []
    flock = fcntl.flock

    def late(descriptor, how):
        if not then:
            then.append(None)
            first.close()
            then[0] = published(tmp_path, record())
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert list(running_jobs(tmp_path)) == []  # not this time
    assert names(then[0].path) == ["owner", "record.json"]
    assert list(running_jobs(tmp_path)) == [record()]
    then[0].close()


def test_jobs_are_found_and_removed_on_nfs(tmp_path, monkeypatch):
    """Where an exclusive lock needs a file that was opened for writing, see flock(2)."""
    flock = fcntl.flock

    def of_nfs(descriptor, how):
        if how & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    job = published(tmp_path, record())
    assert list(running_jobs(tmp_path)) == [record()]
    job.close()
    owner = owned_elsewhere(tmp_path, "ended", "--record")
    owner.communicate()
    assert list(running_jobs(tmp_path)) == []
    assert names(tmp_path) == []


def test_two_jobs_of_one_name_are_refused(tmp_path):
    job = JobDirectory.create(tmp_path, "job")
    with pytest.raises(ConfigError, match="cannot use"):
        JobDirectory.create(tmp_path, "job")
    assert names(tmp_path) == ["job"]
    job.close()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1, "created": 1.0, "command": []}'])
def test_a_record_of_another_version_is_left_alone(tmp_path, text, caplog):
    job = JobDirectory.create(tmp_path, "job")
    (job.path / "record.json").write_text(text)
    assert list(running_jobs(tmp_path)) == []
    assert (job.path / "record.json").read_text() == text
    assert "ignoring" in caplog.text


def test_the_key_is_not_shown():
    assert "kkk" not in repr(record())


def no_place():
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")


def test_a_missing_place_names_its_variable(tmp_path):
    with pytest.raises(ConfigError, match=r"No usable temporary directory.*TFCOLLECTIVE_RUNTIME_DIR"):
        runtime_directory(None, {}, no_place)
    assert runtime_directory(None, {"XDG_RUNTIME_DIR": str(tmp_path)}, no_place) == tmp_path / "tfcollective"


def test_records_are_not_where_a_logout_removes_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tfcollective._base.private_directory._REMOVED_AT_LOGOUT", f"{tmp_path}/user/")
    session, temporary = tmp_path / "user" / "1000", tmp_path / "tmp"
    session.mkdir(parents=True)
    temporary.mkdir()
    environ = {"XDG_RUNTIME_DIR": str(session)}
    own = temporary / f"tfcollective-{os.getuid()}"
    assert runtime_directory(None, environ, lambda: str(temporary)) == own
    assert runtime_directory(None, environ, no_place) == session / "tfcollective"  # better than none


def test_where_records_are(tmp_path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    expected = tmp_path / "tfcollective"
    assert runtime_directory(None, environ, lambda: str(temporary)) == expected
    assert stat.S_IMODE(expected.stat().st_mode) == 0o700
    assert runtime_directory(None, environ, lambda: str(temporary)) == expected
    own = temporary / f"tfcollective-{os.getuid()}"
    assert runtime_directory(None, {"XDG_RUNTIME_DIR": "/does/not/exist"}, lambda: str(temporary)) == own
    assert runtime_directory(None, {}, lambda: str(temporary)) == own
    assert runtime_directory(str(tmp_path / "a" / "b"), environ, no_place) == tmp_path / "a" / "b"


def test_a_directory_that_others_can_use_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)  # whatever the umask is
    with pytest.raises(ConfigError, match="mode 700"):
        runtime_directory(str(tmp_path / "open"), {}, no_place)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="mode 700"):
        runtime_directory(str(tmp_path / "link"), {}, no_place)
    Path(tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use"):
        runtime_directory(str(tmp_path / "file"), {}, no_place)


def test_a_place_that_cannot_be_written_is_named():
    with pytest.raises(ConfigError, match=r"cannot use /proc/job .*TFCOLLECTIVE_RUNTIME_DIR names another place"):
        JobDirectory.create(Path("/proc"), "job")


def test_only_an_owner_with_lock_is_opened(tmp_path):
    with (
        published(tmp_path, record()),
        pytest.raises(ConfigError, match="another PID namespace"),
    ):  # its pid is no process
        with open_owner(tmp_path, record()):
            pass
    mine = replace(record("mine"), pid=os.getpid())
    with published(tmp_path, mine), open_owner(tmp_path, mine) as owner:
        assert os.readlink(f"/proc/self/fd/{owner}") == "anon_inode:[pidfd]"
    with open_owner(tmp_path, mine) as owner:
        assert owner is None


def test_a_reused_owner_pid_is_not_opened(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    one = replace(record(), pid=other.pid)
    with published(tmp_path, one), pytest.raises(ConfigError, match="another PID namespace"):
        with open_owner(tmp_path, one):
            pass
    other.communicate(b"\n")
