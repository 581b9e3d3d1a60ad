"""The rounds: every rule by example, then invariants over all orders of events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._control.messages import JoinRequest
from tfcollective._control.state.rounds import Absence, Bounds, Failed, Failure, Rounds

TIMEOUT, SHORTAGE, CUT_OFF = 60.0, 30.0, 2.0


def task(index):
    return TaskKey("worker", index)


def request(index, round_=0):
    return JoinRequest(task(index), 0, f"node-{index % 2}", 100 + index, f"address-{index}-{round_}")


def rounds(size=3, smallest=1, largest=4, shortage=SHORTAGE):
    return Rounds(workers(size), Bounds(smallest, size, largest, shortage), TIMEOUT, cut_off=CUT_OFF)


def begun(size=3, **changes):
    made = rounds(size, **changes)
    for index in range(size):
        made.join(request(index), 0.0)
    return made


def order(made):
    return [member.task.index for member in made.world.members]


def test_the_first_world_waits_for_all():
    made = rounds(3)
    for index in (2, 0):
        made.join(request(index), 0.0)
        assert made.world is None
    assert made.missing == (task(1),)
    made.join(request(1), 5.0)
    assert order(made) == [0, 1, 2]
    assert (made.world.generation, made.deadline, made.pending) == (1, None, 0)


def test_survivors_continue_in_their_order():
    made = begun()
    made.ended(task(0), 10.0)
    assert made.pending == 2
    made.join(request(2, 1), 10.1)
    assert made.world.generation == 1
    made.join(request(1, 1), 10.2)
    assert (made.world.generation, order(made)) == (2, [1, 2])
    assert [member.rank for member in made.world.members] == [0, 1]


def test_a_new_task_follows_behind_the_survivors():
    made = begun()
    made.admit(task(3))
    assert made.pending == 0  # nothing waits for it while it starts
    made.join(request(3), 20.0)
    assert (made.pending, made.deadline) == (2, None)
    for index in (2, 1, 0):
        made.join(request(index, 1), 21.0)
    assert order(made) == [0, 1, 2, 3]


def test_survivors_do_not_await_a_starting_replacement():
    made = begun()
    made.ended(task(1), 10.0)
    made.admit(task(3))
    made.join(request(0, 1), 10.0)
    made.join(request(2, 1), 10.0)
    assert order(made) == [0, 2]
    made.join(request(3), 15.0)
    assert made.pending == 3


def test_surplus_tasks_wait_and_change_nothing():
    made = begun(largest=3)
    made.admit(task(3))
    made.join(request(3), 1.0)
    assert made.pending == 0
    made.ended(task(1), 2.0)
    assert made.pending == 2
    for index in (0, 2):
        made.join(request(index, 1), 3.0)
    assert order(made) == [0, 2, 3]


def test_a_member_that_leaves_is_not_waited_for():
    made = begun()
    made.leaves(task(0), 5.0)
    assert (made.pending, made.absence(task(0))) == (2, Absence.LEAVING)
    made.join(request(1, 1), 6.0)
    made.join(request(2, 1), 6.0)
    assert order(made) == [1, 2]


def test_a_member_may_leave_while_it_waits():
    made = begun()
    made.join(request(0, 1), 5.0)
    made.leaves(task(0), 5.0)
    assert not made.is_waiting(task(0))
    made.join(request(1, 1), 6.0)
    made.join(request(2, 1), 6.0)
    assert order(made) == [1, 2]


def test_a_silent_member_is_finally_given_up():
    made = begun()
    made.ended(task(0), 10.0)
    made.join(request(1, 1), 10.0)
    assert made.deadline == 10.0 + TIMEOUT
    assert made.expire(69.9) == ()
    assert made.world.generation == 1
    assert made.expire(70.0) == (task(2),)
    assert (order(made), made.absence(task(2))) == ([1], Absence.LATE)


def test_slow_operations_extend_the_wait_for_members():
    made = Rounds(workers(2), Bounds(1, 2, 2, SHORTAGE, slow=300.0), TIMEOUT)
    made.join(request(0), 0.0)
    assert made.deadline == TIMEOUT  # of the first world
    made.join(request(1), 0.0)
    made.join(request(0, 1), 10.0)
    assert made.deadline == 310.0
    assert made.expire(309.0) == ()
    assert made.expire(310.0) == (task(1),)


def test_a_suspect_is_given_up_soon():
    made = begun()
    made.suspect(task(1), 10.0)
    made.suspect(task(2), 10.0)
    made.join(request(0, 1), 10.0)
    made.join(request(2, 1), 11.0)
    assert made.deadline == 12.0
    assert made.expire(11.9) == ()
    assert made.expire(12.0) == (task(1),)
    assert (order(made), made.absence(task(1))) == ([0, 2], Absence.CUT_OFF)
    made.suspect(task(1), 13.0)  # by a report that was under way
    assert made.deadline is None


def test_suspicion_ends_with_the_member_that_reported():
    made = begun()
    made.suspect(task(1), 10.0)
    made.join(request(0, 1), 10.0)
    made.ended(task(0), 11.0)
    assert made.deadline is None  # rank 1 may compute: it is not given up while nothing waits for it
    made.join(request(2, 1), 20.0)
    made.join(request(1, 1), 40.0)
    assert order(made) == [1, 2]


def test_too_few_wait_then_give_up():
    made = begun(smallest=2)
    made.ended(task(0), 10.0)
    made.ended(task(1), 10.0)
    made.join(request(2, 1), 11.0)
    assert (made.world.generation, made.deadline) == (1, 41.0)
    made.admit(task(3))
    made.join(request(3), 40.0)
    assert order(made) == [2, 3]

    made.ended(task(2), 50.0)
    made.join(request(3, 1), 50.0)
    made.expire(79.9)
    assert made.failed is None
    made.expire(80.0)
    assert made.failed == Failed(Failure.ENDED)


def test_without_a_survivor_no_rank_has_the_state():
    made = begun(2)
    made.admit(task(2))
    made.join(request(2), 1.0)
    made.ended(task(0), 2.0)
    assert made.failed is None
    made.ended(task(1), 2.0)
    assert made.failed == Failed(Failure.NO_SURVIVOR)


@pytest.mark.parametrize("go", [Rounds.ended, Rounds.leaves])
def test_without_members_none_is_waited_for(go):
    made = begun(2, smallest=2)
    made.admit(task(2))
    go(made, task(0), 1.0)
    assert made.failed is None
    go(made, task(1), 1.0)
    assert made.failed == Failed(Failure.NO_SURVIVOR)
    assert made.deadline is None


def test_the_first_world_may_be_smaller():
    made = rounds(3, smallest=2)
    made.join(request(0), 0.0)
    made.join(request(2), 1.0)
    made.expire(59.9)
    assert made.world is None
    assert made.expire(60.0) == ()
    assert order(made) == [0, 2]
    made.join(request(1), 70.0)  # late, not lost
    assert made.pending == 2


def test_a_failed_first_world_names_the_missing():
    made = rounds(3, smallest=2)
    made.join(request(0), 0.0)
    made.expire(60.0)
    assert made.failed == Failed(Failure.LATE, (task(1), task(2)))


@pytest.mark.parametrize("first_to_go", [Rounds.leaves, Rounds.ask_to_leave])
def test_all_leaving_early_have_trained_nothing(first_to_go):
    made = rounds(2)
    first_to_go(made, task(0), 1.0)  # the second one ends before its program has come to init()
    made.ask_to_leave(task(1), 1.0)
    for index in range(2):
        made.ended(task(index), 2.0, well=True)
    assert made.failed is None  # others may be started on other hosts
    made.close_admission(3.0)
    assert made.failed == Failed(Failure.LEFT)


def test_a_program_without_a_world_may_succeed():
    made = rounds(2)
    made.close_admission(1.0)
    for index in range(2):
        made.ended(task(index), 2.0, well=True)
    assert made.failed is None


def test_a_task_lost_early_may_be_replaced():
    made = rounds(2, smallest=2, largest=2)
    made.join(request(0), 0.0)
    made.ended(task(1), 1.0)
    assert made.failed is None
    made.admit(task(2))
    made.join(request(2), 5.0)
    assert order(made) == [0, 2]


def test_one_end_fails_a_fixed_jobs_round():
    made = Rounds(workers(3), Bounds.fixed(3), TIMEOUT)
    made.join(request(0), 0.0)
    made.ended(task(1), 1.0)
    assert made.failed == Failed(Failure.ENDED, (task(2),))


def test_a_fixed_job_waits_for_its_members():
    made = Rounds(workers(2), Bounds.fixed(2), TIMEOUT)
    for round_ in range(3):
        made.suspect(task(1), 0.0)
        made.join(request(0, round_), 0.0)
        made.expire(59.0)
        made.join(request(1, round_), 59.0)
        assert made.world.generation == round_ + 1
    made.join(request(0, 3), 100.0)
    made.expire(160.0)
    assert made.failed == Failed(Failure.LATE, (task(1),))


def test_a_member_that_completed_is_not_awaited():
    made = begun(smallest=2)
    made.done(task(2), 10.0)
    made.ended(task(0), 11.0)
    made.join(request(1, 1), 11.0)  # rank 1 goes on, once there are enough
    assert (made.world.generation, made.deadline) == (1, 41.0)
    made.admit(task(3))
    made.join(request(3), 20.0)
    assert order(made) == [1, 3]


def test_completing_the_training_ends_waits_for_members():
    made = begun()
    made.ended(task(0), 10.0)
    made.join(request(1, 1), 11.0)
    made.done(task(2), 12.0)
    assert order(made) == [1]


def test_nobody_continues_once_rank_0_has_completed():
    made = begun()
    made.done(task(0), 10.0)
    made.ended(task(1), 10.5)
    assert made.trained
    assert made.pending == 0
    made.join(request(2, 1), 11.0)
    assert made.absence(task(2)) is Absence.OVERTAKEN
    assert (made.world.generation, made.deadline, made.failed) == (1, None, None)
    made.ended(task(2), 12.0, well=True)
    assert made.absence(task(2)) is Absence.OVERTAKEN
    made.ended(task(0), 13.0, well=True)
    assert made.failed == Failed(Failure.OVER)


def test_rank_0_completing_releases_those_that_wait():
    made = begun()
    made.ended(task(1), 10.0)
    made.join(request(2, 1), 11.0)
    made.done(task(0), 12.0)
    assert made.absence(task(2)) is Absence.OVERTAKEN
    assert made.deadline is None


def test_others_continue_if_rank_0_fails_afterwards():
    made = begun()
    made.done(task(0), 10.0)
    made.ended(task(0), 11.0)
    made.join(request(2, 1), 12.0)
    made.join(request(1, 1), 12.0)
    assert order(made) == [1, 2]


def test_a_member_training_again_is_awaited_again():
    made = begun()
    for index in range(3):
        made.done(task(index), 10.0)
    for index in (1, 2):
        made.again(task(index))
    made.ended(task(2), 11.0)
    made.again(task(0))
    made.join(request(1, 1), 12.0)
    assert made.world.generation == 1
    made.join(request(0, 1), 13.0)
    assert order(made) == [0, 1]


def test_training_again_does_not_await_rank_0():
    made = begun()
    for index in range(3):
        made.done(task(index), 10.0)
    made.again(task(1))
    made.join(request(1, 1), 12.0)
    assert order(made) == [1]
    made.join(request(0, 1), 13.0)
    assert made.pending == 3


def test_newcomers_wait_while_members_have_completed():
    made = begun(smallest=2, largest=4)
    made.admit(task(3))
    made.join(request(3), 1.0)
    for index in range(3):
        made.done(task(index), 2.0)
    assert (made.pending, made.deadline, made.failed) == (0, None, None)
    for index in range(3):
        made.again(task(index))
    assert made.pending == 2
    for index in range(3):
        made.done(task(index), 3.0)
    for index in (1, 2):
        made.ended(task(index), 4.0, well=True)
    made.ended(task(0), 5.0)
    assert made.failed == Failed(Failure.NO_SURVIVOR)


def listening(size=3):
    """Begun, and expire is called once a second."""
    made = Rounds(workers(size), Bounds(1, size, size, SHORTAGE), TIMEOUT, cut_off=CUT_OFF, longest_gap=1.5)
    for index in range(size):
        made.join(request(index), 1000.0)
    return made


def test_a_pause_of_the_process_is_discounted():
    made = listening()
    made.suspect(task(1), 2000.0)
    made.join(request(0, 1), 2000.0)
    made.join(request(2, 1), 2000.5)
    assert made.deadline == 2002.0
    assert made.expire(2001.0) == ()
    assert made.expire(2100.0) == ()  # stopped meanwhile
    assert made.deadline == 2101.0
    made.join(request(1, 1), 2100.0)  # was said long ago
    assert order(made) == [0, 1, 2]


def test_waits_end_though_this_process_was_stopped_meanwhile():
    made = listening()
    made.suspect(task(1), 2000.0)
    made.join(request(0, 1), 2000.0)
    made.join(request(2, 1), 2100.0)
    assert made.expire(2101.0) == ()
    assert made.expire(2102.0) == (task(1),)
    assert order(made) == [0, 2]


def test_the_change_beyond_the_limit_ends_the_job():
    made = Rounds(workers(2), Bounds(1, 2, 4, SHORTAGE, changes=1), TIMEOUT, first_generation=5)
    for index in range(2):
        made.join(request(index), 0.0)
    made.admit(task(2))
    made.join(request(2), 1.0)
    for index in range(2):
        made.join(request(index, 1), 2.0)
    assert (made.world.generation, made.failed) == (6, None)
    made.ended(task(2), 3.0)
    assert made.failed is None
    for index in range(2):
        made.join(request(index, 2), 3.0)
    assert (made.world.generation, made.failed.why) == (6, Failure.LIMIT)


def test_ranks_of_one_change_form_one_world():
    made = Rounds(workers(1), Bounds(1, 1, 4, SHORTAGE, changes=1), TIMEOUT)
    made.join(request(0), 0.0)
    for index in (1, 2):
        made.admit(task(index), change=1)
    made.join(request(1), 1.0)
    made.join(request(0, 1), 2.0)  # it had lost something
    assert order(made) == [0, 1]
    made.join(request(2), 9.0)
    for index in (0, 1):
        made.join(request(index, 2), 9.0)
    assert (order(made), made.failed) == ([0, 1, 2], None)
    made.ended(task(2), 10.0)
    for index in (0, 1):
        made.join(request(index, 3), 10.0)
    assert made.failed == Failed(Failure.LIMIT)


def test_newcomers_wait_briefly_for_their_companions():
    made = begun(1)
    for index in (1, 2):
        made.admit(task(index), change=1)
    made.join(request(1), 10.0)
    assert (made.pending, made.deadline) == (0, 10.0 + TIMING.bundle)
    made.join(request(2), 11.0)
    assert (made.pending, made.deadline) == (2, None)

    made = begun(1)
    for index in (1, 2):
        made.admit(task(index), change=1)
    made.join(request(1), 10.0)
    made.expire(made.deadline)
    assert (made.pending, made.deadline) == (2, None)


def test_too_few_fail_when_nothing_more_starts():
    made = begun(3, smallest=3)
    made.ended(task(1), 10.0)
    made.join(request(0, 1), 10.0)
    assert made.failed is None
    made.close_admission(11.0)
    assert made.failed.why is Failure.ENDED


def test_too_few_wait_for_an_admitted_task():
    made = begun(3, smallest=3)
    made.ended(task(1), 10.0)
    made.admit(task(3))
    made.close_admission(10.5)
    made.join(request(0, 1), 11.0)
    assert made.failed is None
    made.ended(task(3), 12.0)
    assert made.failed.why is Failure.ENDED


@pytest.mark.parametrize("numbers", [(0, 1, 1), (2, 1, 3), (1, 3, 2)])
def test_bounds_stand_in_their_order(numbers):
    with pytest.raises(ValueError, match="smallest <= first <= largest"):
        Bounds(*numbers)


class AllOrders(RuleBasedStateMachine):
    """Tasks that start, join, come again, leave, end and are cut off in any order, and time that passes."""

    def __init__(self):
        super().__init__()
        self.bounds = Bounds(2, 3, 4, SHORTAGE)
        self.rounds = Rounds(workers(3), self.bounds, TIMEOUT, cut_off=CUT_OFF, longest_gap=TIMEOUT)
        self.now = 0.0
        self.known = [task(index) for index in range(3)]
        self.gone: set[TaskKey] = set()
        self.dismissed: set[TaskKey] = set()
        self.done: set[TaskKey] = set()
        self.asked: set[TaskKey] = set()
        self.ending: set[TaskKey] = set()
        self.worlds = []

    def _living(self):
        return [one for one in self.known if one not in self.gone]

    def _note(self):
        world = self.rounds.world
        if world is None or (self.worlds and self.worlds[-1] is world):
            return
        tasks = [member.task for member in world.members]
        assert self.bounds.smallest <= len(tasks) <= self.bounds.largest
        assert not set(tasks) & (self.gone | self.dismissed)
        if self.worlds:
            before = [member.task for member in self.worlds[-1].members]
            assert world.generation == self.worlds[-1].generation + 1
            survivors = [one for one in before if one in tasks]
            assert survivors
            assert tasks[: len(survivors)] == survivors
            # A member of the last world that is not here has gone, or goes, or trains no more.
            assert all(
                one in tasks or one in self.done | self.ending or self.rounds.absence(one) is not None for one in before
            )
        self.worlds.append(world)
        self.done.clear()

    @rule(data=st.data())
    @precondition(lambda self: self._living())
    def join(self, data):
        one = data.draw(st.sampled_from(self._living()))
        if one in self.asked:
            self.dismissed.add(one)
            self.rounds.leaves(one, self.now)
        elif self.rounds.absence(one) is None:
            if one not in self.done or data.draw(st.booleans()):
                self.rounds.again(one)
                self.done.discard(one)
            self.rounds.join(request(one.index, len(self.worlds)), self.now)
            self.done.discard(one)
        self._note()

    @rule(data=st.data())
    @precondition(lambda self: self.worlds)
    def complete(self, data):
        one = data.draw(st.sampled_from([member.task for member in self.worlds[-1].members]))
        if self.rounds.is_waiting(one) or self.rounds.absence(one) is not None:
            return  # it is in elastic.run
        self.done.add(one)
        self.rounds.done(one, self.now)
        self._note()

    @rule(data=st.data())
    @precondition(lambda self: self.done)
    def train_again(self, data):
        one = data.draw(st.sampled_from(sorted(self.done, key=str)))
        self.done.remove(one)
        self.rounds.again(one)

    @rule(data=st.data())
    @precondition(lambda self: self._living())
    def end(self, data):
        one = data.draw(st.sampled_from(self._living()))
        self.gone.add(one)
        self.rounds.ended(one, self.now, well=data.draw(st.booleans()))
        self._note()

    @rule(data=st.data())
    @precondition(lambda self: self._living())
    def leave(self, data):
        one = data.draw(st.sampled_from(self._living()))
        self.dismissed.add(one)
        self.rounds.leaves(one, self.now)
        self._note()

    @rule(data=st.data())
    @precondition(lambda self: self.worlds)
    def step_out(self, data):
        one = data.draw(st.sampled_from([member.task for member in self.worlds[-1].members]))
        if self.rounds.is_waiting(one) or self.rounds.absence(one) is not None:
            return
        self.ending.add(one)
        self.rounds.steps_out(one, self.now)
        self._note()

    @rule(data=st.data())
    @precondition(lambda self: self._living())
    def ask_to_leave(self, data):
        one = data.draw(st.sampled_from(self._living()))
        self.asked.add(one)
        if self.rounds.is_waiting(one):
            self.dismissed.add(one)
        self.rounds.ask_to_leave(one, self.now)
        self._note()

    @rule(data=st.data())
    def suspect(self, data):
        self.rounds.suspect(data.draw(st.sampled_from(self.known)), self.now)

    @rule(change=st.integers(0, 2))
    @precondition(lambda self: len(self.known) < 9)
    def admit(self, change):
        self.known.append(task(len(self.known)))
        self.rounds.admit(self.known[-1], change)

    @rule(seconds=st.sampled_from([0.5, CUT_OFF, SHORTAGE, TIMEOUT]))
    def pass_time(self, seconds):
        self.now += seconds
        self.dismissed.update(self.rounds.expire(self.now))
        self._note()

    @rule(seconds=st.sampled_from([TIMEOUT + 0.5, 100 * TIMEOUT]))
    def be_stopped(self, seconds):
        self.now += seconds
        failed = self.rounds.failed
        assert self.rounds.expire(self.now) == ()
        assert self.rounds.failed is failed

    @invariant()
    def every_wait_has_a_deadline(self):
        assert self.rounds.failed is not None or self.rounds.deadline is None or self.rounds.deadline > self.now - 1e-9
        stands_still = any(self.rounds.is_waiting(m.task) for m in self.worlds[-1].members) if self.worlds else False
        if self.rounds.failed is None and (stands_still or (not self.worlds and self.rounds.waiting)):
            assert self.rounds.deadline is not None

    @invariant()
    def those_that_train_no_more_are_not_waited_for(self):
        assert self.done.isdisjoint(self.rounds.missing) or self.rounds.failed is not None
        if self.rounds.trained and self.worlds:
            assert self.rounds.pending == 0

    @invariant()
    def those_that_wait_hear_of_it_in_the_end(self):
        if self.rounds.failed is None and self.worlds and self.rounds.pending == 0 and not self.rounds.trained:
            members = {member.task for member in self.worlds[-1].members}
            assert not any(self.rounds.absence(one) for one in members)
            newcomers = [one for one in self._living() if self.rounds.is_waiting(one) and one not in members]
            full = len(members) == self.bounds.largest
            assert not newcomers or full or self.rounds.deadline is not None  # they wait for others
            assert not members & self.asked


TestAllOrders = AllOrders.TestCase
TestAllOrders.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
