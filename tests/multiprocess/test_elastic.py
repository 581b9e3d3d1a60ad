"""Jobs that go on when ranks end: whatever is lost, wherever it happens, the others go on and end well."""

import json
import os
import re
import signal
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from launching import Run, environment_of, until
from time_limits import within

import tfcollective
from tfcollective import elastic
from tfcollective._base.timing import TIMING

pytestmark = [pytest.mark.multiprocess, pytest.mark.kill]

# A job may end before its ranks have reported the last three.
PHASES = r"\(detect [\d.]+, agree [\d.]+(, connect [\d.]+, sync [\d.]+, first step [\d.]+)?\)"

every_fault = pytest.mark.elastic

WORKER = Path(__file__).with_name("elastic_worker.py")


def run(directory, *faults, ranks=3, steps=60, options=("--min-np", "1"), **env):
    command = [sys.executable, str(WORKER), str(directory), str(steps), *faults]
    with Run(("-np", str(ranks), *options, "--", *command), env=env) as job:
        code, out, err = job.finish(90)
        job.wait_until_gone(2.0)
    ends = {int(path.stem.partition("-")[2]): json.loads(path.read_text()) for path in directory.glob("end-*.json")}
    return code, out, err, ends


def check(ends, steps=60):
    """All that ended have done all steps, in the same worlds; where the job waits for an event, more of them."""
    assert ends
    totals = {(end["total"], tuple(end["sizes"])) for end in ends.values()}
    assert len(totals) == 1
    total, sizes = totals.pop()
    assert len(sizes) >= steps
    assert total == sum(sizes)
    return sizes


FAULTS = product(("forward", "allreduce", "commit"), (0, 2), ("auto", "tcp"))
ALWAYS = (("allreduce", 0, "auto"), ("forward", 2, "tcp"))


@pytest.mark.parametrize(
    ("phase", "victim", "transport"),
    [pytest.param(*fault, marks=() if fault in ALWAYS else every_fault) for fault in FAULTS],
)
def test_the_others_go_on_without_a_killed_rank(tmp_path, phase, victim, transport):
    code, _, err, ends = run(tmp_path, f"{phase}:{victim}:20", options=("--min-np", "1", "--transport", transport))
    assert code == 0, err
    sizes = check(ends)
    # A rank that dies as soon as its own all-reduce is complete may take away what the others still need of it.
    surely = 19 if phase == "commit" else 20
    assert sizes[:surely] == (3,) * surely
    assert 2 in sizes
    assert victim not in ends
    assert f"worker:{victim}" in err
    assert "the others continued without it" in err
    died = float((tmp_path / f"fault-{victim}").read_text())
    survivors = [end for task, end in ends.items() if task < 3]
    assert len(survivors) == 2
    assert all(end["seen"][1]["first"] - died < within(1.0) for end in survivors)


