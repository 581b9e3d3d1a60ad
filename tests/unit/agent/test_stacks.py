"""Stacks of real, short processes, whatever they are doing; none of them cooperates."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import until
from time_limits import within

from tfcollective._base.processes import STACKS_SIGNAL, signals_of, state_of
from tfcollective._base.stacks import StackFiles
from tfcollective._base.tasks import TaskKey
from tfcollective._launch.agent.stacks import Source, StackReader, read_stacks

TASK = TaskKey("worker", 0)
# Holds Python's lock and waits in C, in a call that begins again after a signal.
HOLD_THE_LOCK = "import ctypes, os\nready()\nctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)"


class Program:
    """A process that can be asked, as a rank after init(); its text is train.py."""

    def __init__(self, folder: Path, text: str, *, arms: bool = True, shell: bool = False) -> None:
        self.failure_file = folder / "failure.json"
        arm = f"from tfcollective._base.stacks import write_when_asked\nwrite_when_asked({str(self.failure_file)!r})\n"
        (folder / "train.py").write_text(f"def ready(): print('ready', flush=True)\n{arm if arms else ''}{text}\n")
        words = [sys.executable, "train.py"]
        command = ["/bin/sh", "-c", f"{' '.join(words)}; true"] if shell else words
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout.readline() == "ready\n"

    @property
    def source(self) -> Source:
        return Source(TASK, self.process.pid, StackFiles(str(self.failure_file)))

    def read(self, patience=1000.0):
        """Its stacks once it has come beyond ready(); a slow machine gets the time that it takes."""
        while True:
            (found,) = read_stacks([self.source], patience, within(60))
            if all(one.function != "ready" for thread in found.threads for one in thread):
                return found


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as opened:

        def started(text, **options):
            program = Program(tmp_path, text, **options)
            opened.callback(program.process.stdout.close)
            opened.callback(program.process.wait)
            opened.callback(os.killpg, program.process.pid, signal.SIGKILL)
            return program

        yield started


def calls(thread):
    return [(Path(frame.file).name, frame.function) for frame in thread]


def test_a_sleeping_program_shows_its_line(start, tmp_path):
    found = start("import time\ndef main():\n    ready(); time.sleep(600)\nmain()").read()
    (main,) = found.threads
    assert calls(main) == [("train.py", "<module>"), ("train.py", "main")]
    assert (main[-1].file, main[-1].source) == (str(tmp_path / "train.py"), "ready(); time.sleep(600)")
    assert (found.missing, found.activity.kind) == ("", "waiting")


def test_a_program_that_holds_pythons_lock_answers(start):
    found = start(HOLD_THE_LOCK).read(patience=1.0)
    assert found.threads[0][-1].source.startswith("ctypes.PyDLL(None).read")


def test_a_locked_program_answers_again(start):
    program = start(HOLD_THE_LOCK)
    assert program.read(patience=1.0).threads == program.read(patience=1.0).threads != ()


def test_an_endless_loop_computes(start):
    found = start("ready()\nwhile True: pass").read()
    assert found.threads[0][-1].source == "while True: pass"
    assert found.activity.kind == "computing"


def test_a_stopped_program_is_not_waited_for(start):
    program = start("import time; ready(); time.sleep(600)")
    os.kill(program.process.pid, signal.SIGSTOP)
    until(lambda: state_of(program.process.pid).stopped)
    found = program.read()
    assert (found.activity.kind, found.threads, found.missing) == ("stopped by a signal", (), "")
    os.kill(program.process.pid, signal.SIGCONT)
    assert program.read().threads  # and it has not got a signal meanwhile


def test_a_program_without_init_is_named(start):
    program = start("import time; ready(); time.sleep(600)", arms=False)
    found = program.read()
    assert (found.threads, found.pid) == ((), program.process.pid)
    assert "has not called tfcollective.init()" in found.missing
    assert program.process.poll() is None


def test_a_program_that_has_ended_has_none(start):
    program = start("ready()")
    until(lambda: state_of(program.process.pid).name in ("zombie", "gone"))
    found = program.read()
    assert (found.activity.kind, found.threads, found.missing) == ("ended", (), "")


def test_children_of_a_fork_are_not_asked(start):
    text = "import os, time\ndef child(): time.sleep(600)\nos.fork() or child()\nready(); time.sleep(600)"
    found = start(text).read()
    assert calls(found.threads[0]) == [("train.py", "<module>")]


def test_a_program_below_a_shell_is_found(start):
    program = start("import time; ready(); time.sleep(600)", shell=True)
    found = program.read()
    assert found.threads
    assert found.pid != program.process.pid


def test_a_closed_file_is_not_written_to(start):
    program = start("import os, time\nos.closerange(3, 64); ready(); time.sleep(600)")
    assert "not called tfcollective.init()" in program.read().missing
    assert program.process.poll() is None


def test_a_program_without_stderr_answers(start):
    assert start("import os, time\nos.close(2); ready(); time.sleep(600)").read().threads


def test_a_program_that_blocks_signals_answers(start):
    text = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
    assert start(f"{text}ready(); time.sleep(600)").read().threads


def test_a_locked_program_that_blocks_signals_is_named(start):
    text = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
    found = start(f"{text}{HOLD_THE_LOCK}").read(patience=1.0)
    assert (found.threads, found.missing[-31:]) == ((), " its main thread blocks signals")


def test_busy_threads_are_not_disturbed(start):
    text = "import json, threading\ndef f(n): return f(n - 1) if n else json.loads(json.dumps([*range(9)]))\n"
    text += "def work():\n  while True: f(40)\n"
    text += "for _ in range(3): threading.Thread(target=work, daemon=True).start()\nready(); work()"
    program = start(text)
    for _ in range(3):
        assert len(program.read().threads) == 4
    assert program.process.poll() is None


def test_a_program_goes_on_answering(start):
    program = start("import tfcollective, time\nready(); time.sleep(600)")
    assert program.read().threads == program.read().threads


def test_a_long_answer_is_complete(start):
    text = "import threading, time\ndeep = threading.Semaphore(0)\ndef sleep(): deep.release(); time.sleep(600)\n"
    text += "def f(n): f(n - 1) if n else sleep()\n"
    text += "for _ in range(30): threading.Thread(target=f, args=(80,), daemon=True).start(); deep.acquire()\n"
    found = start(f"{text}ready(); time.sleep(600)").read()
    assert [len(thread) for thread in found.threads] == [1] + 19 * [60]


def test_two_who_ask_at_once_get_answers(start):
    program, reports = start("import time; ready(); time.sleep(600)"), queue.SimpleQueue()
    reader = StackReader(reports.put)
    program.read()
    for number in (1, 2):
        reader.ask(number, [program.source])
    found = [reports.get(timeout=within(60)) for _ in range(2)]
    assert {one.number for one in found} == {1, 2}
    assert found[0].stacks.threads == found[1].stacks.threads != ()


def test_programs_handlers_for_other_signals_stay(start):
    text = "import faulthandler, signal, time\nfaulthandler.register(signal.SIGUSR1, chain=False)\n"
    program = start(f"{text}ready(); time.sleep(600)")
    assert program.read().threads
    handled = signals_of(program.process.pid)
    assert handled.handles(signal.SIGUSR1)
    assert handled.handles(STACKS_SIGNAL)
    assert not handled.handles(signal.SIGUSR2)
