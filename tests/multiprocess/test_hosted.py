"""A job whose launcher runs on the platform: here the platform is a folder, and containers are processes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import pytest
from launching import JOIN, until
from time_limits import within

from tfcollective._base.errors import ConfigError
from tfcollective._base.job_keys import new_key
from tfcollective._base.processes import program_of
from tfcollective._launch.hosted.messages import HostedJob
from tfcollective._launch.hosted.submitter_side import HostedClient, ask_status
from tfcollective._launch.plan.hosts import parse_hosts, share_out
from tfcollective._launch.plan.planner import plan_hosts
from tfcollective._launch.plan.spec import FunctionCall, JobSpec
from tfcollective._launch.running.job import new_job_id

pytestmark = pytest.mark.multiprocess

MASTER = """
import json, sys
from pathlib import Path
from tfcollective._launch.hosted.messages import HostedJob
from tfcollective._launch.hosted.platform_side import ContainerProvider, serve_job
from tfcollective._launch.nodes.provider import Went

folder = Path(sys.argv[1])

class Platform(ContainerProvider):
    def request(self, nodes):
        (folder / "partial").write_text(nodes[0].coordinator)
        (folder / "partial").rename(folder / "coordinator")
    def events(self):
        return [Went(one.name[len("broken-"):], "broke", "its log") for one in folder.glob("broken-*")]
    def describe_missing(self, names):
        return " and ".join(names)
    def explain(self, node, silent):
        return "was taken away"
    def places(self):
        return {"one": ("host-of-one", "its log")}

function = (folder / "call").read_bytes()
serve_job(HostedJob.from_bytes((folder / "job").read_bytes(), function), "127.0.0.1", Platform())
"""
CONTAINER = """
import sys
from tfcollective._launch.hosted.platform_side import serve_container
from tfcollective._launch.nodes.provider import NodeSettings

sys.exit(serve_container(NodeSettings(sys.argv[1], sys.stdin.readline().strip(), sys.argv[2])))
"""


def said_and_returned(number):
    print("said", number, flush=True)
    return number * 2


def joined_and_waiting():
    exec(JOIN + "\njoin(); print('waits', flush=True); time.sleep(100)", {})


class Platform:
    """A job with two containers called ``one`` and ``two``, of which ``one`` runs two ranks."""

    def __init__(self, folder, fn, args=(), allocation_timeout=60.0):
        call = FunctionCall(cloudpickle.dumps((fn, args, {})), ())
        spec = JobSpec(
            (sys.executable, *program_of("tfcollective._launch.running.function")), 3, call=call, env={"A": "b"}
        )
        plan = plan_hosts(spec, share_out(parse_hosts("one:2,two:1"), 3), {})
        self.job = HostedJob(new_job_id(), new_key(), spec, plan, sys.executable, allocation_timeout, True)
        self.folder = folder
        self.ended_by_platform = False
        (folder / "job").write_bytes(self.job.to_bytes())
        (folder / "call").write_bytes(call.payload)
        self.processes = [subprocess.Popen([sys.executable, "-c", MASTER, str(folder)])]

    def __enter__(self):
        until((self.folder / "coordinator").exists, 60)
        self.coordinator = (self.folder / "coordinator").read_text()
        return self

    def __exit__(self, *unused):
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()

    def add(self, *names):
        for name in names:
            command = [sys.executable, "-c", CONTAINER, self.coordinator, name]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL)
            process.stdin.write(self.job.key.hex() + "\n")
            process.stdin.flush()
            self.processes.append(process)

    def follow(self, client):
        """The platform reports the end as soon as the master has been asked to end."""
        why = "its queue was needed"
        return client.follow(self.job.plan, lambda: why if self.ended_by_platform else None, (), results=True)

    def take_away(self):
        self.processes[0].terminate()
        self.ended_by_platform = True

    @contextlib.contextmanager
    def client(self):
        with HostedClient(self.coordinator, self.job.key) as client:
            yield client


def test_output_results_and_places_reach_the_submitter(tmp_path, capfd):
    with Platform(tmp_path, said_and_returned, (21,)) as platform:
        platform.add("two", "one")
        with platform.client() as client:
            ended = platform.follow(client)
        assert [process.wait(within(60)) for process in platform.processes] == [0, 0, 0]
    assert [record.exit_code for record in ended.outcome.exits] == [0, 0, 0]
    assert [cloudpickle.loads(data) for data in ended.outcome.results.values()] == [42, 42, 42]
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[{rank}]<stdout>: said 21" for rank in range(3)]
    one, two = ended.containers
    assert (one.name, one.tasks, one.host, one.log) == ("one", ("worker:0", "worker:1"), "host-of-one", "its log")
    assert (two.name, two.tasks) == ("two", ("worker:2",))
    assert one.duration is not None


def when_all_wait(platform, act):
    def watch():
        while True:
            status = ask_status(platform.coordinator, platform.job.key)
            if status and all(task.state == "running" for task in status.tasks):
                break
            time.sleep(0.1)  # the status has no call that waits
        act()

    threading.Thread(target=watch, daemon=True).start()


def signal_ourselves():
    while signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN, None):
        time.sleep(0.1)  # the submitter does not listen yet
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_to_the_submitter_ends_the_job(tmp_path):
    with Platform(tmp_path, joined_and_waiting) as platform:
        platform.add("one", "two")
        when_all_wait(platform, signal_ourselves)
        with platform.client() as client:
            ended = client.follow(platform.job.plan, lambda: None, (signal.SIGTERM,), results=True)
        assert [process.wait(within(60)) for process in platform.processes] == [0, 0, 0]
    assert ended.outcome.stopped_by == signal.SIGTERM
    assert ended.outcome.agent_failure is None


def test_the_platform_explains_the_masters_end(tmp_path):
    with Platform(tmp_path, joined_and_waiting) as platform:
        platform.add("one", "two")
        when_all_wait(platform, platform.take_away)
        with platform.client() as client:
            ended = platform.follow(client)
        assert [process.wait(within(60)) for process in platform.processes] == [0, 0, 0]
    assert ended.outcome.agent_failure == "its queue was needed"


def test_containers_that_do_not_come_are_named(tmp_path):
    with Platform(tmp_path, said_and_returned, (1,), allocation_timeout=3.0) as platform:
        platform.add("two")
        with platform.client() as client:
            failure = platform.follow(client).outcome.start_failure
        assert platform.processes[0].wait(within(60)) == 0
    assert failure.timed_out
    assert failure.message in (
        "1 of 2 containers came within 3 s; missing: one",
        "0 of 2 containers came within 3 s; missing: one and two",  # on a machine that has other things to do
    )


def test_an_impossible_container_is_reported_at_once(tmp_path):
    (tmp_path / "broken-two").touch()
    with Platform(tmp_path, said_and_returned, (1,)) as platform, platform.client() as client:
        assert platform.follow(client).outcome.agent_failure == (
            "the container of two broke before the job had begun; its log"
        )
        assert platform.processes[0].wait(within(60)) == 0


def test_a_description_that_is_something_else_is_refused():
    with pytest.raises(ConfigError, match="the description of the job cannot be read"):
        HostedJob.from_bytes(b'{"job": {"job_id": "a"}}', b"")
