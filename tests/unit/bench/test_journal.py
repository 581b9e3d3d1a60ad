"""What ranks of a job under test leave, and how it is read."""

import os

from tfcollective_bench.journal import READY, STEP, Journal, JournalReader, Line, parse_line


def test_notes_are_read_once_in_order(tmp_path):
    reader, journal = JournalReader(tmp_path), Journal(tmp_path, "worker:3")
    journal.note(READY, 2, 1, 4, 7)
    journal.note(STEP, 2, 1, 4, 8)
    lines = list(reader.read())
    assert [line._replace(at=0.0) for line in lines] == [
        Line("worker:3", os.getpid(), READY, 0.0, 2, 1, 4, 7),
        Line("worker:3", os.getpid(), STEP, 0.0, 2, 1, 4, 8),
    ]
    assert lines[0].at <= lines[1].at
    assert list(reader.read()) == []


def test_half_a_line_is_left_for_later(tmp_path):
    reader, path = JournalReader(tmp_path), tmp_path / "worker-0.5.journal"
    path.write_text("step 1.5 1 0 2 1\nstep 2.5 1 0")
    assert list(reader.read()) == [parse_line("worker:0", 5, "step 1.5 1 0 2 1")]
    path.write_text("step 1.5 1 0 2 1\nstep 2.5 1 0 2 2\n")
    assert list(reader.read()) == [Line("worker:0", 5, STEP, 2.5, 1, 0, 2, 2)]


def test_journals_of_ended_processes_are_ignored(tmp_path):
    reader, path = JournalReader(tmp_path), tmp_path / "worker-0.5.journal"
    path.write_text("step 1.5 1 0 2 1\n")
    reader.forget("worker:0")
    assert list(reader.read()) == []
