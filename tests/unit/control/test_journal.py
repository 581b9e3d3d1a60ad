import os
import stat

import pytest

from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.failures import ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._control.serve.job import CHANGES, Change, Expire, FallSilent, Forsake, Recall, Resume
from tfcollective._control.serve.journal import Journal, from_line, to_line
from tfcollective._control.state.membership import Silence
from tfcollective._control.state.rounds import JoinRequest
from tfcollective._control.wire import messages

TASK = TaskKey("worker", 0)
BEAT = messages.Beat(TASK, "running", {"step": 3, "loss": 0.5}, 2.0)
EXIT = ExitRecord("worker:0", 0, "node", 7, None, 9, 1.0, stderr_tail=("caf\udce9",))
ONE_OF_EACH = (
    *(messages.Join(JoinRequest(TASK, 3, "node", 7, "address"), 5.0, lost=2), BEAT, messages.Leave(TASK, True, "why")),
    *(messages.NodeLeaves((TASK,), "why"), messages.Done(TASK), messages.Failing(TASK, "ValueError")),
    *(messages.Admit(TASK), messages.AdmitNoMore(), messages.Started(TASK, "node", 7, "host"), messages.Exited(EXIT)),
    *(messages.Put("key", ["a", 1, None, {"b": 0.25}]), messages.Remove("blob"), messages.Enroll("x", {"cpus": 2})),
    *(Expire(), FallSilent(Silence((TASK,), ((TASK, 1.5),), ())), Recall(BEAT, 3.0), Resume(), Forsake(TASK)),
)
CHANGE = Change(messages.Put("a", 1), 2.5, 0.125)


@pytest.mark.parametrize("what", ONE_OF_EACH, ids=lambda what: type(what).__name__)
def test_each_change_is_read_as_it_was_written(what):
    change = Change(what, 12345.0625, 0.1 + 0.2)
    line = to_line(change)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert from_line(line) == change


def test_there_is_an_example_of_every_kind_of_change():
    assert {type(what) for what in ONE_OF_EACH} == set(CHANGES.values())


def test_only_the_owner_can_read_it(tmp_path):
    before = os.umask(0)
    try:
        Journal.create(tmp_path / "journal").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o600
    with pytest.raises(CoordinatorError, match="journal cannot be opened"):
        Journal.create(tmp_path / "journal")


@pytest.mark.parametrize("torn", [0, 1, 10, -1])
def test_a_last_line_that_is_not_whole_does_not_count(tmp_path, torn):
    path = tmp_path / "journal"
    first = Journal.create(path)
    first.write(CHANGE)
    first.close()
    with path.open("ab") as file:
        file.write(to_line(CHANGE)[:torn])
    second = Journal.reopen(path)
    assert list(second.read()) == [CHANGE]
    second.write(Change(Resume(), 3.0, 0.125))
    assert list(second.read()) == [CHANGE, Change(Resume(), 3.0, 0.125)]
    second.remove()
    assert not path.exists()


def test_what_another_version_has_written_is_refused(tmp_path):
    path = tmp_path / "journal"
    Journal.create(path).close()
    path.write_bytes(to_line(CHANGE).replace(b"Put", b"Hum"))
    with pytest.raises(ConfigError, match="'Hum' is no change that this version knows"):
        list(Journal.reopen(path).read())


def test_a_full_disk_costs_the_journal_and_not_the_job(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path / "journal")

    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    journal.write(CHANGE)
    journal.write(CHANGE)
    with pytest.raises(CoordinatorError, match="journal cannot be opened"):
        Journal.reopen(tmp_path / "journal")


def test_what_is_written_in_parts_is_written_whole(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:5]))
    journal = Journal.create(tmp_path / "journal")
    journal.write(CHANGE)
    assert list(journal.read()) == [CHANGE]
    journal.remove()
