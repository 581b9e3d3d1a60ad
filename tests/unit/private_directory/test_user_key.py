import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.private_directory import user_key


def test_everybody_gets_the_key_that_was_made_first(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: user_key(tmp_path), range(32)))
    assert len(keys) == 1
    assert len(keys.pop()) == 32
    (path,) = tmp_path.iterdir()  # no half-made ones stay
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_another_directory_has_another_key(tmp_path):
    (tmp_path / "other").mkdir()
    assert user_key(tmp_path) != user_key(tmp_path / "other")


@pytest.mark.parametrize("text", ["secret!", "", "ab" * 31], ids=["no number", "empty", "too short"])
def test_what_is_no_key_is_said(tmp_path, text):
    (tmp_path / "user.key").write_text(text)
    with pytest.raises(ConfigError, match="holds no key"):
        user_key(tmp_path)


def test_a_directory_that_there_is_not_is_said(tmp_path):
    with pytest.raises(ConfigError, match="TFCOLLECTIVE_RUNTIME_DIR"):
        user_key(tmp_path / "none")
