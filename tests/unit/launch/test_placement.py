"""Which processes an elastic job starts, and which it asks to leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcollective._base.tasks import TaskKey, workers
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.placement import Blocks, Changes, Slot, in_order_of_arrival, next_changes

A, B = Host("a", 2), Host("b", 2)


def on(*slots):
    return {TaskKey("worker", index): Slot(*slot) for index, slot in enumerate(slots)}


def test_slots_are_filled_host_by_host():
    assert next_changes([A, B], 3, {}).start == (Slot("a", 0), Slot("a", 1), Slot("b", 0))
    assert next_changes([A, B], 3, on(("b", 1))).start == (Slot("a", 0), Slot("a", 1))
    assert next_changes([A, B], 2, on(("b", 0), ("b", 1))) == Changes()


def test_a_blocked_host_keeps_its_running_ranks():
    assert next_changes([A, B], 4, on(("a", 0)), blocked={"a"}).start == (Slot("b", 0), Slot("b", 1))


def test_a_given_up_slot_is_left_empty():
    assert next_changes([A, B], 2, on(("a", 1)), given_up={Slot("a", 0)}).start == (Slot("b", 0),)
    assert next_changes([A], 2, on(("a", 1)), given_up={Slot("a", 0)}) == Changes()


def test_the_highest_slots_of_hosts_leave_first():
    running = on(("a", 0), ("b", 0), ("b", 1), ("b", 2))
    changes = next_changes([Host("a", 1), Host("b", 1)], 4, running)
    assert changes == Changes(leave=workers(4)[2:])
    assert next_changes([Host("a", 1), Host("b", 3)], 4, running, leaving=changes.leave) == Changes()


def test_one_that_leaves_makes_room_for_another():
    running = on(("a", 0), ("b", 0))
    assert next_changes([Host("a", 1), Host("c", 1)], 2, running).start == (Slot("c", 0),)


def test_the_first_member_stays_while_others_start():
    running = on(("a", 0), ("a", 1), ("b", 0))
    members = [TaskKey("worker", 1), TaskKey("worker", 0)]
    assert next_changes([B], 3, running, members=members).leave == (TaskKey("worker", 0),)
    assert next_changes([Host("b", 1)], 3, running, members=members).leave == (TaskKey("worker", 0),)
    everyone = [*members, TaskKey("worker", 2)]
    assert set(next_changes([B], 3, running, members=everyone).leave) == set(members)


def test_without_others_that_take_over_all_leave():
    running = on(("a", 0), ("a", 1))
    assert next_changes([], 2, running, members=tuple(running)).leave == tuple(running)
    assert next_changes([B], 2, running, members=tuple(running), blocked={"b"}).leave == tuple(running)


class CountedTask(TaskKey):
    """Counts how often it is compared with another one."""

    compared = 0
    __hash__ = TaskKey.__hash__

    def __eq__(self, other):
        CountedTask.compared += 1
        return super().__eq__(other)


def test_the_cost_of_deciding_is_not_quadratic():
    ranks = 300
    CountedTask.compared = 0
    running = {CountedTask("worker", index): Slot(f"host-{index // 8}", index % 8) for index in range(ranks)}
    hosts = [Host(f"host-{number}", 8) for number in range(ranks // 8)]
    members = [CountedTask("worker", index) for index in range(ranks)]  # as read from a message: not the same objects
    next_changes(hosts, ranks, running, members=members)
    assert CountedTask.compared < 10 * ranks


HOSTS = st.lists(st.builds(Host, st.sampled_from("abcd"), st.integers(1, 3)), max_size=4, unique_by=lambda h: h.name)


@given(first=HOSTS, later=HOSTS, most=st.integers(2, 8), data=st.data())
def test_every_history_ends_with_filled_slots(first, later, most, data):
    """Ranks end, are asked to leave and join in some order: in the end there is one in each slot, or the most."""
    running, leaving, members, count = {}, set(), [], 0
    for hosts in (first, later):
        for step in range(40):
            changes = next_changes(hosts, most, running, leaving=leaving, members=members)
            assert not set(changes.start) & set(running.values())
            assert len(set(changes.start)) == len(changes.start)
            assert len(running) - len(leaving) - len(changes.leave) + len(changes.start) <= most + 1
            staying_members = set(members) - leaving
            if staying_members and (changes.start or set(running) - leaving - set(changes.leave)):
                assert staying_members - set(changes.leave)  # one is left that has the state
            if changes == Changes() and not leaving and set(members) == set(running):
                break
            leaving |= set(changes.leave)
            for slot in changes.start:
                running[TaskKey("worker", count)] = slot
                count += 1
            event = data.draw(st.sampled_from(["join", "leave", "both"])) if step < 6 else "both"
            if event != "join":
                for task in leaving:
                    running.pop(task)
                leaving = set()
            if event != "leave":
                members = [*(one for one in members if one in running), *sorted(running.keys() - set(members), key=str)]
            members = [one for one in members if one in running][:most]
        else:
            pytest.fail("the job does not settle")
        slots = {Slot(host.name, number) for host in hosts for number in range(host.slots)}
        assert set(running.values()) <= slots
        assert len(running) == min(most, len(slots))


def test_hosts_keep_the_order_in_which_they_came():
    known = in_order_of_arrival((), [Host("b"), Host("a")])
    known = in_order_of_arrival(known, [Host("a", 3), Host("c"), Host("b")])
    assert known == (Host("b"), Host("a", 3), Host("c"))
    assert in_order_of_arrival(in_order_of_arrival(known, [Host("a")]), known) == (Host("a", 3), Host("b"), Host("c"))


def fails(blocks, host, now, trained=0.0):
    """A process that was started a moment ago."""
    return blocks.failed(host, now, started=now - 0.5, trained=trained)


def test_a_host_is_blocked_longer_each_time():
    blocks = Blocks()
    assert (fails(blocks, "a", 1.0), blocks.blocked(1.0), blocks.next_end()) == (0.0, frozenset(), None)
    assert (fails(blocks, "a", 2.0), fails(blocks, "b", 3.0)) == (30.0, 0.0)
    assert (blocks.blocked(31.9), blocks.next_end()) == ({"a"}, 32.0)
    assert (blocks.blocked(32.0), blocks.next_end()) == (frozenset(), None)
    assert (fails(blocks, "a", 40.0), blocks.failures("a"), blocks.failures("b")) == (60.0, 3, 1)


def test_a_wholly_failed_host_is_blocked_immediately():
    blocks = Blocks()
    assert [blocks.lost("a", 0.0) for _ in range(3)] == [30.0, 60.0, 120.0]


def test_processes_started_together_fail_once():
    blocks = Blocks(proven=10.0)
    assert [blocks.failed("a", now, started=0.0, trained=3.0) for now in (1.0, 2.0, 60.0)] == [0.0] * 3
    assert blocks.failures("a") == 1
    # Their replacements: started at about the same time, too.
    assert [blocks.failed("a", now, started=61.0, trained=0.0) for now in (62.0, 63.0)] == [30.0, 0.0]


def test_long_training_clears_failures_of_a_host():
    blocks = Blocks(proven=10.0)
    assert [fails(blocks, "a", number, trained=9.9) for number in (1.0, 2.0)] == [0.0, 30.0]
    assert (fails(blocks, "a", 20.0, trained=10.0), blocks.failures("a")) == (0.0, 0)
    assert fails(blocks, "a", 22.0) == 0.0


def test_the_user_may_set_the_blocking_times():
    blocks = Blocks((5.0, 18.0))
    assert [fails(blocks, "a", now, trained=1000.0) for now in (1.0, 2.0, 3.0, 4.0)] == [5.0, 10.0, 18.0, 18.0]
