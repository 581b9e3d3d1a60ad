"""Preempted hosts of an elastic job: their ranks leave gracefully, and the job continues on the others.

Each name of this machine is a host of its own here, with an agent of its own.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from launching import Run, until

pytestmark = [pytest.mark.multiprocess, pytest.mark.kill]

every_notice = pytest.mark.elastic

WORKER = Path(__file__).with_name("preemption_worker.py")
HOSTS = ("127.0.0.1", "127.0.0.2")


def job(directory, *options, slots=1, until_size=1, deeds=()):
    listed = ",".join(f"{host}:{slots}" for host in HOSTS)
    command = [sys.executable, str(WORKER), str(directory), str(until_size), *deeds]
    return Run(("--launcher", "ssh", "-H", listed, "--min-np", "1", "--grace", "60", *options, "--", *command))


def agent_of(directory, task):
    """The process id of its agent."""
    return int((directory / f"pid-{task}").read_text())


def check(one, directory, stay):
    """The ranks that stay have done all steps, the last ones without the others."""
    code, _, err = one.finish(90)
    assert code == 0, err
    ends = {int(path.stem.partition("-")[2]): json.loads(path.read_text()) for path in directory.glob("end-*.json")}
    assert sorted(ends) == stay, err
    (sizes,) = {tuple(end["sizes"]) for end in ends.values()}
    assert sizes[-5:] == (len(stay),) * 5
    assert {end["total"] for end in ends.values()} == {sum(sizes)}
    assert "takes the place of" not in err
    one.wait_until_gone(10.0)
    return err


def test_sigterm_to_an_agent_makes_ranks_leave(tmp_path):
    with job(tmp_path, slots=2, until_size=2) as one:
        until((tmp_path / "began").exists, 60)
        os.kill(agent_of(tmp_path, 2), signal.SIGTERM)
        err = check(one, tmp_path, stay=[0, 1])
    assert "127.0.0.2 is preempted (its agent got SIGTERM): worker:2, worker:3 have to leave the job" in err
    assert "worker:2 has left gracefully" in err
    assert "generation 2: 2 ranks, without worker:2, worker:3" in err
    assert "continued without it" not in err  # nothing is lost


@every_notice
def test_rank_0s_host_may_be_taken_away(tmp_path):
    with job(tmp_path) as one:
        until((tmp_path / "began").exists, 60)
        os.kill(agent_of(tmp_path, 0), signal.SIGTERM)
        err = check(one, tmp_path, stay=[1])
    assert "worker:0 has left gracefully" in err


@every_notice
def test_a_users_command_preempts_a_host(tmp_path):
    program = tmp_path / "preempted"
    program.write_text(f'#!/bin/sh\ntest -e {tmp_path}/began && grep -qx "$PPID" {tmp_path}/pid-1\n')
    program.chmod(0o700)
    with job(tmp_path, "--preemption-command", str(program)) as one:
        err = check(one, tmp_path, stay=[0])
    assert f"127.0.0.2 is preempted (the preemption command said so: {program})" in err


@every_notice
def test_a_rank_leaving_too_late_is_lost(tmp_path):
    with job(tmp_path, "--grace", "1.5", deeds=["hangs:1"]) as one:
        until((tmp_path / "hangs").exists, 60)
        os.kill(agent_of(tmp_path, 1), signal.SIGTERM)
        err = check(one, tmp_path, stay=[0])
    assert "had not left its preempted node within 1.5 s (--grace): the others continued" in err


@every_notice
def test_a_job_losing_every_host_has_failed(tmp_path):
    notice = tmp_path / "notice"
    with job(tmp_path, "--preemption-file", str(notice), until_size=0) as one:
        until((tmp_path / "began").exists, 60)
        notice.touch()
        code, _, err = one.finish(90)
        assert code == 75, err
        assert f"127.0.0.1 is preempted (there is a file {notice})" in err
        assert "no rank is left whose state others could take" in err
        one.wait_until_gone(10.0)


@every_notice
def test_an_order_to_end_precedes_notices(tmp_path):
    with job(tmp_path, "--grace", "5", deeds=["hangs:1"]) as one:
        until((tmp_path / "hangs").exists, 60)
        os.kill(agent_of(tmp_path, 1), signal.SIGTERM)
        one.signal(signal.SIGTERM)
        code, _, err = one.finish(30)
        assert code == 143, err
        one.wait_until_gone(10.0)
