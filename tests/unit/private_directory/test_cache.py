import stat
from pathlib import Path

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.private_directory import cache_directory


def test_the_cache_of_a_user_without_a_home(monkeypatch):
    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(ConfigError, match=r"home directory.*TFCOLLECTIVE_CACHE_DIR names another place"):
        cache_directory(None)


def test_the_cache_is_where_it_is_wished(tmp_path):
    made = cache_directory(str(tmp_path / "deep" / "cache"))
    assert made == tmp_path / "deep" / "cache"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
