import signal
from dataclasses import replace

import pytest

from tfcollective._base.failures import ErrorKind, ExceptionRecord, ExitReason, ExitRecord
from tfcollective._base.tasks import TaskKey
from tfcollective._control.snapshot import WorldChange
from tfcollective._launch.launcher import AuxiliaryTaskEnd, JobOutcome, StartFailure
from tfcollective._launch.report.report import describe_info, exit_code, headline, render, warning


def record(rank, time, *, code=1, number=None, stopped=False, exception=None, tail=()):
    reason = ExitReason.STOPPED if stopped else ExitReason.ENDED
    return ExitRecord(
        f"worker:{rank}", rank, "n", 40 + rank, None if number else code, number, time, reason, "", tail, exception
    )


def exception(kind="ValueError", consequence=False):
    return ExceptionRecord(
        kind,
        "text",
        f"Traceback (most recent call last):\n  in f\n{kind}: text\n",
        1.0,
        ErrorKind.PEER if consequence else ErrorKind.OWN,
    )


def outcome(*exits, **fields):
    return JobOutcome(tuple(exits), **{"initialised": True, **fields})


def test_success_has_nothing_to_tell():
    good = outcome(record(0, 1.0, code=0))
    assert (exit_code(good), render(good), warning(good)) == (0, "", None)


def test_the_first_cause_leads_and_sets_code():
    victim = record(0, 1.0, exception=exception("PeerLostError", consequence=True))
    cause = record(1, 2.0, number=signal.SIGKILL, tail=("last words",))
    stopped = record(2, 3.0, number=signal.SIGTERM, stopped=True)
    bad = outcome(victim, cause, stopped)
    assert exit_code(bad) == 137
    assert render(bad).splitlines() == [
        "the job failed: rank 1 (worker:1, pid 41) was killed by SIGKILL",
        "  the last lines of its stderr:",
        "    last words",
        "  then rank 0 (worker:0, pid 40) exited with code 1 (PeerLostError: text)",
        "  then rank 2 (worker:2, pid 42) was stopped",
    ]


def test_a_failure_shows_where_missing_ranks_were():
    lines = ("1 rank has waited 12 s in a collective operation for rank 1:", "rank 1 (worker:1): waiting", "  File")
    bad = outcome(record(0, 1.0), record(1, 2.0, stopped=True, number=15), stalled=lines)
    assert render(bad).splitlines()[2:] == [f"  {lines[0]}", f"    {lines[1]}", f"    {lines[2]}"]
    assert render(outcome(record(0, 1.0, code=0), stalled=lines)) == ""


def test_a_rank_stopped_while_exiting_is_blamed():
    cause = record(1, 1.0, number=signal.SIGTERM, stopped=True, exception=exception())
    consequence = record(0, 2.0, exception=exception("CollectiveAbortedError", consequence=True))
    bad = outcome(consequence, cause)
    killed = "was killed by SIGTERM before its process had ended"
    assert headline(bad) == f"rank 1 (worker:1, pid 41) failed, and {killed} (ValueError: text)"
    assert exit_code(bad) == 1
    assert render(bad).splitlines() == [
        f"the job failed: {headline(bad)}",
        "  its traceback:",
        "    Traceback (most recent call last):",
        "      in f",
        "    ValueError: text",
        "  then rank 0 (worker:0, pid 40) exited with code 1 (CollectiveAbortedError: text)",
    ]


def test_a_report_of_many_ranks_is_short():
    said = replace(exception(), cause="x" * 400, folded="\n".join(["File a"] * 3 + ["ValueError: text"]))
    lost = replace(exception("PeerLostError", consequence=True), cause="y" * 400)
    cause = record(0, 1.0, exception=said, tail=[f"line {number}" for number in range(20)])
    others = [replace(record(rank, 2.0, number=15, exception=lost), seen=float(rank)) for rank in range(1, 65)]
    lines = render(outcome(cause, *others)).splitlines()
    assert lines[0] == f"the job failed: rank 0 (worker:0, pid 40) exited with code 1 (ValueError: {'x' * 288} ...)"
    assert lines[1:7] == ["  the last lines of its stderr:", *(f"    line {number}" for number in range(15, 20))]
    assert lines[7:12] == ["  its traceback:", *["    File a"] * 3, "    ValueError: text"]
    assert lines[12] == f"  then rank 1 (worker:1, pid 41) was stopped (PeerLostError: {'y' * 85} ...)"
    assert lines[-1] == "  then 56 more ranks ended, too"
    assert len(lines) == 21


