"""Every byte between the processes of a job and its coordinators: no key is among them, and no readable text."""

import subprocess
import sys
import threading

import psutil
import pytest
from control_wire import Recorder, keys_in, with_base64
from launching import JOIN, Run
from time_limits import within

import tfcollective
from tfcollective import _cluster as clusters
from tfcollective._base.topology import Endpoint
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._launch.running import job as running_job

pytestmark = pytest.mark.multiprocess

MARK = "what-only-this-function-says"


@pytest.fixture
def wire(monkeypatch):
    """What passes between clients and all coordinators that this process opens, and the keys that they have."""
    found = _Wire()

    class Recorded(CoordinatorServer):
        @property
        def endpoint(self):
            return found.way_to(self._options, super().endpoint)

    for module in (running_job, clusters):
        monkeypatch.setattr(module, "CoordinatorServer", Recorded)
    yield found
    found.close()


class _Wire:
    def __init__(self):
        self._recorders = {}
        self._lock = threading.Lock()
        self.jobs = {}  # the keys, by the names of their jobs

    def way_to(self, options, endpoint):
        with self._lock:
            if endpoint not in self._recorders:
                self._recorders[endpoint] = Recorder(endpoint).__enter__()
                self.jobs[options.job_id] = options.key
            recorder = self._recorders[endpoint]
        return Endpoint(recorder.host, recorder.port)

    def close(self):
        for one in self._recorders.values():
            one.__exit__()

    @property
    def said(self):
        return b"".join(bytes(one.recorded) for one in self._recorders.values())


def holds_no_key(wire):
    assert len(wire.said) > 1000
    assert wire.jobs
    return keys_in(wire.said, wire.jobs) == []


def marked(value):
    tfcollective.init()
    return f"{value} {tfcollective.rank()} {MARK}"


def neighbourhood():
    """Command lines and environments of this process, of its agent and of the agent's other processes."""
    me = psutil.Process()
    agent = me.parent()
    found = []
    for one in (me, agent, *agent.children(recursive=True)):
        found.append(" ".join(one.cmdline()))
        found.append(repr(one.environ()))
    return found


def test_a_run(wire):
    results = tfcollective.run(marked, ("called",), np=2)
    assert results == [f"called {rank} {MARK}" for rank in range(2)]
    assert holds_no_key(wire)
    assert MARK.encode() not in with_base64(wire.said)


def test_a_cluster(wire):
    with tfcollective.cluster(np=2) as kept:
        assert kept.run(marked, "first") == [f"first {rank} {MARK}" for rank in range(2)]
        assert kept.run(marked, "second") == [f"second {rank} {MARK}" for rank in range(2)]
    assert len(wire.jobs) == 2  # the job's, and the cluster's own
    assert holds_no_key(wire)
    assert MARK.encode() not in with_base64(wire.said)


def test_agents_that_join(tmp_path):
    key_file = tmp_path / "key"
    program = f"{JOIN}\njoin(); print('mine is', os.environ['MINE'])"
    arguments = ("-np", "2", "--wait-for-agents", "1", "--key-file", str(key_file), "--network-interface", "lo")
    with Run((*arguments, "--env", f"MINE={MARK}", "python", "-c", program)) as one:
        words = next(line for line in one.process.stderr if "agent --join" in line).split()
        key = bytes.fromhex(key_file.read_text())
        with Recorder(Endpoint.parse(words[3])) as wire:
            words[3] = f"{wire.host}:{wire.port}"
            agent = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=within(60))
            assert one.finish()[0] == 0
    assert agent.stdout.count(f"mine is {MARK}") == 2
    assert keys_in(wire.recorded, {"": key}) == []
    assert MARK.encode() not in wire.recorded


def test_no_key_in_command_lines_environments_and_logs(wire, monkeypatch, capfd):
    monkeypatch.setenv("TFCOLLECTIVE_LOG_LEVEL", "debug")
    with tfcollective.cluster(np=2) as kept:
        found = kept.run(neighbourhood)
    logged = capfd.readouterr()
    seen = "\n".join([*(text for one in found for text in one), logged.out, logged.err])
    assert "TFCOLLECTIVE_KEY_FILE" in seen
    assert "agent: worker:0 is process" in logged.err
    assert keys_in(seen.encode(), wire.jobs) == []
