"""How long a change of the world takes, phase by phase."""

from tfcollective._runtime.change_times import ChangeTimes
from tfcollective._testing.clock import ManualClock


def test_each_change_is_published_at_first_commit():
    clock, heard = ManualClock(10.0), []
    times = ChangeTimes(heard.append, clock.monotonic)
    times.synced()
    times.stepped()  # of the first world nothing is measured
    for generation in (2, 3):
        clock.advance(0.5)
        times.connected(generation, clock.monotonic() - 0.25)
        clock.advance(1.0)
        times.synced()
        for _ in range(3):
            clock.advance(2.0)
            times.stepped()
    phases = {"connect": 0.25, "sync": 1.0, "first_step": 2.0}
    assert heard == [{"generation": generation, **phases} for generation in (2, 3)]


def test_a_world_broken_early_is_not_published():
    clock, heard = ManualClock(0.0), []
    times = ChangeTimes(heard.append, clock.monotonic)
    times.connected(2, 0.0)
    times.synced()
    times.connected(3, 0.0)
    times.stepped()
    assert [one["generation"] for one in heard] == [3]


def test_a_newcomer_announces_its_state_at_once():
    heard = []
    times = ChangeTimes(heard.append, ManualClock().monotonic)
    times.connected(2, 0.0)
    times.synced(tell=True)
    times.stepped()
    assert heard == [{"generation": 2, "connect": 0.0, "sync": 0.0}, {**heard[0], "first_step": 0.0}]
