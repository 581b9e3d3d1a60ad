"""How ranks are dealt to agents that somebody else has started."""

import os

import pytest

from tfcollective.errors import ConfigError
from tfcollective.launch.joined import deal_to
from tfcollective.launch.secret_file import write_secret
from tfcollective.launch.spec import JobSpec


def dealt(num_proc, *slots):
    names = [f"n{index}" for index in range(len(slots))]
    return [(share.host.name, share.first, share.count) for share in deal_to(names, slots, JobSpec(("x",), num_proc))]


def test_evenly_when_nobody_says_how_many():
    assert dealt(4, None, None) == [("n0", 0, 2), ("n1", 2, 2)]
    assert dealt(3, None, None) == [("n0", 0, 2), ("n1", 2, 1)]
    assert dealt(1, None, None) == [("n0", 0, 1)]


def test_what_an_agent_says_counts():
    assert dealt(5, 1, None) == [("n0", 0, 1), ("n1", 1, 4)]
    assert dealt(2, 4, 4) == [("n0", 0, 2)]
    assert dealt(4, 4, None) == [("n0", 0, 4)]


def test_agents_that_take_too_few():
    with pytest.raises(ConfigError, match="5 processes do not fit"):
        dealt(5, 2, 2)


def test_a_secret_is_ones_own_and_goes_away(tmp_path):
    path = tmp_path / "key"
    path.write_text("old")
    os.chmod(path, 0o644)
    with write_secret(str(path), "new"):
        assert path.read_text() == "new"
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
    with pytest.raises(ConfigError, match="cannot be put into"), write_secret(str(tmp_path / "no" / "key"), "x"):
        pass