def test_only_the_first_causes_line_is_emphasised():
    bad = outcome(replace(record(1, 1.0, number=9), hint="memory"), record(0, 2.0), earlier=("text",))
    assert render(bad, lambda text: f"<{text}>").splitlines() == [
        "the job was started again once:",
        "  1. because text",
        "<the job failed: rank 1 (worker:1, pid 41) was killed by SIGKILL>",
        "  hint: memory",
        "  then rank 0 (worker:0, pid 40) exited with code 1",
    ]
    lost = outcome(agent_failure="the agent was killed")
    assert render(lost, lambda text: f"<{text}>") == "<the agent was killed>"


@pytest.mark.parametrize(
    ("left", "how"),
    [
        (record(1, 1.0, code=0, tail=("no data",)), "exited with code 0 while other ranks needed it"),
        (
            record(1, 3.0, number=signal.SIGTERM, stopped=True, tail=("no data",)),
            "left while other ranks needed it, and was stopped",
        ),
    ],
)
def test_a_needed_rank_that_left_comes_first(left, how):
    lost = replace(exception("PeerLostError", consequence=True), blames=1)
    bad = outcome(record(0, 2.0, exception=lost), left, record(2, 2.1, exception=lost))
    assert exit_code(bad) == 1
    assert headline(bad) == f"rank 1 (worker:1, pid 41) {how}"
    assert render(bad).splitlines() == [
        f"the job failed: {headline(bad)}",
        "  the last lines of its stderr:",
        "    no data",
        "  then rank 0 (worker:0, pid 40) exited with code 1 (PeerLostError: text)",
        "  its traceback:",
        "    Traceback (most recent call last):",
        "      in f",
        "    PeerLostError: text",
        "  then rank 2 (worker:2, pid 42) ended because of that",
    ]


def test_an_absent_rank_precedes_those_that_waited():
    timeout = replace(exception("CollectiveTimeoutError"), blames=1)
    late = record(1, 3.0, number=signal.SIGTERM, stopped=True)
    bad = outcome(record(0, 2.0, exception=timeout), late)
    assert exit_code(bad) == 1
    waited = "did not come to a collective in which other ranks waited, and was stopped"
    assert headline(bad) == f"rank 1 (worker:1, pid 41) {waited}"
    assert render(bad).splitlines()[:2] == [
        f"the job failed: {headline(bad)}",
        "  then rank 0 (worker:0, pid 40) exited with code 1 (CollectiveTimeoutError: text)",
    ]


def test_a_traceback_is_shown_once():
    tail = ("before", "Traceback (most recent call last):", "  in hook", "  in f", "ValueError: text", "after")
    lines = render(outcome(record(0, 1.0, code=3, exception=exception(), tail=tail))).splitlines()
    assert lines == [
        "the job failed: rank 0 (worker:0, pid 40) exited with code 3 (ValueError: text)",
        "  the last lines of its stderr:",
        "    before",
        "    after",
        "  its traceback:",
        "    Traceback (most recent call last):",
        "      in f",
        "    ValueError: text",
    ]


def test_a_traceback_is_not_repeated_after_gaps():
    lines = ("Traceback (most recent call last):", "  in f", "InvalidArgumentError: bad", "\t [[{{node MatMul}}]]")
    said = replace(exception(), traceback="\n".join(lines))
    text = render(outcome(record(0, 1.0, exception=said, tail=("before", *lines[:-1]))))
    assert text.count("InvalidArgumentError: bad") == 1
    assert "    before" in text


