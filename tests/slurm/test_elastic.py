"""Elastic jobs in an allocation: agents, ranks and nodes are lost, drained and come back while the others train."""

import json
import signal
import sys
from pathlib import Path

import pytest
from launching import Run, environment_of, until, words_of

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.kill, pytest.mark.timeout(900)]

WORKER = Path(__file__).parents[1] / "multiprocess" / "elastic_worker.py"
STEPS = 60
NO_KILL = ("--no-kill",)


def job(environ, directory, size, generation, *options):
    """Trains on until it has done a step with so many ranks, in this generation or a later one."""
    ends = ("--env", f"SIZE={size}", "--env", f"GENERATION={generation}", "--blacklist-cooldown-range", "1", "2")
    command = [sys.executable, str(WORKER), str(directory), str(STEPS)]
    return Run(("--launcher", "slurm", "--min-np", "1", *ends, *options, "--", *command), env=environ)


def ranks_on(one, node):
    return [
        process
        for process in one.processes()
        if environment_of(process).get("SLURMD_NODENAME") == node and environment_of(process).get("TFCOLLECTIVE_TASK")
    ]


def agent_on(one, node):
    return ranks_on(one, node)[0].parent()


def in_training(directory):
    return lambda: (directory / "began").exists()


def sizes(directory):
    """How many ranks took part in each step, as rank 0 has seen it; how many ranks came to the end."""
    ends = [json.loads(path.read_text()) for path in directory.glob("end-*.json")]
    (found,) = {tuple(end["sizes"]) for end in ends}
    return found, len(ends)


def test_a_killed_rank_returns_on_its_node(slurm, tmp_path):
    with slurm.allocation(1, 1, 1) as environ, job(environ, tmp_path, 3, 3) as one:
        until(in_training(tmp_path), 120)
        ranks_on(one, "node3")[0].kill()
        code, _, err = one.finish(180)
        assert code == 0, err
        found, count = sizes(tmp_path)
        assert (found[0], min(found), found[-1], count) == (3, 2, 3, 3)
        one.wait_until_gone(10.0)


def test_a_killed_agent_returns_on_its_node(slurm, tmp_path):
    with slurm.allocation(1, 1, 1) as environ, job(environ, tmp_path, 3, 3) as one:
        until(in_training(tmp_path), 120)
        agent = agent_on(one, "node2")
        assert "tfcollective._launch.agent" in words_of(agent)
        agent.send_signal(signal.SIGKILL)
        code, _, err = one.finish(180)
        assert code == 0, err
        assert f"node2: the agent (pid {agent.pid}) has ended without a report (srun: exit code 137)" in err
        found, count = sizes(tmp_path)
        assert (found[0], min(found), found[-1], count) == (3, 2, 3, 3)
        one.wait_until_gone(10.0)


def test_a_draining_node_is_left_and_returns(slurm, tmp_path):
    with slurm.allocation(1, 1, 1) as environ, job(environ, tmp_path, 3, 3) as one:
        until(in_training(tmp_path), 120)
        slurm.run("scontrol", "update", "nodename=node3", "state=drain", "reason=fan")
        try:
            until((tmp_path / "changed").exists, 120)
            until(lambda: not ranks_on(one, "node3"), 120)
        finally:
            slurm.run("scontrol", "update", "nodename=node3", "state=resume")
        code, _, err = one.finish(180)
        assert code == 0, err
        assert "the hosts of the job are now node1:1, node2:1" in err
        found, count = sizes(tmp_path)
        assert (found[0], min(found), found[-1], count) == (3, 2, 3, 3)
        one.wait_until_gone(10.0)


def test_a_users_command_preempts_a_node(slurm, tmp_path):
    program = tmp_path / "preempted"
    program.write_text(f'#!/bin/sh\ntest -e {tmp_path}/began && test "$SLURMD_NODENAME" = node3\n')
    program.chmod(0o700)
    options = ("--grace", "60", "--preemption-command", str(program))
    with slurm.allocation(1, 1, 1) as environ, job(environ, tmp_path, 2, 2, *options) as one:
        code, _, err = one.finish(240)
        assert code == 0, err
        assert f"node3 is preempted (the preemption command said so: {program})" in err
        assert "worker:2 has left gracefully" in err
        found, count = sizes(tmp_path)
        assert (found[0], found[-1], count) == (3, 2, 2)
        one.wait_until_gone(10.0)


def test_a_lost_node_costs_its_ranks_alone(slurm, tmp_path):
    with slurm.allocation(1, 1, 1, options=NO_KILL) as environ, job(environ, tmp_path, 2, 3) as one:
        until(in_training(tmp_path), 120)
        slurm.lose_node("node3")
        try:
            said = next(line for line in one.process.stderr if "node3: the agent" in line)
            assert "SLURM says: node3 is" in said
            ranks_on(one, "node2")[0].kill()  # the training ends in the world after that
            code, _, err = one.finish(240)
            assert code == 0, err
            found, count = sizes(tmp_path)
            assert (found[0], found[-1], count) == (3, 2, 2)
            one.wait_until_gone(10.0)
        finally:
            slurm.start_node("node3")


def test_a_fixed_job_names_its_lost_node(slurm, tmp_path):
    program = "import tfcollective as tfc, time; tfc.init(); open('began', 'w').close(); time.sleep(600)"
    with slurm.allocation(1, 1, options=NO_KILL) as environ:
        arguments = ("--launcher", "slurm", "--", "python", "-c", program)
        with Run(arguments, env=environ, cwd=str(tmp_path)) as one:
            until(in_training(tmp_path), 120)
            slurm.lose_node("node2")
            try:
                code, _, err = one.finish(240)
                assert code == 75, err
                assert "node2" in err
                one.wait_until_gone(10.0)
            finally:
                slurm.start_node("node2")


def test_every_rank_leaves_when_slurm_signals_the_steps(slurm, tmp_path):
    with slurm.allocation(1, 1, 1) as environ, job(environ, tmp_path, 0, 9) as one:
        until(in_training(tmp_path), 120)
        slurm.run("scancel", "--signal=TERM", environ["SLURM_JOB_ID"])  # as --signal=TERM@60 does
        code, _, err = one.finish(180)
        assert code == 75, err
        assert "all ranks have left gracefully" in err or "left gracefully" in err
        one.wait_until_gone(10.0)
