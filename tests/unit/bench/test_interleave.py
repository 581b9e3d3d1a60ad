import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from launching import until
from time_limits import within

from tfcollective._base.clock import Deadline
from tfcollective._testing.clock import ManualClock
from tfcollective_bench import interleave as interleave_module
from tfcollective_bench.interleave import Failure, Record, Started, Variant, interleave, rotation
from tfcollective_bench.interrupts import interrupts_deferred

# Prints JSON with and without a launcher's prefix, and what is no JSON.
GOOD = """
print('{"value": 1}')
print("chatter")
print('[0]<stdout>:{"value": 2}')
print("{not json}")
print("[1, 2]")
"""
# Its child has a process group, its grandchild a session of its own; all ignore SIGTERM and hold the pipes.
FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        os.setsid()
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
os.write(1, b'{"up": 1}\\n')  # at once: three processes write to this pipe
time.sleep(600)
"""


def variant(name, program, *arguments, deadline=60.0, **options):
    return Variant(name, (sys.executable, "-c", program, *arguments), deadline, **options)


def records(events, name):
    return [event.content for event in events if isinstance(event, Record) and event.variant == name]


def failures(events):
    return {event.variant: str(event) for event in events if isinstance(event, Failure)}


def test_every_position_comes_up_and_rounds_hold_everybody():
    orders = [rotation(3, number) for number in range(6)]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert {order[0] for order in orders} == {0, 1, 2}
    followers = {(order[i], order[i + 1]) for order in orders for i in range(2)}
    assert len(followers) == 6


def test_variants_take_turns_and_their_json_comes_through():
    events = list(interleave([variant("a", GOOD), variant("b", GOOD)], 2))
    assert [(e.variant, e.round) for e in events if isinstance(e, Started)] == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert records(events, "a") == [{"value": 1}, {"value": 2}] * 2
    assert failures(events) == {}


def test_a_crash_is_reported_and_others_continue():
    crash = "import sys; print('{\"value\": 0}'); sys.stderr.write('loading\\nwhat went wrong\\n'); sys.exit(3)"
    killed = "import os; print('on stdout', flush=True); os.kill(os.getpid(), 9)"
    variants = [
        variant("crash", crash),
        variant("killed", killed),
        Variant("absent", ("/no/such/program",), 5.0),
        variant("good", GOOD),
    ]
    events = list(interleave(variants, 2))
    found = failures(events)
    assert found["crash"] == "ended with code 3 in round 1: what went wrong"
    assert found["killed"] == "ended by SIGKILL in round 1: on stdout"
    assert found["absent"].startswith("cannot start /no/such/program in round 1: ")
    assert len(records(events, "good")) == 4
    assert records(events, "crash") == [{"value": 0}]
    assert sum(isinstance(event, Started) and event.variant == "crash" for event in events) == 1


def test_no_turn_begins_when_the_time_is_up():
    clock = ManualClock()
    events = interleave([variant("a", GOOD), variant("b", GOOD)], 3, until=Deadline.after(10, clock), clock=clock)
    seen = []
    for event in events:
        seen.append(event)
        if isinstance(event, Started):
            clock.advance(11)  # the time is up while the first one runs
    assert [event.variant for event in seen if isinstance(event, Started)] == ["a"]
    assert len(records(seen, "a")) == 2
    assert failures(seen) == {"b": "had no turn before the time was up in round 1"}


def test_information_for_debuggers_is_no_last_word():
    lines = [
        "what went wrong",
        "I0000 00:00:1795.4 3036 port.cc:153] on",
        "2026-11-21 09:53:44.3: I tensorflow/x.cc] y",
        "  then rank 1 (worker:1, pid 7) was stopped",
    ]
    program = f"import sys; sys.stderr.write({chr(10).join(lines)!r}); sys.exit(1)"
    alone = f"import sys; sys.stderr.write({lines[1]!r}); sys.exit(1)"
    found = failures(list(interleave([variant("said", program), variant("nothing else", alone)], 1)))
    assert found["said"] == "ended with code 1 in round 1: what went wrong"
    assert found["nothing else"] == f"ended with code 1 in round 1: {lines[1]}"


def test_a_hanging_variant_is_killed_with_descendants(tmp_path):
    pids = tmp_path / "pids"
    clock, events = ManualClock(), []
    for event in interleave([variant("hang", FAMILY, str(pids)), variant("good", GOOD)], 1, clock=clock):
        events.append(event)
        if len(records(events, "hang")) == 3 and not failures(events):
            clock.advance(60.0)  # the time is up when all three are there
    assert failures(events) == {"hang": "killed after 60 s in round 1"}
    assert len(records(events, "good")) == 2
    assert_gone(pids, 3)


def test_one_that_talks_for_ever_is_killed_too():
    chatter = "import itertools\nfor i in itertools.count(): print('{}' if i == 9 else f'line {i}', flush=True)"
    clock, events = ManualClock(), []
    for event in interleave([variant("chatter", chatter)], 1, clock=clock):
        events.append(event)
        if isinstance(event, Record):
            clock.advance(60.0)
    assert failures(events)["chatter"].startswith("killed after 60 s in round 1: line ")


def test_an_orphan_holding_pipes_delays_no_turn(tmp_path):
    orphan = "import os, sys, time\nif os.fork() == 0: time.sleep(600)\nprint('{\"value\": 1}')"
    begin = time.monotonic()
    events = list(interleave([variant("orphan", orphan, deadline=400.0)], 1))
    assert time.monotonic() - begin < 200
    assert records(events, "orphan") == [{"value": 1}]
    assert failures(events) == {}


def test_environment_variables_can_be_added_and_removed(monkeypatch):
    monkeypatch.setenv("TFC_GONE", "1")
    program = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('TFC_')}))"
    events = list(interleave([variant("env", program, env={"TFC_NEW": "2"}, unset=("TFC_GONE",))], 1))
    (found,) = records(events, "env")
    assert found["TFC_NEW"] == "2"
    assert "TFC_GONE" not in found


def test_closing_the_iteration_leaves_no_process(tmp_path):
    pids = tmp_path / "pids"
    with contextlib.closing(interleave([variant("hang", FAMILY, str(pids))], 1)) as events:
        seen = 0
        for event in events:
            seen += isinstance(event, Record)
            if seen == 3:
                break
    assert_gone(pids, 3)


@contextlib.contextmanager
def handled(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_waits_for_the_cleanup(number, monkeypatch):
    """A second Ctrl-C would leave processes that the first has not ended yet."""
    came = []
    with handled(number, lambda number, frame: came.append(number)):
        with interrupts_deferred():
            signal.raise_signal(number)
            assert came == []
        assert came == [number]


def test_a_second_interrupt_leaves_no_process(monkeypatch):
    program = "import json, os, time; print(json.dumps({'pid': os.getpid()}), flush=True); time.sleep(600)"
    family = interleave_module._family

    def interrupted(leader):
        signal.raise_signal(signal.SIGINT)
        return family(leader)

    events = interleave([variant("a", program)], 1)
    process = next(psutil.Process(event.content["pid"]) for event in events if isinstance(event, Record))
    monkeypatch.setattr(interleave_module, "_family", interrupted)
    with handled(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        events.close()
    assert not process.is_running()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ending_the_benchmark_leaves_no_process(tmp_path, number):
    pids = tmp_path / "pids"
    calm = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"
    program = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tfcollective_bench.interleave import Variant, interleave
list(interleave([Variant("x", (sys.executable, "-c", {calm!r}, {str(pids)!r}), 100.0)], 1))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    until(lambda: pids.exists() and pids.read_text())
    process.send_signal(number)
    assert process.wait(within(30)) != 0
    assert_gone(pids, 1)


def assert_gone(pids, count):
    numbers = [int(line) for line in pids.read_text().split()]
    assert len(numbers) == count
    until(lambda: not any(map(is_running, numbers)), explain=lambda: f"still there: {[*filter(is_running, numbers)]}")


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children():
    return {child for child in psutil.Process(os.getpid()).children() if is_running(child.pid)}


@pytest.fixture(scope="module", autouse=True)
def earlier():
    """What the tests of other files have left in this process, if anything."""
    return children()


def test_nothing_is_left_of_these_tests(earlier):
    until(lambda: children() <= earlier, explain=lambda: f"left behind: {children() - earlier}")