def test_a_replacement_joins_while_the_others_train(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:1:20", SIZE="3", GENERATION="3")
    assert code == 0, err
    sizes = check(ends)
    alone = sizes.count(2)
    assert alone > 0
    assert sizes == (3,) * 20 + (2,) * alone + (3,) * (len(sizes) - 20 - alone)
    assert sizes[-1] == 3
    assert sorted(ends) == [0, 2, 3]
    assert [ends[task]["rank"] for task in (0, 2, 3)] == [0, 1, 2]
    assert re.search(
        rf"^  generation 2: 2 ranks, without worker:1, after \d+\.\d\d s {PHASES}: worker:1 was killed", err, re.M
    ), err
    assert re.search(rf"^  generation 3: 3 ranks, with worker:3, after \d+\.\d\d s {PHASES}$", err, re.M), err


def test_processes_find_their_place_at_their_start(tmp_path):
    options = ("--min-np", "1", "--horovod-compat")
    code, _, err, ends = run(tmp_path, "forward:1:20", options=options, SIZE="3", GENERATION="2")
    assert code == 0, err
    assert sorted(ends) == [0, 2, 3]
    starts = [json.loads((tmp_path / f"start-{task}.json").read_text()) for task in range(4)]
    for name, values in {
        "RANK": ["0", "1", "2", "2"],  # the replacement becomes the last
        "WORLD_SIZE": ["3"] * 4,
        "LOCAL_RANK": ["0", "1", "2", "1"],  # and takes the slot of the lost one
        "local rank": [0, 1, 2, 1],
        "HOROVOD_RANK": ["0", "1", "2", "2"],
        "HOROVOD_SIZE": ["3"] * 4,
        "HOROVOD_LOCAL_RANK": ["0", "1", "2", "1"],
        "HOROVOD_HOSTNAME": ["localhost"] * 4,
        "HOROVOD_ELASTIC": ["1"] * 4,
    }.items():
        assert [start[name] for start in starts] == values, name


@every_fault
def test_a_rank_too_late_joins_another_world(tmp_path):
    options = ("--min-np", "1", "--start-timeout", "2")
    code, _, err, ends = run(tmp_path, "init:1:0:late", options=options, SIZE="3")
    assert code == 0, err
    sizes = check(ends)
    assert sizes[0] < 3
    assert sizes[-1] == 3
    assert 1 in ends
    assert "worker:1 has come too late to the first world" in err


@every_fault
def test_a_job_everyone_leaves_has_not_succeeded(tmp_path):
    code, _, err, ends = run(tmp_path, *(f"forward:{task}:20:leave" for task in range(3)))
    assert code == 75, err
    assert not ends
    assert "no rank is left whose state others could take" in err


@every_fault
@pytest.mark.parametrize("faults", [("forward:0:20", "forward:1:20"), ("forward:0:20", "sync:1:20")])
def test_two_lost_ranks_leave_one(tmp_path, faults):
    code, _, err, ends = run(tmp_path, *faults)
    assert code == 0, err
    assert 1 in check(ends)


@every_fault
def test_a_loss_during_connection_costs_another_world(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:0:20", "connect:1:2")
    assert code == 0, err
    assert check(ends)[20] < 3
    assert not {0, 1} & set(ends)


@every_fault
def test_a_lost_newcomer_is_replaced_too(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:2:20", "sync:3:0", GENERATION="4")
    assert code == 0, err
    assert check(ends)[-1] in (2, 3)
    assert "worker:3" in err


def test_an_error_of_the_program_ends_the_job(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:1:20:raise")
    assert code == 1
    assert not ends
    assert "the job failed: rank 1 (worker:1" in err
    assert "ValueError: the data is rotten" in err


def test_a_program_error_may_cost_one_rank(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:1:20:raise", options=("--min-np", "1", "--on-error", "replace"))
    assert code == 0, err
    assert 2 in check(ends)
    assert re.search(r"rank 1 \(worker:1, pid \d+\) exited with code 1 .*: the others continued without it", err), err


@every_fault
def test_an_exit_code_alone_is_a_loss(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:1:20:exit")
    assert code == 0, err
    assert 2 in check(ends)


@every_fault
def test_too_few_ranks_end_with_the_cause(tmp_path):
    options = ("--min-np", "3", "--elastic-timeout", "0.05")
    code, _, err, ends = run(tmp_path, "forward:1:20", options=options)
    assert code != 0
    assert not ends
    assert "2 ranks are left, at least 3 are needed" in err
    assert "worker:1" in err
    assert "SIGKILL" in err


@every_fault
def test_a_replacement_ends_the_wait_of_too_few(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:1:20", options=("--min-np", "3"), AT_ONCE="1")
    assert code == 0, err
    assert check(ends) == (3,) * 60
    assert sorted(ends) == [0, 2, 3]


@every_fault
def test_when_all_ranks_are_lost_the_job_fails(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:0:20", "forward:1:20", "forward:2:20")
    assert code == 137
    assert not ends
    assert "the job failed" in err


@every_fault
def test_without_min_np_a_loss_is_final(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:1:20", options=())
    assert code == 137
    assert not ends
    assert "the job failed: rank 1" in err


def train_until_whole():
    """Ends worker:1, and returns once its replacement is there."""
    tfcollective.init()

    @elastic.run
    def train(state):
        while state.step < 10 or (tfcollective.size() < 3 and state.step < 5000):
            if state.step == 5 and str(tfcollective.task()) == "worker:1":
                os.kill(os.getpid(), signal.SIGKILL)
            state.step += 1
            state.commit()
            time.sleep(0.02)

    train(elastic.ObjectState(step=0))
    return str(tfcollective.task()), tfcollective.rank()


def test_a_function_returns_results_of_final_ranks():
    results = tfcollective.run(train_until_whole, num_proc=3, min_num_proc=1, hosts="localhost:2,127.0.0.1:1")
    assert results == [("worker:0", 0), ("worker:2", 1), ("worker:3", 2)]


@every_fault
def test_nothing_is_left_in_shared_memory(tmp_path):
    before = {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith("tfc")}
    code, _, err, _ = run(tmp_path, "allreduce:1:20")
    assert code == 0, err
    until(lambda: {e.name for e in Path("/dev/shm").iterdir() if e.name.startswith("tfc")} <= before)


@every_fault
@pytest.mark.parametrize("victim", [0, 2])
def test_sigterm_makes_a_rank_leave_in_order(tmp_path, victim):
    code, _, err, ends = run(tmp_path, f"forward:{victim}:20:leave")
    assert code == 0, err
    sizes = check(ends)
    assert sizes == (3,) * 21 + (2,) * 39  # it has completed the step in which it was asked to leave
    assert sorted(ends) == [task for task in range(3) if task != victim]
    assert f"worker:{victim} has left gracefully" in err
    assert "takes the place of" not in err


def test_sigterm_to_the_launcher_ends_all_ranks(tmp_path):
    command = [sys.executable, str(WORKER), str(tmp_path), "100000"]
    with Run(("-np", "3", "--min-np", "1", "--", *command)) as job:
        until(lambda: (tmp_path / "began").exists(), 30)
        job.signal(signal.SIGTERM)
        code, _, err = job.finish(30)
        assert code == 143, err
        assert "takes the place of" not in err
        job.wait_until_gone(2.0)


@every_fault
def test_a_stopped_rank_is_given_up_early(tmp_path):
    code, _, err, ends = run(tmp_path, "forward:1:20:stop", options=("--min-np", "1", "--op-timeout", "20"))
    assert code == 0, err
    assert check(ends)[20] < 3
    assert 1 not in ends
    assert re.search(r"rank 1 \(worker:1, pid \d+\) sent no heartbeat for \d+ s .* while it was stopped", err), err


@every_fault
def test_a_stopped_launcher_drops_only_lost_ranks(tmp_path):
    command = (sys.executable, str(WORKER), str(tmp_path), "60")
    with Run(("-np", "3", "--min-np", "1", "--", *command), env={"SIZE": "3", "GENERATION": "3"}) as job:
        until(lambda: (tmp_path / "began").exists(), 60)
        (victim,) = [one for one in job.workers() if environment_of(one).get("TFCOLLECTIVE_TASK") == "worker:1"]
        job.signal(signal.SIGSTOP)
        victim.kill()
        time.sleep(2 * TIMING.cut_off)  # less than ranks wait for an answer of their coordinator
        job.signal(signal.SIGCONT)
        code, _, err = job.finish(90)
        job.wait_until_gone(5.0)
    assert code == 0, err
    ends = {path.name for path in tmp_path.glob("end-*.json")}
    assert ends == {"end-0.json", "end-2.json", "end-3.json"}, err
    assert "generation 2: 2 ranks, without worker:1" in err
    assert "generation 3: 3 ranks, with worker:3" in err


@every_fault
def test_when_the_launcher_is_killed_all_ranks_end(tmp_path):
    command = [sys.executable, str(WORKER), str(tmp_path), "100000", "forward:1:20"]
    with Run(("-np", "3", "--min-np", "1", "--", *command)) as job:
        until(lambda: (tmp_path / "fault-1").exists(), 30)
        job.signal(signal.SIGKILL)
        job.wait_until_gone(20.0)


@every_fault
def test_a_killed_sole_agent_ends_the_job(tmp_path):
    command = [sys.executable, str(WORKER), str(tmp_path), "100000"]
    with Run(("-np", "3", "--min-np", "1", "--", *command)) as job:
        until(lambda: (tmp_path / "began").exists(), 30)
        job.agent().kill()
        code, _, err = job.finish(60)
        assert code != 0
        assert "agent" in err
        job.wait_until_gone(10.0)


MISTAKEN = """
import os
import tfcollective as tfc
os.environ["TFCOLLECTIVE_TRANSPORT"] = "pigeons"
tfc.init()
"""

WITHOUT_KEY = """
import os, signal
import numpy as np
import tfcollective as tfc
from tfcollective import elastic
tfc.init()

@elastic.run
def train(state):
    while True:
        if tfc.size() == 2 and tfc.rank() == 1:
            os.unlink(os.environ["TFCOLLECTIVE_KEY_FILE"])
            os.kill(os.getpid(), signal.SIGKILL)
        tfc.get_communicator().allreduce(np.ones(1))
        state.commit()

train(elastic.ObjectState(step=0))
"""


@pytest.mark.parametrize(
    ("program", "cause", "replaced"),
    [
        pytest.param(MISTAKEN, "ConfigError: .*pigeons", 0, id="setting"),
        pytest.param(WITHOUT_KEY, "ConfigError: .*cannot read the job key", 1, id="key"),
    ],
)
def test_a_configuration_error_in_init_is_final(program, cause, replaced):
    with Run(("-np", "2", "--min-np", "1", "--", sys.executable, "-c", program)) as job:
        code, _, err = job.finish(60)  # it would be started again and again
    assert code == 1, err
    assert re.search(f"the job failed: rank .*exited with code 1(.|\n)*{cause}", err), err
    assert len(re.findall("takes the place of", err)) == replaced, err
