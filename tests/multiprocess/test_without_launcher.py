"""Ranks that no launcher has started join the world through rank 0."""

import json
import signal
import socket
import time

import psutil
import pytest
from by_hand import TRAIN, free_port, ranks, tf_config
from launching import gone, until
from time_limits import within

from tfcollective._base.exit_codes import ExitCode
from tfcollective._base.machine.network import interface_addresses
from tfcollective._base.topology import is_loopback

pytestmark = pytest.mark.multiprocess
KEY = {"TFCOLLECTIVE_KEY": "ab" * 32}
ONLY_INIT = "import tfcollective; tfcollective.init()"


def by_tf_config(port):
    return [tf_config(port, "chief", 0), tf_config(port, "worker", 0), tf_config(port, "worker", 1)]


def by_mpi(port):
    place = {"TFCOLLECTIVE_RENDEZVOUS": f"127.0.0.1:{port}", **KEY}
    return [{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", **place} for rank in range(2)]


def by_slurm(port):
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_ID": str(port)}
    return [{"SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0", **step} for rank in range(2)]


def by_kubernetes(port):
    place = {"TFCOLLECTIVE_RENDEZVOUS": f"localhost:{port}", "TFCOLLECTIVE_INSECURE": "1"}
    return [{"JOB_COMPLETION_INDEX": str(rank), "TFCOLLECTIVE_SIZE": "2", **place} for rank in range(2)]


def waiting(group):
    """How many ranks wait for the others, as the coordinator sees it."""
    return sum(task.state == "waiting" for task in group.status().tasks)


@pytest.mark.parametrize("environments", [by_tf_config, by_mpi, by_slurm, by_kubernetes])
def test_the_ranks_meet_twice_and_agree(tmp_path, environments):
    with ranks(tmp_path) as group:
        # Rank 0 comes last: the others wait for it.
        for environ in reversed(environments(free_port())):
            group.start(TRAIN, environ)
        results = []
        for process in reversed(group.processes):
            out, err = process.communicate(timeout=within(60))
            assert process.returncode == 0, err
            assert ("can join this job" in err) == (environments is by_kubernetes)
            results.append(json.loads(out))
        chief, size = ("chief:0", 3) if environments is by_tf_config else ("worker:0", 2)
        total = sum(range(1, size + 1))
        assert results[0][0] == chief
        assert [result[1:] for result in results] == [[rank, size, False, [total, total]] for rank in range(size)]
        until(lambda: not group.coordinators(), 5)


def test_a_missing_rank_0_is_named(tmp_path):
    port = free_port()
    with ranks(tmp_path) as group:
        process = group.start(ONLY_INIT, tf_config(port, "worker", 0), timeout=0.5)
        _, err = process.communicate(timeout=within(30))
        assert f"chief:0 (rank 0) has not opened 127.0.0.1:{port} within 0.5 s" in err


def test_a_rank_with_another_key_is_refused(tmp_path):
    port = free_port()
    with ranks(tmp_path) as group:
        # The chief comes last: the others wait for it, and its ten seconds begin with its own join.
        intruder = group.start(ONLY_INIT, {**tf_config(port, "worker", 0), "TFCOLLECTIVE_KEY": "cd" * 32})
        worker = group.start(ONLY_INIT, {**tf_config(port, "worker", 1), **KEY})
        chief = group.start(ONLY_INIT, {**tf_config(port, "chief", 0), **KEY}, timeout=10)
        _, err = intruder.communicate(timeout=within(60))
        assert "UnprovenReplyError" in err
        assert "does not prove the job key" in err
        errors = [process.communicate(timeout=within(60))[1] for process in (chief, worker)]
        assert "wrong key" in errors[0]
        for err in errors:
            assert "RendezvousError: 2 of 3 tasks joined within 10 s; missing: worker:0" in err


def test_jobs_with_one_key_stay_apart(tmp_path):
    """As two jobs of one Secret, of which the second finds the first at its address."""
    port = free_port()
    with ranks(tmp_path) as group:
        stray = group.start(ONLY_INIT, {**tf_config(port, "worker", 0), **KEY, "TFCOLLECTIVE_JOB_ID": "second"})
        ours = {**KEY, "TFCOLLECTIVE_JOB_ID": "first"}
        first = [group.start(TRAIN, {**tf_config(port, *place), **ours}) for place in (("worker", 0), ("chief", 0))]
        _, err = stray.communicate(timeout=within(60))  # while the first job waits for its last rank
        first.append(group.start(TRAIN, {**tf_config(port, "worker", 1), **ours}))
        assert "OtherJobError" in err
        assert "is the coordinator of the job 'first', which has the same key" in err
        assert "belongs to the job 'second'" in err
        for process in first:
            out, err = process.communicate(timeout=within(60))
            assert process.returncode == 0, err
            assert json.loads(out)[-1] == [6.0, 6.0]


def test_ranks_meet_at_an_address_that_others_reach(tmp_path):
    addresses = [one for found in interface_addresses().values() for one in found if "." in one]
    reachable = [one for one in addresses if not is_loopback(one)]
    if not reachable:
        pytest.skip("this machine has the loopback interface only")
    port, host = free_port(), reachable[0]
    with ranks(tmp_path) as group:
        places = [("worker", 0), ("worker", 1), ("chief", 0)]
        started = [group.start(TRAIN, {**tf_config(port, *place, host=host), **KEY}) for place in places]
        for process in started[:2]:
            out, err = process.communicate(timeout=within(60))
            assert process.returncode == 0, err
            assert json.loads(out)[-1] == [6.0, 6.0]
        assert started[2].wait(within(60)) == 0


def test_a_taken_port_is_reported_with_advice(tmp_path):
    with ranks(tmp_path) as group, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = group.start(ONLY_INIT, tf_config(port, "chief", 0))
        _, err = process.communicate(timeout=within(30))
        assert f"cannot listen on 127.0.0.1, port {port}" in err
        assert "TFCOLLECTIVE_RENDEZVOUS=HOST:PORT" in err
        assert group.coordinators() == []


def test_without_a_key_ranks_listen_on_loopback_only(tmp_path):
    with ranks(tmp_path) as group:
        process = group.start(ONLY_INIT, tf_config(free_port(), "chief", 0, host="192.0.2.1"))
        _, err = process.communicate(timeout=within(30))
        assert "ConfigError" in err
        for way in ("openssl rand -hex 32", "TFCOLLECTIVE_KEY_FILE", "TFCOLLECTIVE_KEY ", "TFCOLLECTIVE_INSECURE=1"):
            assert way in err


@pytest.mark.kill
def test_the_coordinator_ends_with_rank_0(tmp_path):
    """Even when rank 0 is killed and a fork of it, a data loader say, lives on."""
    port = free_port()
    program = """
import multiprocessing, os, time, numpy, tfcollective
tfcollective.init()
if tfcollective.rank() == 0:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
print("in", flush=True)
while True:
    tfcollective.get_communicator().allreduce(numpy.zeros(1)); time.sleep(0.05)
"""
    with ranks(tmp_path) as group:
        chief = group.start(program, tf_config(port, "chief", 0))
        others = [group.start(program, tf_config(port, "worker", index)) for index in range(2)]
        for process in group.processes:
            assert process.stdout.readline() == "in\n"
        (coordinator,) = group.coordinators()
        assert coordinator.ppid() == chief.pid
        assert "ab" * 16 not in " ".join(coordinator.cmdline())
        loader = next(child for child in psutil.Process(chief.pid).children() if child != coordinator)
        chief.send_signal(signal.SIGKILL)
        began = time.monotonic()
        for process in others:
            _, err = process.communicate(timeout=within(20))
            assert "PeerLostError" in err
        assert time.monotonic() - began < within(10)
        assert not gone(loader)
        until(lambda: gone(coordinator), 5)
        assert not list(group.jobs.glob("*/record.json"))


@pytest.mark.kill
def test_killing_rank_0_ends_the_others_wait(tmp_path):
    port = free_port()
    with ranks(tmp_path) as group:
        chief = group.start(ONLY_INIT, tf_config(port, "chief", 0), timeout=60)
        worker = group.start(ONLY_INIT, tf_config(port, "worker", 0), timeout=60)
        until(lambda: group.coordinators())
        until(lambda: waiting(group) == 2)
        chief.kill()
        _, err = worker.communicate(timeout=within(30))
        assert f"chief:0 (rank 0, pid {chief.pid}) ended while it waited for the others" in err
        until(lambda: not group.coordinators(), 5)


def test_auxiliary_tasks_and_ps(tmp_path):
    """An evaluator knows the world from outside; a ps process ends at once on request."""
    port = free_port()
    outside = """
import tfcollective
tfcollective.init()
print(tfcollective.task(), tfcollective.size())
for call in (tfcollective.rank, tfcollective.get_communicator):
    try:
        call()
    except tfcollective.StateError as error:
        print(error)
"""
    with ranks(tmp_path) as group:
        evaluator = group.start(outside, tf_config(port, "evaluator", 0))
        ps = group.start(
            ONLY_INIT + "; raise SystemExit(9)", tf_config(port, "ps", 0) | {"TFCOLLECTIVE_PS_POLICY": "exit0"}
        )
        refused = group.start(ONLY_INIT, tf_config(port, "ps", 0))
        out, _ = evaluator.communicate(timeout=within(30))
        text = "this process is evaluator:0: it is outside the world and has no rank"
        assert out.splitlines() == ["evaluator:0 3", text, text]
        _, err = ps.communicate(timeout=within(30))
        assert ps.returncode == 0
        assert "it ends" in err
        _, err = refused.communicate(timeout=within(30))
        assert refused.returncode == ExitCode.USAGE
        assert "there are no parameter servers" in err
