"""Every limit on the way from a request to stop to the end of a process leaves time for those below it."""

import signal

import pytest
from tfcollective_launchers.mpi.command import MpiOptions, mpirun_command
from tfcollective_launchers.ssh import node_process

from tfcollective import clusters, processes
from tfcollective.agent import main as agent_main
from tfcollective.agent import supervisor
from tfcollective.agent.config import StopCommand
from tfcollective.agent.policy import DEFAULT_GRACE_S, Limits, Stop, StopCause, stop_schedule
from tfcollective.launch.nodes import launcher_side, node_side
from tfcollective.launch.nodes.protocol import BEAT_S, LOST_S
from tfcollective.launch.plan.spec import MIN_HOST_TIMEOUT_S, JobSpec
from tfcollective.launch.running.agent_process import stop_limit
from tfcollective.settings import Settings

GRACES = [0.0, 10.0, 600.0]
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What an agent does once its processes have ended: it ends what they have left, shows output and reports.
AFTERWARDS_S = (
    processes._SWEEP_GRACE_S
    + 2 * processes._SWEEP_KILL_S
    + agent_main._DRAIN_S
    + supervisor._MOST_DRAIN_S
    + agent_main._REPORT_S
)


def killed_after(cause, grace, number=signal.SIGTERM):
    """When (s) the last process of an agent is killed that was asked to stop now."""
    return stop_schedule(Stop(cause, 0.0, number), Limits(grace=grace))[-1][0]


@pytest.mark.parametrize("cause", [StopCause.REQUEST, StopCause.ELSEWHERE, StopCause.ABANDONED])
@pytest.mark.parametrize("grace", GRACES)
@pytest.mark.parametrize("number", NUMBERS)
def test_an_agent_ends_before_it_is_killed_and_its_node_before_that_is_given_up(cause, grace, number):
    agent = killed_after(cause, grace, number) + AFTERWARDS_S
    on_its_node = stop_limit(StopCommand(number, cause), grace)
    at_the_launcher = on_its_node + launcher_side._MARGIN_S
    assert agent < on_its_node < at_the_launcher


@pytest.mark.parametrize("grace", GRACES)
def test_mpirun_kills_an_agent_later_than_that_ends_its_rank(grace):
    words = mpirun_command((), 1, MpiOptions(), ("agent",), {}, grace)
    kills_after = float(words[words.index("odls_base_sigkill_timeout") + 1])
    assert stop_limit(StopCommand(signal.SIGTERM), grace) < kills_after


@pytest.mark.parametrize("grace", GRACES)
def test_a_cluster_waits_as_long_as_its_nodes_may_take(grace):
    node = stop_limit(StopCommand(signal.SIGTERM), grace) + launcher_side._MARGIN_S
    assert node < clusters._STOP_S + grace


def test_an_agent_that_ssh_has_let_go_of_has_ended_its_ranks_before_ssh_is_killed():
    assert killed_after(StopCause.ABANDONED, 600.0) + processes._SWEEP_GRACE_S < node_process._END_S


@pytest.mark.parametrize("grace", GRACES)
@pytest.mark.parametrize("host_timeout", [MIN_HOST_TIMEOUT_S, LOST_S, 600.0])
def test_all_ranks_end_8_s_after_a_host_that_is_cut_off_is_lost(grace, host_timeout):
    """Those on the host, by themselves, and those on the others, because the launcher says so."""
    # Its pulse and its agent's watch look again after a pause and the time that one answer may take.
    by_itself = host_timeout + BEAT_S + node_side._REPLY_S + killed_after(StopCause.ABANDONED, grace)
    elsewhere = host_timeout + BEAT_S + killed_after(StopCause.ELSEWHERE, grace)
    assert max(by_itself, elsewhere) < host_timeout + 8.0


def test_one_sign_of_life_may_be_late():
    assert MIN_HOST_TIMEOUT_S > BEAT_S + node_side._REPLY_S


def test_the_limits_that_are_named_twice_are_the_same():
    assert (JobSpec.host_timeout, Settings().host_timeout) == (LOST_S, LOST_S)
    assert (JobSpec.grace, Settings().grace) == (DEFAULT_GRACE_S, DEFAULT_GRACE_S)
