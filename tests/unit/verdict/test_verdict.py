"""The verdict on a job: a table of every kind of end in every position, and what holds for all of them."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcollective._base.failures import ErrorKind, ExceptionRecord, ExitReason, ExitRecord
from tfcollective._base.verdict import (
    Decision,
    Obstacle,
    Rules,
    Standing,
    first_cause,
    in_order_of_arrival,
    verdict,
)

CONTINUE, COMPLETE, RESTART, FAIL = Decision.CONTINUE, Decision.COMPLETE, Decision.RESTART, Decision.FAIL
OWN = ExceptionRecord("ValueError", "text", "", 1.0)
LOST_PEER = ExceptionRecord("PeerLostError", "text", "", 1.0, ErrorKind.PEER)
INTERRUPT = ExceptionRecord("KeyboardInterrupt", "", "", 1.0, ErrorKind.INTERRUPT)


def end(rank, code=None, signal=None, **more):
    return ExitRecord(f"worker:{rank}", rank, "node", 10 + rank, code, signal, **{"time": 1.0, **more})


WELL = end(0, 0)
ENDS = {
    "well": end(1, 0),
    "exit code": end(1, 3),
    "signal": end(1, None, 9),
    "error": end(1, 1, exception=OWN),
    "error, then signal": end(1, None, 9, exception=OWN),
    "error, then stopped": end(1, None, 15, exception=OWN, reason=ExitReason.STOPPED),
    "lost peer": end(1, 1, exception=LOST_PEER),
    "lost peer, without a record": end(1, 1, reason=ExitReason.PEER),
    "interrupt": end(1, None, 2, exception=INTERRUPT),
    "stopped": end(1, None, 15, reason=ExitReason.STOPPED),
    "stopped, with an exit code": end(1, 143, reason=ExitReason.STOPPED),
    "lost": end(1, reason=ExitReason.LOST),
    "not started": end(1, reason=ExitReason.NOT_STARTED),
    "dismissed": end(1, None, 9, reason=ExitReason.DISMISSED),
    "dismissed, with an error": end(1, 1, exception=OWN, reason=ExitReason.DISMISSED),
    "error, leaving": end(1, 1, exception=OWN, leaving=True),
    "signal, leaving": end(1, None, 9, leaving=True),
}
ERRORS = {"error", "error, then signal", "error, then stopped"}
UNNEEDED = {"not started", "dismissed", "dismissed, with an error"}
JOBS = {
    "fixed": Rules(),
    "elastic": Rules(elastic=True),
    "elastic, on error replace": Rules(elastic=True, outlasts_errors=True),
}
BOTH = ("worker:0", "worker:1")
PLACES = {
    "member": Standing(members=BOTH),
    "of an earlier world": Standing(members=BOTH[:1]),
    "left gracefully": Standing(members=BOTH[:1], leavers=BOTH[1:]),
}


def expected(kind, job, place):
    """At the end of a job of two ranks, of which rank 0 ended well."""
    if kind == "well":
        return COMPLETE
    if job == "fixed":
        return FAIL
    if kind in ERRORS and job == "elastic":
        return FAIL
    counts = place == "member" and kind not in UNNEEDED
    return FAIL if counts else COMPLETE


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kind", ENDS)
def test_what_becomes_of_an_ended_job(kind, job, place):
    judged = verdict([WELL, ENDS[kind]], replace(PLACES[place], ended=True), JOBS[job])
    assert judged.decision is expected(kind, job, place)
    failed = {one.task for one in judged.ends if one.failed}
    assert failed == (set() if judged.decision is COMPLETE else {"worker:1"})
    assert (judged.cause is None) == (judged.decision is COMPLETE)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kind", ENDS)
def test_what_becomes_of_a_job_that_runs(kind, job):
    fails = kind != "well" and (job == "fixed" or (job == "elastic" and kind in ERRORS))
    judged = verdict([ENDS[kind]], Standing(members=BOTH), JOBS[job])
    assert judged.decision is (FAIL if fails else CONTINUE)
    assert JOBS[job].outlasts(ENDS[kind]) is not fails  # agents and the coordinator look at one end alone


@pytest.mark.parametrize(
    ("first", "met", "job", "decision"),
    [
        (["exit code", "exit code"], False, "elastic", FAIL),
        (["lost peer", "exit code"], False, "elastic", FAIL),
        (["error", "error"], False, "elastic, on error replace", FAIL),
        (["exit code", None], False, "elastic", CONTINUE),  # one runs
        (["exit code", "well"], False, "elastic", CONTINUE),
        (["exit code", "signal"], False, "elastic", CONTINUE),
        (["exit code", "stopped, with an exit code"], False, "elastic", CONTINUE),
        (["exit code", "lost"], False, "elastic", CONTINUE),
        (["exit code", "error, leaving"], False, "elastic", CONTINUE),
        (["exit code", "exit code"], True, "elastic", CONTINUE),  # one that took their place waits for others
        ([None, None], False, "elastic", CONTINUE),
    ],
)
def test_a_program_fails_with_all_first_ranks(first, met, job, decision):
    records = [replace(ENDS[kind], task=f"worker:{rank}", rank=rank) for rank, kind in enumerate(first) if kind]
    assert verdict(records, Standing(first=BOTH, met=met), JOBS[job]).decision is decision


def test_before_anything_is_known_nothing_has_failed():
    assert verdict([], Standing(met=False), Rules(elastic=True)).decision is CONTINUE


# ---- what an elastic job has outlasted -------------------------------------------------------------------------------


def left(*records, members=BOTH[:1], broken=False, job="elastic"):
    return verdict(records, Standing(members=members, broken=broken, ended=True), JOBS[job]).survived


KILLED, ERROR = ENDS["signal"], replace(ENDS["error"], task="worker:2", rank=2)


def test_losses_before_a_program_error_are_survived():
    stopped = replace(ENDS["stopped"], task="worker:3", rank=3)
    assert left(KILLED, ERROR, stopped, broken=True) == (KILLED,)


def test_a_job_may_survive_program_errors():
    assert left(WELL, KILLED, ERROR, job="elastic, on error replace") == (KILLED, ERROR)


def test_a_loss_may_explain_a_later_failure():
    assert left(KILLED, replace(KILLED, task="worker:0", rank=0), broken=True) == ()


def test_a_loss_may_explain_an_unreported_end():
    assert left(KILLED) == ()


def test_a_lost_member_may_explain_an_error():
    assert left(KILLED, ERROR, members=BOTH, broken=True) == ()


# ---- whether it is started again -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "met", "obstacle"),
    [
        (end(0, None, 9), True, None),
        (end(0, None, 9), False, None),
        (end(0, 3), True, None),
        (end(0, 3), False, Obstacle.NEVER_BEGAN),
        (end(0, 127), True, Obstacle.USAGE),
        (end(0, 1, exception=OWN), False, None),
        (end(0, 1, exception=replace(OWN, kind=ErrorKind.PERMANENT)), True, Obstacle.PERMANENT),
    ],
)
def test_a_failed_job_restarts_unless_failures_recur(record, met, obstacle):
    standing = Standing(met=met, ended=True)
    judged = verdict([record], standing, Rules(restarts=1))
    assert (judged.obstacle, judged.decision) == (obstacle, FAIL if obstacle else RESTART)
    assert verdict([record], standing, Rules()).decision is FAIL
    assert verdict([record], replace(standing, ended=False), Rules(restarts=1)).decision is FAIL  # not yet


def test_a_node_lost_before_is_the_cause():
    failed = replace(end(0, 1, exception=replace(OWN, kind=ErrorKind.PERMANENT)), seen=9.0)
    before = verdict([failed], Standing(ended=True, node_lived_until=8.0), Rules(restarts=1))
    assert (before.cause, before.first, before.decision) == (None, failed, RESTART)
    after = verdict([failed], Standing(ended=True, node_lived_until=34.0), Rules(restarts=1))
    assert (after.cause, after.decision) == (failed, FAIL)
    assert verdict([WELL], Standing(ended=True, node_lived_until=8.0), Rules()).decision is FAIL


# ---- for all jobs ----------------------------------------------------------------------------------------------------

EXCEPTIONS = st.none() | st.builds(
    ExceptionRecord,
    type=st.just("SomeError"),
    message=st.just(""),
    traceback=st.just(""),
    time=st.integers(0, 3).map(float),
    kind=st.sampled_from(ErrorKind),
    blames=st.none() | st.integers(0, 4),
)


@st.composite
def any_records(draw):
    """Of tasks each of which has ended once; two of an elastic job may have had the same rank."""
    records = []
    for index in range(draw(st.integers(0, 5))):
        signal = draw(st.none() | st.sampled_from([2, 9, 15]))
        one = ExitRecord(
            f"worker:{index}",
            draw(st.integers(0, 4)),
            draw(st.sampled_from("ab")),
            index,
            None if signal else draw(st.none() | st.sampled_from([0, 1, 2])),
            signal,
            draw(st.integers(0, 3).map(float)),
            draw(st.sampled_from(ExitReason)),
            exception=draw(EXCEPTIONS),
            seen=draw(st.integers(0, 3).map(float)),
            leaving=draw(st.booleans()),
        )
        records.append(one)
    return records


TASKS = st.lists(st.integers(0, 5).map("worker:{}".format), unique=True)
STANDINGS = st.builds(
    Standing,
    first=TASKS,
    members=TASKS,
    leavers=TASKS,
    met=st.booleans(),
    broken=st.booleans(),
    ended=st.booleans(),
    node_lived_until=st.none() | st.integers(0, 3).map(float),
)
RULES = st.builds(Rules, st.booleans(), st.booleans(), st.integers(0, 2))


@given(any_records(), STANDINGS, RULES)
def test_each_set_of_ends_has_one_verdict(records, standing, rules):
    judged = verdict(records, standing, rules)
    allowed = {COMPLETE, RESTART, FAIL} if standing.ended else {CONTINUE, FAIL}
    assert judged.decision in allowed
    assert not set(judged.ends) & set(judged.survived)
    assert set(judged.ends) | set(judged.survived) <= set(records)
    assert all(one.failed for one in judged.survived)
    failed = any(one.failed for one in judged.ends)
    if judged.decision in (FAIL, RESTART):
        assert failed or standing.broken or standing.node_lived_until is not None
    else:
        assert not failed
        assert judged.cause is None
    if judged.decision is RESTART:
        assert rules.restarts > 0
        assert judged.obstacle is None
    assert judged.missing is None or not judged.missing.raised


@given(any_records(), STANDINGS, RULES)
def test_a_verdict_ignores_the_order_of_records(records, standing, rules):
    judged = verdict(records, standing, rules)
    for other in itertools.islice(itertools.permutations(records), 24):
        again = verdict(other, standing, rules)
        assert (again.decision, again.cause, again.missing) == (judged.decision, judged.cause, judged.missing)
        assert (set(again.ends), set(again.survived)) == (set(judged.ends), set(judged.survived))


def test_the_newer_of_two_tasks_is_blamed():
    older, newer = replace(blaming(1, 1.0, 3), seen=1.0), replace(end(1, None, 9), task="worker:4", seen=2.0)
    for records in itertools.permutations([older, newer, blaming(0, 1.0, 1, seen=3.0), end(3, None, 11)]):
        assert first_cause(records) is newer


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_a_blamed_failure_is_the_first_cause(seen, times):
    cause = end(2, None, 9)
    ends = [blaming(0, 1.0, 1), blaming(1, 1.0, 2), cause, end(3, None, 15, reason=ExitReason.STOPPED)]
    arrived = [
        replace(one, node=f"host {one.rank}", seen=float(at), time=float(time))
        for one, at, time in zip(ends, seen, times, strict=True)
    ]
    assert first_cause(arrived) is arrived[2]


# ---- the first cause -------------------------------------------------------------------------------------------------


def record(rank, time, *, code=1, signal=None, stopped=False, consequence=None):
    exception = (
        None
        if consequence is None
        else ExceptionRecord("SomeError", "text", "", time, ErrorKind.PEER if consequence else ErrorKind.OWN)
    )
    reason = ExitReason.STOPPED if stopped else ExitReason.ENDED
    return end(rank, None if signal else code, signal, time=time, reason=reason, exception=exception)


def missing(records):
    return verdict(records, Standing(ended=True), Rules()).missing


def test_the_first_cause_is_no_consequence():
    victim, cause, later = record(0, 1.0, consequence=True), record(1, 2.0, signal=9), record(2, 3.0, consequence=False)
    stopped = record(3, 0.5, signal=15, stopped=True)
    assert first_cause([later, victim, cause, stopped]) is cause
    assert first_cause([record(4, 9.0, code=0), victim, stopped]) is victim
    assert first_cause([record(4, 9.0, code=0), stopped]) is stopped  # nothing better is known
    assert first_cause([record(4, 9.0, code=0)]) is None
    assert first_cause([]) is None


def blaming(rank, time, blames, *, node="node", seen=0.0):
    """The end of a rank whose error names another."""
    exception = ExceptionRecord("PeerLostError", "text", "", time, ErrorKind.PEER, blames=blames)
    return replace(record(rank, time), exception=exception, node=node, seen=seen)


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_clocks_of_different_hosts_decide_nothing(skew):
    first = replace(record(1, 100.0, signal=9), node="a", seen=7.0)
    later = replace(record(2, 100.5 + skew, code=3), node="b", seen=7.5)
    assert first_cause([later, first]) is first


def test_on_one_host_its_clock_decides():
    """The reports of one agent may come in another order than the failures: output is waited for."""
    first = replace(record(1, 100.0, code=3), seen=8.0)
    later = replace(record(2, 100.5, signal=11), seen=7.0)
    assert first_cause([later, first]) is first


def test_a_blamed_rank_precedes_an_unblamed_one():
    blamed = replace(record(3, 50.0, code=3), node="b", seen=9.0)
    by_the_way = replace(record(5, 40.0, signal=11), node="c", seen=8.0)
    assert first_cause([by_the_way, blaming(0, 1.0, 3, seen=7.0), blamed]) is blamed


def test_blame_leads_over_several_ranks_to_the_first():
    lost = ExceptionRecord("RendezvousError", "text", "", 3.0, ErrorKind.PEER)
    chain = [blaming(0, 1.0, 1), blaming(1, 2.0, 2), replace(record(2, 3.0), exception=lost), blaming(4, 0.5, 0)]
    assert first_cause(chain) is chain[2]
    circle = [blaming(0, 2.0, 1), blaming(1, 1.0, 0)]
    assert first_cause(circle) is circle[1]
    assert first_cause([blaming(0, 1.0, 0)]).rank == 0


def test_a_rank_awaited_in_vain_is_late():
    timeout = ExceptionRecord("CollectiveTimeoutError", "text", "", 1.0, blames=2)
    waited = replace(record(0, 1.0), exception=timeout)
    stopped = record(2, 3.0, signal=15, stopped=True)
    assert missing([waited, stopped]) is stopped
    assert first_cause([waited, stopped]) is waited  # whose exit code is the job's
    own = ExceptionRecord("ValueError", "text", "", 2.0)
    assert missing([waited, replace(stopped, exception=own)]) is None  # it says itself what was wrong
    assert missing([blaming(0, 1.0, 2), stopped]) is stopped
    assert missing([]) is None


def test_a_blamed_rank_without_failure_left_early():
    well, stopped = record(2, 0.5, code=0), record(2, 3.0, signal=15, stopped=True)
    for left in (well, stopped):
        ends = [record(3, 0.1, code=0), blaming(0, 1.0, 1), blaming(1, 2.0, 2), left]
        assert missing(ends) is left
        assert first_cause(ends) is ends[1]  # whose exit code is the job's
    assert missing([blaming(0, 1.0, 2), record(2, 2.0, code=3)]) is None  # it failed
    assert missing([record(1, 1.0), blaming(0, 2.0, 2), well]) is None  # another one failed
    assert missing([well]) is None


def test_failures_are_listed_in_order_of_arrival():
    heard = [replace(record(rank, 9.0 - rank), seen=float(rank + 1)) for rank in range(3)]
    assert in_order_of_arrival([heard[2], heard[0], record(4, 0.1, code=0), heard[1]]) == heard


def test_a_rank_reporting_another_is_no_cause():
    cause, other = record(1, 2.0), replace(record(0, 1.0), reason=ExitReason.PEER)
    assert first_cause([other, cause]) is cause
    assert first_cause([other]) is other
