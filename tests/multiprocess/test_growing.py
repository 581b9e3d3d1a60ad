"""Jobs that grow and shrink with their hosts, between a minimum and a maximum. The hosts are names of this machine,
each with an agent of its own."""

import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from growing import Growing
from launching import Run, environment_of, gone, until

import tfcollective
from tfcollective import elastic

pytestmark = [pytest.mark.multiprocess]

FAULTY = Path(__file__).with_name("elastic_worker.py")
ONE, TWO = "localhost", "127.0.0.1"


@pytest.fixture
def growing(tmp_path):
    return Growing(tmp_path)


def test_a_job_grows_and_shrinks_with_its_hosts(growing):
    growing.has(f"{ONE}:1")
    with growing.runs(*growing.discovers, "-np", "1", "--max-np", "3"):
        growing.comes_to(1)
        growing.has(f"{ONE}:1", f"{TWO}:4")
        growing.comes_to(3)
        growing.has(f"{ONE}:1", f"{TWO}:1")
        growing.comes_to(2)
        growing.has(f"{TWO}:1")  # rank 0 is on the host that goes
        growing.comes_to(1)
        err, ended = growing.ends()
    assert growing.worlds[-1] == [1]
    assert list(ended) == [1]
    assert all(f"worker:{task} has left gracefully" in err for task in (0, 2))
    # One that is asked to leave while it connects breaks off its handshake.
    assert not [line for line in err.splitlines() if "failed" in line and "TLS handshake" not in line]
    assert "takes the place of" not in err


@pytest.mark.elastic
def test_raising_after_a_leave_request_is_harmless(growing):
    growing.has(f"{ONE}:1", f"{TWO}:1")
    with growing.runs(*growing.discovers, "-np", "2", "--min-np", "1", env={"ON_LEAVING": "raise"}):
        growing.comes_to(2)
        growing.has(f"{ONE}:1")
        growing.comes_to(1)
        growing.has(f"{ONE}:2")
        growing.comes_to_be(0, 2)
        err, ended = growing.ends()
    assert sorted(ended) == [0, 2]
    assert "worker:1 has left gracefully" in err
    assert "ValueError: the last checkpoint cannot be written" in err


@pytest.mark.elastic
def test_raising_after_leaving_at_sigterm_is_harmless(growing):
    growing.has(f"{ONE}:2")
    with growing.runs(*growing.discovers, "-np", "2", "--min-np", "1", env={"ON_LEAVING": "raise"}) as job:
        growing.comes_to(2)
        (rank,) = (one for one in job.processes() if environment_of(one).get("TFCOLLECTIVE_TASK") == "worker:1")
        rank.terminate()
        growing.comes_to(1)
        until(lambda: gone(rank), 60)
        growing.has(f"{ONE}:3")
        growing.comes_to_be(0, 2)
        err, ended = growing.ends()
    assert sorted(ended) == [0, 2]
    assert "worker:1 has left gracefully" in err
    assert "ValueError: the last checkpoint cannot be written" in err


@pytest.mark.elastic
def test_a_host_may_come_back(growing):
    growing.has(f"{ONE}:1", f"{TWO}:1")
    with growing.runs(*growing.discovers, "-np", "2", "--min-np", "1"):
        growing.comes_to(2)
        growing.has(f"{ONE}:1")
        growing.comes_to(1)
        growing.has(f"{ONE}:1", f"{TWO}:1")
        growing.comes_to(2)
        _, ended = growing.ends()
    assert growing.worlds == [[0, 1], [0], [0, 2]]
    assert sorted(ended) == [0, 2]
    assert set(ended[0]["heard"]) == {3}  # rank 0 was told of the changes


@pytest.mark.elastic
def test_a_job_moves_hosts_with_its_state(growing):
    growing.has(f"{ONE}:2")
    with growing.runs(*growing.discovers, "-np", "2", "--min-np", "1", "--max-np", "2"):
        growing.comes_to(2)
        growing.has(f"{TWO}:2")
        growing.comes_to_be(2, 3)
        err, ended = growing.ends()
    assert "worker:0 has left gracefully" in err
    first = ended[2]["seen"][0]
    assert first["step"] > 1  # it went on where the others were


