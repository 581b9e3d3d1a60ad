"""How long a change of the world takes, phase by phase."""

from tfcollective._runtime.change_times import ChangeTimes


def test_each_change_is_published_at_first_commit():
    now, heard = [10.0], []
    times = ChangeTimes(heard.append, lambda: now[0])
    times.synced()
    times.stepped()  # of the first world nothing is measured
    for generation in (2, 3):
        now[0] += 0.5
        times.connected(generation, now[0] - 0.25)
        now[0] += 1.0
        times.synced()
        for _ in range(3):
            now[0] += 2.0
            times.stepped()
    phases = {"connect": 0.25, "sync": 1.0, "first_step": 2.0}
    assert heard == [{"generation": generation, **phases} for generation in (2, 3)]


def test_a_world_broken_early_is_not_published():
    now, heard = [0.0], []
    times = ChangeTimes(heard.append, lambda: now[0])
    times.connected(2, 0.0)
    times.synced()
    times.connected(3, 0.0)
    times.stepped()
    assert [one["generation"] for one in heard] == [3]


def test_a_newcomer_announces_its_state_at_once():
    heard = []
    times = ChangeTimes(heard.append, lambda: 0.0)
    times.connected(2, 0.0)
    times.synced(tell=True)
    times.stepped()
    assert heard == [{"generation": 2, "connect": 0.0, "sync": 0.0}, {**heard[0], "first_step": 0.0}]