def test_a_cut_chain_of_exceptions_appears_once():
    first = ["Traceback (most recent call last):", "  in f", "OSError: none"]
    bridge = "The above exception was the direct cause of the following exception:"
    second = ["Traceback (most recent call last):", "  in g", "ConfigError: text"]
    chain = ExceptionRecord("ConfigError", "text", "\n".join([*first, "", bridge, "", *second]), 1.0, False)
    for cut in (0, 1, 2):
        tail = ("before", *first, bridge, *second)[cut:]
        text = render(outcome(record(0, 1.0, exception=chain, tail=tail)))
        assert text.count("OSError: none") == 1
        assert ("before" in text) == (cut == 0)


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"stopped_by": signal.SIGINT}, 130, "stopped by SIGINT"),
        ({"stopped_by": signal.SIGTERM}, 143, "stopped by SIGTERM"),
        ({"start_failure": StartFailure("1 of 2", True)}, 69, "the ranks could not meet: 1 of 2"),
        ({"start_failure": StartFailure("worker:1 ended", False)}, 1, "the ranks could not meet: worker:1 ended"),
        ({"agent_failure": "the agent was killed"}, 70, "the agent was killed"),
    ],
)
def test_other_ends(fields, code, text):
    one = outcome(record(0, 1.0, exception=exception("RendezvousError", consequence=True)), **fields)
    assert exit_code(one) == code
    assert render(one).startswith(text)


def test_a_rank_that_raised_earlier_is_named():
    """Its process was still ending when the platform, which took it to hang, sent the signal."""
    raised = record(1, 1.0, number=signal.SIGTERM, exception=exception())
    later = record(2, 3.0, number=signal.SIGTERM, stopped=True, exception=exception())
    lost = record(0, 2.0, exception=exception("PeerLostError", consequence=True))
    one = outcome(lost, raised, later, stopped_by=signal.SIGTERM)
    killed = "failed, and was killed by SIGTERM before its process had ended"
    assert render(one).splitlines() == [
        "stopped by SIGTERM",
        f"  before that, rank 1 (worker:1, pid 41) {killed} (ValueError: text)",
    ]


def test_a_job_everyone_left_has_not_succeeded():
    one = outcome(record(0, 1.0, code=0), start_failure=StartFailure("no rank is left", False, met=True))
    assert exit_code(one) == 75
    assert render(one) == headline(one) == "training could not continue: no rank is left"


def test_losing_all_ranks_with_hosts_is_retriable():
    gone = replace(record(0, 1.0), exit_code=None, signal=None, reason=ExitReason.LOST, note="the agent was killed")
    one = outcome(gone, start_failure=StartFailure("no rank is left", False))
    assert exit_code(one) == 75
    assert "rank 0 (worker:0, pid 40) was lost with its host: the agent was killed" in render(one)


def test_changes_without_losses_are_described():
    change = WorldChange(2, 3, (), (TaskKey("worker", 2),), 0.5)
    one = outcome(record(0, 1.0, code=0), changes=(change,))
    assert render(one).splitlines()[0] == "the world has changed once:"
    assert render(one).splitlines()[1].startswith("  generation 2: 3 ranks, with worker:2, after 0.50 s (")
    lost = replace(one, survived=(record(1, 1.0, number=signal.SIGKILL),))
    assert "the world has changed" not in render(lost)


LATE = "the host C (10.0.0.3) has not ended its ranks within 25 s of being asked to"


def test_a_late_host_is_not_the_cause():
    cause = replace(record(3, 1.0, code=3, exception=exception("ImportError")), seen=100.0)
    bad = outcome(cause, agent_failure=LATE, agent_failed_at=126.0, host_lost=True)
    assert (exit_code(bad), headline(bad)) == (3, "rank 3 (worker:3, pid 43) exited with code 3 (ImportError: text)")
    lines = render(bad).splitlines()
    assert lines[0] == "the job failed: rank 3 (worker:3, pid 43) exited with code 3 (ImportError: text)"
    assert lines[-1] == f"  then {LATE}"


def test_without_times_the_rank_is_the_cause():
    bad = outcome(record(3, 1.0, code=3), agent_failure=LATE, host_lost=True)
    assert exit_code(bad) == 3


@pytest.mark.parametrize("seen", [100.1, 115.0])
def test_a_host_silent_since_is_the_cause(seen):
    failed = replace(record(0, 1.0, code=3), seen=seen)
    gone = "the host C (10.0.0.3) has not answered for 15 s"
    bad = outcome(failed, agent_failure=gone, agent_failed_at=100.0, host_lost=True)
    assert (exit_code(bad), headline(bad)) == (75, gone)
    assert render(bad).splitlines()[0] == gone


