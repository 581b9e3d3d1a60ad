import os
import stat

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import Settings
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint
from tfcollective._control.identity import Identity, current_node_id, discover, node_id

KEY = bytes(range(32))


def launched(tmp_path, **changes):
    path = tmp_path / "key"
    path.write_text(KEY.hex() + "\n")
    path.chmod(0o600)
    values = {
        "coordinator": Endpoint("127.0.0.1", 5),
        "key_file": str(path),
        "job_id": "job",
        "task": TaskKey("worker", 1),
        "size": 3,
        "node_id": "n",
    }
    return Settings(**{**values, **changes})


def test_without_a_launcher_the_process_is_alone():
    identity = discover(Settings(), {})
    assert (identity.world_size, identity.coordinator, identity.key, identity.source) == (1, None, None, "single")
    assert identity.task == TaskKey("worker", 0)


def test_the_launcher_says_who_we_are(tmp_path):
    assert discover(launched(tmp_path), {}) == Identity(
        TaskKey("worker", 1), 3, Endpoint("127.0.0.1", 5), "job", KEY, "launcher", "n"
    )


def test_the_key_is_not_shown(tmp_path):
    assert KEY.hex() not in repr(discover(launched(tmp_path), {}))
    assert repr(KEY) not in repr(discover(launched(tmp_path), {}))


def test_a_key_descriptor_can_be_read_twice(tmp_path):
    settings = launched(tmp_path)
    descriptor = os.open(settings.key_file, os.O_RDONLY)
    try:
        settings = launched(tmp_path, key_file=None, key_fd=descriptor)
        assert discover(settings, {}).key == discover(settings, {}).key == KEY
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("field", ["task", "size", "job_id"])
def test_an_incomplete_environment_names_what_is_missing(tmp_path, field):
    with pytest.raises(ConfigError, match=f"TFCOLLECTIVE_{field.upper()} not set"):
        discover(launched(tmp_path, **{field: None}), {})


def test_the_key_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="no job key"):
        discover(launched(tmp_path, key_file=None), {})
    with pytest.raises(ConfigError, match="TFCOLLECTIVE_KEY_FILE"):
        discover(launched(tmp_path, key_file=str(tmp_path / "none")), {})
    with pytest.raises(ConfigError, match="TFCOLLECTIVE_KEY_FD"):
        discover(launched(tmp_path, key_file=None, key_fd=987), {})


@pytest.mark.parametrize(("text", "reason"), [("xyz", "not hexadecimal"), ("00ff", "2 bytes")])
def test_a_bad_key_is_refused(tmp_path, text, reason):
    settings = launched(tmp_path)
    (tmp_path / "key").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        discover(settings, {})


