"""What a user knows of applications that run: where it lies, and what is removed with it."""

import pytest
from tfcollective_launchers.yarn.records import Record, forget, recall, remember

APPLICATION = "application_1_1"
RECORD = Record("127.0.0.1:1", b"k", b"certificate", b"private")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Of all jobs of this user."""
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "jobs"))
    return tmp_path / "jobs"


def test_a_record_is_there_until_it_is_forgotten():
    assert recall(APPLICATION) is None
    remember(APPLICATION, RECORD)
    assert recall(APPLICATION) == RECORD
    forget(APPLICATION)
    assert recall(APPLICATION) is None


@pytest.mark.parametrize("name", ["", ".", "..", f"../{APPLICATION}", f"{APPLICATION}/"])
def test_an_invalid_name_touches_no_other_record(name, directory):
    remember(APPLICATION, RECORD)
    remember(name, RECORD)
    assert recall(name) is None
    forget(name)
    assert recall(APPLICATION) == RECORD
    assert [path.name for path in directory.iterdir()] == [APPLICATION]
    assert [path.name for path in directory.parent.iterdir()] == ["jobs"]
