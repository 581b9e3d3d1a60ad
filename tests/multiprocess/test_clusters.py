"""Processes that are kept, on this machine."""

import os
import signal
import threading
import time

import pytest
from launching import until
from time_limits import within

import tfcollective
from tfcollective import ConfigError, StateError, TaskSpec, WorkerFailedError, cluster
from tfcollective._launch import api
from tfcollective._launch.system.signals import forward_signals

pytestmark = pytest.mark.multiprocess


def total(value):
    import numpy

    tfcollective.init()
    mine = numpy.full(2, value * (tfcollective.rank() + 1), numpy.float32)
    return float(tfcollective.get_communicator().allreduce(mine, op=tfcollective.Sum)[0])


def pid_and_count():
    tfcollective.seen = getattr(tfcollective, "seen", 0) + 1
    return os.getpid(), tfcollective.seen


def fail_on_one():
    tfcollective.init()
    if tfcollective.rank() == 1:
        raise ValueError("had enough")
    total(1)


def die_on_one():
    tfcollective.init()
    if tfcollective.rank() == 1:
        os._exit(3)
    time.sleep(60)


def leave_on_one():
    tfcollective.init()
    if tfcollective.rank() == 1:
        os._exit(0)


SPECS = {"chief": TaskSpec("1 GiB", 1), "worker": TaskSpec("1 GiB", 1)}


def test_the_same_processes_make_every_call():
    with cluster(SPECS) as kept:
        first = kept.run(pid_and_count)
        assert kept.run(total, 2) == [6.0, 6.0]
        second = kept.run(pid_and_count)
        assert [pid for pid, _ in first] == [pid for pid, _ in second]
        assert [count for _, count in (*first, *second)] == [1, 1, 2, 2]
        with pytest.raises(WorkerFailedError, match="had enough") as caught:
            kept.run(fail_on_one)
        assert caught.value.first["task"] == "worker:0"
        assert kept.run(total, value=1) == [3.0, 3.0]
    with pytest.raises(StateError, match="have ended"):
        kept.run(total, 1)


def test_nothing_of_a_call_stays_in_the_store():
    with cluster(np=2) as processes:
        for number in range(1, 3):
            assert [len(data) for data in processes.run(bytes, 3 << 20)] == [3 << 20] * 2
            stored = [f"call/{number}", *(f"result/{number}/worker:{rank}" for rank in range(2)), "ready/worker:0"]
            keys = [f"{name}/{part}" for name in stored for part in ("segments", 0, 1, 2, 3)]
            assert {key for key in keys if processes._client.get(key) is not None} == set()


def test_threads_get_their_own_calls_results():
    with cluster(np=1) as kept:
        found = {}
        threads = [
            threading.Thread(target=lambda n=n: found.setdefault(n, kept.run(abs, -n)), daemon=True) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(within(60))
    assert found == {n: [n] for n in range(4)}


def test_a_process_that_dies_ends_the_cluster():
    with cluster(SPECS) as kept:
        with pytest.raises(WorkerFailedError, match="exited with code 3"):
            kept.run(die_on_one)
        with pytest.raises(StateError):
            kept.run(total, 1)


def test_a_silent_exit_ends_the_cluster():
    with cluster(SPECS) as kept, pytest.raises(WorkerFailedError, match="exited with code 0 before its function"):
        kept.run(leave_on_one)


def begin_and_wait(file):
    file.touch()
    time.sleep(100)  # closing the cluster ends it


def test_closing_ends_a_call(tmp_path):
    kept = cluster(np=1)
    kept.__enter__()
    (pid, _), *_ = kept.run(pid_and_count)
    caught = []

    def call():
        try:
            kept.run(begin_and_wait, tmp_path / "begun")
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    until((tmp_path / "begun").exists)
    kept.close()
    thread.join(within(60))
    assert len(caught) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_leaving_ends_what_waits_for_a_platform(monkeypatch):
    """Ctrl-C in a notebook while YARN has no room: the application does not stay in the queue."""
    waiting, stopped = threading.Event(), []

    def run(*arguments, **options):
        ended = threading.Event()
        with forward_signals((), lambda number: ended.set()) as received:
            waiting.set()
            assert ended.wait(within(30))
            stopped.extend(received)

    def interrupt():
        assert waiting.wait(within(30))
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(api, "run_function_job", run)
    kept = cluster(np=2)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt), kept:
        pass
    assert stopped == [signal.SIGTERM]
    assert not kept._job.is_alive()


def test_an_invalid_timeout_is_refused():
    kept = cluster(np=1, launcher="yarn", platform={"allocation_timeout": "soon"})
    with pytest.raises(ConfigError, match=r"allocation_timeout .*: expected a number of seconds"), kept:
        pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"task_specs": SPECS, "np": 2}, "num_proc .* and task_specs .* cannot be combined"),
        ({"task_specs": {**SPECS, "evaluator": TaskSpec("1 GiB", 1)}}, "a cluster has no auxiliary tasks"),
    ],
)
def test_what_makes_no_cluster_is_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        cluster(**arguments)