def test_a_key_path_without_file_is_refused(tmp_path):
    """Opening a pipe without a writer would block forever, and reading a directory fails."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "directory").mkdir(mode=0o700)
    for name in ("pipe", "directory"):
        with pytest.raises(ConfigError, match=f"TFCOLLECTIVE_KEY_FILE: .*{name} is not a file"):
            discover(launched(tmp_path, key_file=str(tmp_path / name)), {})


def test_an_overlong_key_is_not_cut(tmp_path):
    settings = launched(tmp_path)
    (tmp_path / "key").write_text("ab" * 3000)
    with pytest.raises(ConfigError, match="at most"):
        discover(settings, {})


def test_a_key_that_others_can_read_is_refused(tmp_path):
    settings = launched(tmp_path)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ConfigError, match="mode 644"):
        discover(settings, {})


def of_owner(monkeypatch, owner):
    """Has all open files belong to this user, as far as they say."""
    fstat = os.fstat

    def changed(descriptor):
        found = list(fstat(descriptor))
        found[stat.ST_UID] = owner
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", changed)


@pytest.mark.parametrize("mode", [0o440, 0o640])  # of defaultMode 0400 and 0600
def test_a_key_mounted_by_kubernetes_is_read(tmp_path, monkeypatch, mode):
    settings = launched(tmp_path)
    (tmp_path / "key").chmod(mode)
    group = (tmp_path / "key").stat().st_gid
    of_owner(monkeypatch, 0)
    assert discover(settings, {}).key is not None
    monkeypatch.setattr(os, "getegid", lambda: group + 1)
    monkeypatch.setattr(os, "getgroups", lambda: [group + 1])
    with pytest.raises(ConfigError, match=f"mode {mode:o}, group {group}.* or 440 will do for a file of root's"):
        discover(settings, {})


def test_a_users_group_readable_key_is_refused(tmp_path, monkeypatch):
    settings = launched(tmp_path)
    (tmp_path / "key").chmod(0o640)  # of umask 027; the group may be that of all users
    of_owner(monkeypatch, 1000)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"mode 640.*needs mode 600"):
        discover(settings, {})


@pytest.mark.parametrize("mode", [0o444, 0o460, 0o650, 0o604])
def test_a_key_open_to_others_is_refused(tmp_path, mode):
    settings = launched(tmp_path)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:o}"):
        discover(settings, {})


def test_a_key_of_another_user_is_refused(tmp_path, monkeypatch):
    settings = launched(tmp_path)
    owner = (tmp_path / "key").stat().st_uid
    if owner == 0:
        os.chown(tmp_path / "key", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match="belongs to the user"):
        discover(settings, {})


DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000
TWO = '{"cluster": {"worker": ["%s", "b:2"]}, "task": {"type": "worker", "index": %s}}'


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"TF_CONFIG": DEEP}, "TF_CONFIG is not JSON"),
        ({"TF_CONFIG": f'{{"cluster": {{"worker": {DEEP}}}}}'}, "TF_CONFIG is not JSON"),
        ({"TF_CONFIG": TWO % ("a:1", f'"{LONG}"')}, "TF_CONFIG: worker: index"),
        ({"TF_CONFIG": TWO % ("a:1", "NaN")}, "TF_CONFIG: worker: index"),
        ({"TF_CONFIG": TWO % (f"a:{LONG}", "0")}, "TF_CONFIG: worker:0: expected a port"),
        ({"TF_CONFIG": TWO % ("\\ud800:1", "0")}, "TF_CONFIG: worker:0: .* no host"),
        ({"TF_CONFIG": TWO % ("a b:1", "0")}, "TF_CONFIG: worker:0: .* no host"),
        ({"TF_CONFIG": f'{{"cluster": {{"worker": {{"{LONG}": "a:1"}}}}}}'}, "TF_CONFIG: worker: index"),
        ({"CLUSTER_SPEC": f'{{"workerpool0": {DEEP}}}'}, "CLUSTER_SPEC is not JSON"),
        ({"SM_HOSTS": DEEP, "SM_CURRENT_HOST": "a"}, "SM_HOSTS is not JSON"),
        ({"SM_HOSTS": '["a", "a"]', "SM_CURRENT_HOST": "a"}, "SM_HOSTS names a host twice"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": LONG}, "OMPI_COMM_WORLD_SIZE"),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": f"n[{LONG}]"},
            "SLURM_STEP_NODELIST",
        ),
        (
            {"JOB_COMPLETION_INDEX": "0", "PET_NNODES": "2", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "99999"},
            "a port",
        ),
        ({"TFCOLLECTIVE_TASK": f"worker:{LONG}"}, "TFCOLLECTIVE_TASK"),
    ],
)
def test_hostile_environment_values_are_refused_by_name(environ, names):
    with pytest.raises(ConfigError, match=names):
        discover(Settings.load(environ), environ)


def test_sagemaker_host_numbers_with_thousands_of_digits():
    environ = {"SM_HOSTS": f'["n-{LONG}", "n-10", "n-9"]', "SM_CURRENT_HOST": "n-10"}
    assert discover(Settings.load(environ), environ).hosts == ("n-9", "n-10", f"n-{LONG}")


def test_kernel_and_network_namespace_identify_the_node():
    assert node_id("boot\n", 1) == node_id("boot", 1)
    assert node_id("boot", 1) != node_id("boot", 2)
    assert node_id("boot", 1) != node_id("other", 1)
    assert current_node_id() == current_node_id()
    assert current_node_id("mine") == "mine"


def test_a_process_resembling_a_rank_is_warned(caplog):
    discover(Settings(), {"RANK": "1", "WORLD_SIZE": "4"})
    assert "RANK=1 and WORLD_SIZE=4" in caplog.text
    caplog.clear()
    discover(Settings(identity="single"), {"RANK": "1", "WORLD_SIZE": "4"})
    assert not caplog.text
