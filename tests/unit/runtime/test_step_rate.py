"""Steps a second, by a clock that moves by hand."""

from tfcollective._runtime.step_rate import StepRate
from tfcollective._testing.clock import ManualClock


def test_it_reports_at_intervals_and_finally():
    clock, said, asked, steps = ManualClock(100.0), [], [], []

    def count():
        asked.append(len(steps))
        return len(steps)

    rate = StepRate(said.append, count, clock, interval=5.0)
    for number in range(12):
        steps.append(number)
        rate.step()
        clock.advance(1.0)
    assert said == [{"step": 6, "steps_per_second": 1.0}, {"step": 11, "steps_per_second": 1.0}]
    assert asked == [1, 6, 11]  # the first step is slow, and not counted; others are not asked for needlessly
    rate.step(last=True)
    assert said[2:] == [{"step": 12, "steps_per_second": 0.5}]
    rate.step(last=True)
    assert len(said) == 3


def test_no_steps_no_rate():
    clock, said = ManualClock(0.0), []
    rate = StepRate(said.append, lambda: 1, clock)
    rate.step(last=True)
    clock.advance(60.0)
    rate.step()
    assert said == []
