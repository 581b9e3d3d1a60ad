"""An elastic job whose coordinator is killed: it is started again, and nothing that counts is lost."""

import json
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import Run, gone, until
from time_limits import within

from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.records import running_jobs

pytestmark = [pytest.mark.multiprocess, pytest.mark.kill]
every_fault = pytest.mark.elastic
WORKER = Path(__file__).with_name("elastic_worker.py")


class Watched:
    """An elastic job of three ranks, with what its record says."""

    def __init__(self, directory, *faults, steps=60, options=("--min-np", "1"), **env):
        self.directory, self.records = directory, directory / "records"
        command = (sys.executable, str(WORKER), str(directory), str(steps), *faults)
        env = {"TFCOLLECTIVE_RUNTIME_DIR": str(self.records), **env}
        self.run = Run(("-np", "3", *options, "--", *command), env=env)

    def __enter__(self):
        self.run.__enter__()
        return self

    def __exit__(self, *unused):
        self.run.__exit__(*unused)

    def record(self):
        return next(running_jobs(self.records), None)

    def coordinator(self, other_than=0):
        """The process of the coordinator, once it is another one and listens."""
        until(lambda: self.record() is not None and self.record().coordinator_pid not in (0, other_than), 60)
        return psutil.Process(self.record().coordinator_pid)

    def kill_coordinator(self):
        process = self.coordinator()
        process.kill()
        return process

    def tasks(self):
        """What the coordinator says of them; a client of this test asks again as others do."""
        record = self.record()
        with CoordinatorClient(record.coordinator, record.key) as client:
            return {one["task"]: one for one in Channel(client).call(lambda client: client.status())["tasks"]}

    def await_state(self, state, *tasks):
        until(lambda: all(self.tasks()[task]["state"] == state for task in tasks), 60, lambda: str(self.tasks()))

    def finish(self):
        code, _, err = self.run.finish(120)
        self.run.wait_until_gone(5.0)
        assert not list(self.records.rglob("journal")), err
        assert not list(self.records.rglob("record.json")), err
        ends = {int(one.stem[4:]): json.loads(one.read_text()) for one in self.directory.glob("end-*.json")}
        return code, err, ends


def check(ends, tasks):
    """These tasks have ended, and agree on all that has been done; returns the sizes of the world, step by step."""
    assert sorted(ends) == tasks
    totals = {(end["total"], tuple(end["sizes"])) for end in ends.values()}
    assert len(totals) == 1
    total, sizes = totals.pop()
    assert total == sum(sizes)
    return list(sizes)


def three_two_three(sizes):
    alone = sizes.count(2)
    return sizes == [3] * sizes.index(2) + [2] * alone + [3] * (len(sizes) - sizes.index(2) - alone)


def test_training_goes_on_and_a_lost_rank_is_replaced_afterwards(tmp_path):
    with Watched(tmp_path, SIZE="3", GENERATION="3") as job:
        until(lambda: (tmp_path / "began").exists(), 60)
        killed = job.kill_coordinator()
        job.coordinator(killed.pid)
        tasks = job.tasks()
        assert {task: one["state"] for task, one in tasks.items()} == {f"worker:{n}": "running" for n in range(3)}
        psutil.Process(tasks["worker:1"]["pid"]).kill()
        code, err, ends = job.finish()
    assert code == 0, err
    assert three_two_three(check(ends, [0, 2, 3]))
    assert re.search(rf"the coordinator \(pid {killed.pid}\) was ended by SIGKILL: it is started again", err), err
    assert "the coordinator was started again once" in err
    assert "generation 2: 2 ranks, without worker:1" in err
    assert "generation 3: 3 ranks, with worker:3" in err


