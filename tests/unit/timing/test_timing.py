"""Every limit leaves time for those below it."""

import signal

import pytest

from tfcollective._base.settings import Settings
from tfcollective._base.timing import TIMING, Timing
from tfcollective._launch.agent.policy import Stop, StopCause, stop_schedule

GRACES = [0.0, TIMING.grace, 600.0]
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: What an agent does once its processes have ended: it ends what they have left, shows output and reports.
AFTERWARDS = TIMING.sweep + 2 * TIMING.swept + TIMING.drain + TIMING.late_drain + TIMING.report


def killed_after(cause, grace, number=signal.SIGTERM):
    """When (s) the last process of an agent is killed that was asked to stop now."""
    return stop_schedule(Stop(cause, 0.0, number), Timing(grace=grace))[-1][0]


@pytest.mark.parametrize("cause", [one for one in StopCause if one is not StopCause.PREEMPTION])  # no order
@pytest.mark.parametrize("grace", GRACES)
@pytest.mark.parametrize("number", NUMBERS)
def test_an_agent_has_ended_before_it_is_killed(cause, grace, number):
    limit = TIMING.stop_limit + (grace if cause is StopCause.REQUEST else 0.0)
    assert killed_after(cause, grace, number) + AFTERWARDS < limit


@pytest.mark.parametrize("grace", GRACES)
@pytest.mark.parametrize("host_timeout", [TIMING.least_host_timeout, TIMING.host_timeout, 600.0])
def test_a_lost_hosts_ranks_end_in_time(grace, host_timeout):
    """Those on the host, by themselves, and those on the others, because the launcher says so."""
    # The node looks again after a pause and the time that one answer may take.
    beat = TIMING.beat_within(host_timeout)
    by_itself = host_timeout + beat + TIMING.short_reply + killed_after(StopCause.ABANDONED, grace)
    elsewhere = host_timeout + beat + killed_after(StopCause.ELSEWHERE, grace)
    assert max(by_itself, elsewhere) < host_timeout + 8.0


def test_one_sign_of_life_may_be_late():
    """And its answer, too: half of a limit counts at most between two looks."""
    assert TIMING.node_heartbeat + TIMING.short_reply < TIMING.least_host_timeout
    assert TIMING.node_heartbeat + TIMING.short_reply <= TIMING.host_timeout / 2
    for host_timeout in (TIMING.least_host_timeout, TIMING.host_timeout, 600.0):
        assert TIMING.beat_within(host_timeout) + TIMING.short_reply < host_timeout
    assert TIMING.longest_node_heartbeat + TIMING.short_reply <= TIMING.host_timeout / 2
    assert TIMING.heartbeat + TIMING.reply <= TIMING.coordinator_lost / 2
    assert TIMING.heartbeat + TIMING.long_reply <= min(TIMING.job_lost / 2, TIMING.job_lost_after_signal)
    assert 2 * TIMING.heartbeat + TIMING.longest_gap < min(TIMING.rank_silent, TIMING.submitter_lost)


def test_a_rank_outwaits_its_agents_heartbeats():
    """A beat of the agent may be late, and so may the rank's look; then there is time for one of the rank's own."""
    assert TIMING.longest_node_heartbeat + TIMING.short_reply + TIMING.heartbeat < TIMING.relay
    assert TIMING.relay + TIMING.heartbeat + TIMING.reply < TIMING.coordinator_lost
    assert TIMING.longest_node_heartbeat + TIMING.longest_gap < TIMING.relay
    assert TIMING.relay + TIMING.heartbeat < TIMING.newcomer_silent


@pytest.mark.parametrize("grace", GRACES)
def test_agents_without_launcher_end_their_ranks_first(grace):
    assert killed_after(StopCause.ABANDONED, grace) + TIMING.sweep < TIMING.abandoned


def test_a_failing_rank_explains_before_it_ends():
    assert TIMING.stuck < TIMING.interrupt
    assert max(TIMING.own_error, TIMING.timeline_broken) < TIMING.settle


def test_rank_0_gets_the_timelines_in_time():
    assert TIMING.timeline < TIMING.leave


def test_a_process_can_end_its_children_first():
    assert TIMING.lingering < min(TIMING.coordinator, TIMING.event_loop)
    assert 2 * TIMING.tensorboard < TIMING.tensorboard_task


def test_mpirun_kills_no_agent_still_awaited():
    assert TIMING.stop_limit + TIMING.order <= TIMING.mpirun_kills
    assert TIMING.mpirun_abort < AFTERWARDS < TIMING.mpirun_end


def test_the_platforms_explanation_precedes_the_report():
    assert TIMING.container_news < TIMING.container_end < TIMING.host_timeout
    assert TIMING.container_end < TIMING.platform_knows


def test_a_spark_task_ends_its_agent_first():
    assert TIMING.abandoned < TIMING.spark_abandoned
    assert TIMING.spark_abandoned + TIMING.late_drain < TIMING.spark_end
    assert TIMING.spark_says < TIMING.host_timeout


def test_the_master_names_missing_containers_first():
    """Their wait may begin a poll of theirs earlier; it ends with what the submitter hears."""
    assert TIMING.retry_for + TIMING.poll < TIMING.container_margin


@pytest.mark.parametrize("grace", GRACES)
def test_a_platform_spares_agents_that_still_report(grace):
    assert killed_after(StopCause.REQUEST, grace) + AFTERWARDS < grace + TIMING.notice
    assert TIMING.stop_limit + TIMING.order < TIMING.notice


def test_a_check_gives_up_before_a_job_would():
    assert TIMING.check_name < TIMING.check < Settings().start_timeout
    assert TIMING.check < TIMING.check_start < TIMING.allocation


def test_an_application_may_end_by_itself():
    assert TIMING.platform_call + AFTERWARDS < TIMING.application_end


def test_a_pod_outlives_its_agent():
    assert TIMING.stop_limit < TIMING.notice
    assert TIMING.notice + TIMING.application_end < TIMING.pods_gone


def test_a_clusters_processes_outwait_the_platform():
    assert TIMING.submission + TIMING.master <= TIMING.cluster_start
    assert TIMING.agent_start < TIMING.master


def test_a_cluster_outwaits_its_launcher():
    ends = max(TIMING.stop_limit + TIMING.order, TIMING.application_end)
    assert ends < TIMING.cluster_stop
    assert TIMING.cluster_call < TIMING.coordinator_lost


def test_a_late_look_fits_the_longest_gap():
    assert TIMING.watch < TIMING.longest_gap < TIMING.least_host_timeout


def test_a_hosted_job_ends_before_its_submitter():
    ended = TIMING.submitter_lost + TIMING.watch + TIMING.terminate + AFTERWARDS
    assert ended < TIMING.job_lost
    assert TIMING.submitter_lost < TIMING.submitter_comes


def test_the_coordinator_answers_a_poll_in_time():
    assert TIMING.poll <= TIMING.longest_poll
    assert TIMING.poll + TIMING.reply < TIMING.longest_poll + TIMING.join_margin
    assert TIMING.reply < TIMING.join_margin  # the reply to a rank that the others have not joined
    assert TIMING.connect <= TIMING.reply


def test_vital_requests_are_tried_more_than_once():
    assert TIMING.retry + TIMING.short_reply < TIMING.retry_for <= TIMING.coordinator_lost


def test_the_settings_begin_with_these():
    assert (Settings().host_timeout, Settings().grace) == (TIMING.host_timeout, TIMING.grace)


def test_stacks_come_before_they_are_given_up():
    assert 2 * TIMING.stacks + TIMING.order < TIMING.dump < TIMING.longest_poll