@pytest.mark.elastic
def test_without_a_maximum_all_slots_are_used(growing):
    growing.has(f"{ONE}:2", f"{TWO}:2")
    with growing.runs(*growing.discovers, "-np", "1"):
        growing.comes_to(4)
        growing.ends()
    assert growing.worlds == [[0, 1, 2, 3]]  # from the start


@pytest.mark.elastic
def test_the_change_beyond_the_limit_ends_the_job(growing):
    growing.has(f"{ONE}:1")
    with growing.runs(*growing.discovers, "-np", "1", "--reset-limit", "1") as job:
        growing.comes_to(1)
        growing.has(f"{ONE}:3")  # whether or not these two are ready together
        growing.comes_to(3)
        growing.has(f"{ONE}:4")
        code, _, err = job.finish(90)
        job.wait_until_gone(5.0)
    assert code != 0
    assert "the world may not change again: --reset-limit is 1" in err


@pytest.mark.elastic
def test_a_job_losing_all_hosts_has_failed(growing):
    growing.has(f"{ONE}:1")
    with growing.runs(*growing.discovers, "-np", "1") as job:
        growing.comes_to(1)
        growing.has()
        code, _, err = job.finish(90)
        job.wait_until_gone(5.0)
    assert code == 75
    assert "no rank is left whose state others could take" in err


def test_an_unusable_script_ends_the_job(growing):
    growing.script.write_text("#!/bin/sh\necho no cloud >&2; exit 3\n")
    with growing.runs(*growing.discovers, "-np", "1") as job:
        code, _, err = job.finish(60)
    assert code == 70
    assert "failed with exit code 3\n  no cloud" in err


@pytest.mark.elastic
@pytest.mark.kill
def test_a_spare_host_replaces_a_lost_one(growing):
    growing.has(f"{ONE}:1", f"{TWO}:1", f"{socket.gethostname()}:1")
    with growing.runs(*growing.discovers, "-np", "2", "--min-np", "1", "--max-np", "2"):
        growing.comes_to(2)
        growing.agent_of(1).send_signal(signal.SIGKILL)
        growing.comes_to_be(0, 2)
        err, ended = growing.ends()
    assert "127.0.0.1 has lost its agent: nothing is started there for 30 s" in err
    assert sorted(ended) == [0, 2]


@pytest.mark.elastic
@pytest.mark.kill
def test_ending_an_agent_costs_its_ranks_alone(growing):
    growing.has(f"{ONE}:1", f"{TWO}:1")
    with growing.runs(*growing.discovers, "-np", "2", "--min-np", "1", "--max-np", "2"):
        growing.comes_to(2)
        growing.agent_of(1).send_signal(signal.SIGTERM)
        growing.comes_to(1)
        growing.has(f"{ONE}:2", f"{TWO}:1")  # replacing goes on elsewhere
        growing.comes_to(2)
        growing.ends()
    assert growing.worlds[-1] == [0, 2]


@pytest.mark.elastic
@pytest.mark.kill
def test_a_job_losing_its_state_fails_clearly(growing):
    """The only rank with the state ends while the first one that was to take it connects to it."""
    growing.has(f"{ONE}:1")
    began = growing.directory / "began"
    program = [sys.executable, str(FAULTY), str(growing.directory), "100000", "connect:0:2"]
    with Run(("-np", "1", *growing.discovers, "--", *program), env={"AT_ONCE": "1"}) as job:
        until(began.exists, 60)
        growing.has(f"{ONE}:2")
        code, _, err = job.finish(90)
        job.wait_until_gone(5.0)
    assert code != 0
    assert "those that had its state ended before these had taken it" in err


def train_until_there_are_two():
    tfcollective.init()

    @elastic.run
    def train(state):
        while tfcollective.size() < 2 and state.step < 5000:
            state.step += 1
            state.commit()
            time.sleep(0.02)

    train(elastic.ObjectState(step=0))
    return str(tfcollective.task()), tfcollective.size()


@pytest.mark.elastic
def test_a_function_grows_too(tmp_path):
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\necho {ONE}\n[ -e {tmp_path}/second ] && echo {TWO}\ntouch {tmp_path}/second\n")
    script.chmod(0o755)
    found = tfcollective.run(train_until_there_are_two, num_proc=1, host_discovery_script=str(script), slots=1)
    assert found == [("worker:0", 2), ("worker:1", 2)]