@every_fault
def test_a_round_that_is_open_goes_on_in_the_next_coordinator(tmp_path):
    with Watched(tmp_path, SIZE="3", GENERATION="3") as job:
        until(lambda: (tmp_path / "began").exists(), 60)
        tasks = job.tasks()
        late = psutil.Process(tasks["worker:2"]["pid"])
        late.suspend()  # so that the round stays open
        psutil.Process(tasks["worker:1"]["pid"]).kill()
        job.await_state("waiting", "worker:0")
        killed = job.kill_coordinator()
        job.coordinator(killed.pid)
        assert job.tasks()["worker:0"]["state"] == "waiting"
        late.resume()
        code, err, ends = job.finish()
    assert code == 0, err
    assert three_two_three(check(ends, [0, 2, 3]))


@every_fault
def test_rank_and_coordinator_are_killed_at_once(tmp_path):
    with Watched(tmp_path, "forward:1:20", SIZE="3", GENERATION="3") as job:
        coordinator = job.coordinator()
        until(lambda: (tmp_path / "fault-1").exists(), 60)
        coordinator.kill()
        code, err, ends = job.finish()
    assert code == 0, err
    assert three_two_three(check(ends, [0, 2, 3]))


@every_fault
def test_a_newcomer_that_starts_meanwhile_joins(tmp_path):
    with Watched(tmp_path, "forward:1:20", "init:3:0:held", SIZE="3", GENERATION="3") as job:
        until(lambda: (tmp_path / "fault-3").exists(), 60)
        killed = job.kill_coordinator()
        (tmp_path / "go").touch()  # it may come to one that is being started
        job.coordinator(killed.pid)
        code, err, ends = job.finish()
    assert code == 0, err
    assert three_two_three(check(ends, [0, 2, 3]))


@every_fault
def test_the_first_world_comes_together_in_the_next_coordinator(tmp_path):
    with Watched(tmp_path, "init:1:0:held") as job:
        until(lambda: job.record() is not None, 60)
        job.await_state("waiting", "worker:0", "worker:2")
        killed = job.kill_coordinator()
        job.coordinator(killed.pid)
        assert [job.tasks()[f"worker:{n}"]["state"] for n in range(3)] == ["waiting", "started", "waiting"]
        (tmp_path / "go").touch()
        code, err, ends = job.finish()
    assert code == 0, err
    assert check(ends, [0, 1, 2]) == [3] * 60


@every_fault
def test_one_that_is_killed_as_soon_as_it_listens_is_no_loss(tmp_path):
    with Watched(tmp_path) as job:
        job.kill_coordinator()
        code, err, ends = job.finish()
    assert code == 0, err
    assert check(ends, [0, 1, 2]) == [3] * 60


@every_fault
def test_a_coordinator_that_ends_again_and_again_ends_the_job(tmp_path):
    with Watched(tmp_path, steps=10**6) as job:
        until(lambda: (tmp_path / "began").exists(), 60)
        deadline, last = time.monotonic() + within(120), 0
        while job.run.process.poll() is None and time.monotonic() < deadline:
            record = job.record()
            if record is not None and record.coordinator_pid not in (0, last):
                last = record.coordinator_pid
                psutil.Process(last).kill()
            time.sleep(0.02)
        code, err, ends = job.finish()
    assert code not in (0, None), err
    assert not ends
    assert re.search(r"the coordinator's process has ended 6 times within \d+ s, at last so: it \(pid \d+\)", err), err
    assert "was ended by SIGKILL" in err


@every_fault
def test_a_signal_for_all_processes_of_a_job_ends_no_coordinator(tmp_path):
    with Watched(tmp_path) as job:
        coordinator = job.coordinator()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            coordinator.send_signal(number)
        code, err, ends = job.finish()
    assert code == 0, err
    assert check(ends, [0, 1, 2]) == [3] * 60
    assert "is started again" not in err


@every_fault
def test_the_coordinator_ends_with_a_launcher_that_is_killed(tmp_path):
    with Watched(tmp_path, steps=10**6) as job:
        until(lambda: (tmp_path / "began").exists(), 60)
        first = job.kill_coordinator()
        second = job.coordinator(first.pid)
        job.run.signal(signal.SIGKILL)
        until(lambda: gone(second), 5.0)
        job.run.wait_until_gone(20.0)
        assert not list(job.records.rglob("journal"))
