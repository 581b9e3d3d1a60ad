import os

import pytest

from tfcollective.errors import ConfigError
from tfcollective.identity import Identity, current_node_id, discover, node_id
from tfcollective.settings import Settings
from tfcollective.tasks import TaskKey
from tfcollective.topology import Endpoint

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


def test_the_key_from_a_descriptor_can_be_read_twice(tmp_path):
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


def test_a_key_that_others_can_read_is_refused(tmp_path):
    settings = launched(tmp_path)
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(ConfigError, match="mode 640"):
        discover(settings, {})


def test_the_node_is_the_kernel_and_the_network_namespace():
    assert node_id("boot\n", 1) == node_id("boot", 1)
    assert node_id("boot", 1) != node_id("boot", 2)
    assert node_id("boot", 1) != node_id("other", 1)
    assert current_node_id() == current_node_id()
    assert current_node_id("mine") == "mine"