def test_an_end_after_the_agents_follows_it():
    one = outcome(
        replace(record(0, 2.0), exit_code=None, signal=15, reason=ExitReason.STOPPED),
        agent_failure="the agent has ended",
    )
    assert render(one).splitlines() == [
        "the agent has ended",
        "  then rank 0 (worker:0, pid 40) was killed by SIGTERM",
    ]


def test_losing_a_peer_never_precedes_the_host():
    victim = replace(record(0, 1.0, exception=exception("PeerLostError", consequence=True)), seen=1.0)
    bad = outcome(victim, agent_failure="gone", agent_failed_at=100.0, host_lost=True)
    assert exit_code(bad) == 75


def test_an_early_failure_outweighs_a_missing_init():
    one = outcome(record(0, 1.0, code=5), initialised=False)
    assert exit_code(one) == 5
    assert warning(one) == "note: no rank had called tfcollective.init() by then"


def test_a_job_that_never_called_init_warns():
    one = outcome(record(0, 1.0, code=0), initialised=False)
    assert exit_code(one) == 0
    assert warning(one).startswith("warning: no rank called tfcollective.init()")
    assert "\n" not in warning(one)
    assert warning(outcome(initialised=False, stopped_by=2)) is None


def test_auxiliary_tasks_have_the_last_word():
    gone = ExitRecord("evaluator:0", -1, "n", 7, 1, None, 2.0, stderr_tail=("why",))
    board = ExitRecord("tensorboard:0", -1, "n", 8, 0, None, 2.0)
    ends = (
        AuxiliaryTaskEnd("evaluator:0", gone, {"figures": {"last_training_step": 5, "nb_eval_steps": 2}}),
        AuxiliaryTaskEnd("tensorboard:0", board, {"url": "http://h:6006/"}),
    )
    one = outcome(record(0, 1.0, code=0), auxiliary_tasks=ends)
    assert exit_code(one) == 0
    assert render(one).splitlines() == [
        "warning: evaluator:0 (pid 7) exited with code 1; training did not need it",
        "  the last lines of its stderr:",
        "    why",
        "evaluator:0: last training step 5, 2 evaluation steps",
        "tensorboard:0: http://h:6006/",
    ]
    assert (
        render(outcome(auxiliary_tasks=(AuxiliaryTaskEnd("evaluator:0", None, started=False),)))
        == "evaluator:0: was not started"
    )
    lost = AuxiliaryTaskEnd("evaluator:0", None, lost="its container was ended")
    assert render(outcome(auxiliary_tasks=(lost,))) == (
        "warning: evaluator:0: its container was ended; training did not need it"
    )


def test_a_stopped_auxiliary_task_is_named():
    stopped = AuxiliaryTaskEnd("evaluator:0", ExitRecord("evaluator:0", -1, "n", 7, None, 15, 2.0, ExitReason.STOPPED))
    alone = outcome(record(0, 1.0, code=0), auxiliary_tasks=(stopped,))
    assert render(alone) == "warning: evaluator:0 (pid 7) was killed by SIGTERM; training did not need it"
    assert "evaluator" not in render(outcome(record(0, 1.0, code=1), auxiliary_tasks=(stopped,)))


def test_the_figures_of_an_evaluator_in_words():
    figures = {"last_training_step": 5, "nb_eval_steps": 2, "eval_step_mean_duration": 0.0125, "awake_time_ratio": 0.25}
    assert describe_info({"figures": figures, "metrics": {"loss": 0.5}}) == (
        "last training step 5, 2 evaluation steps, 12.5 ms a step, awake 25% of its time, loss 0.5"
    )
    assert describe_info({"completed": 3}) == ""
    rate = {"step": 1200, "steps": 4000, "steps_per_second": 12.345}
    assert describe_info(rate) == "step 1200 of 4000, 12.3 steps a second"
    assert describe_info({**rate, "epoch": 3, "epochs": 10, "loss": 0.123456}) == (
        "epoch 3 of 10, step 1200 of 4000, 12.3 steps a second, loss 0.1235"
    )
