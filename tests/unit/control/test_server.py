"""The server over real sockets: requests of its job's processes, and refusals of unauthenticated peers."""

import asyncio
import concurrent.futures
import itertools
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from launching import until
from time_limits import within

from tfcollective._base.clock import SYSTEM_CLOCK
from tfcollective._base.codec import decode, encode
from tfcollective._base.errors import CoordinatorError, RendezvousError
from tfcollective._base.failures import ExitRecord
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import PortRange
from tfcollective._control import messages
from tfcollective._control.client.channel import Channel, Retry
from tfcollective._control.client.client import CoordinatorClient, OtherJobError, WorldBegunError
from tfcollective._control.messages import (
    Alive,
    Beat,
    Get,
    Join,
    Joined,
    JoinRequest,
    OutputPiece,
    Presence,
    Refusal,
)
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.serve.service import JobService
from tfcollective._control.snapshot import TaskState
from tfcollective._control.state.events import Admit, Tick, Topic
from tfcollective._control.state.job import EVENTS, Job
from tfcollective._control.state.membership import Membership
from tfcollective._control.state.rounds import Bounds
from tfcollective._control.state.store import Store
from tfcollective._control.store_keys import end_key, item_key, node_name, orders_key
from tfcollective._control.wire.certificate import Certificate
from tfcollective._control.wire.protocol import MAX_BODY_BYTES, ServerOptions

KEY = new_key()


def serve(size=2, start_timeout=60.0, **options):
    return CoordinatorServer(ServerOptions("job", KEY, workers(size), start_timeout, **options))


def test_a_launchers_call_outlasts_a_pause(monkeypatch):
    """What it waits for ends at once then, though no time has passed for the coordinator's thread."""
    stops, result = iter([True]), concurrent.futures.Future.result

    def stopped_once(self, timeout=None):
        if next(stops, False):
            raise concurrent.futures.TimeoutError
        return result(self, timeout)

    with serve() as running:
        monkeypatch.setattr(concurrent.futures.Future, "result", stopped_once)
        assert not running.snapshot().initialised


@pytest.fixture
def server():
    with serve() as running:
        yield running


@pytest.fixture
def client(server):
    with CoordinatorClient(server.endpoint, KEY) as one:
        yield one


def join(endpoint, index, size=2, timeout=60.0, address="", first=False):
    at = address or f"a{index}"
    with CoordinatorClient(endpoint, KEY) as client:
        return Channel(client).join(
            TaskKey("worker", index), size=size, node="n", pid=index, address=at, timeout=timeout, first=first
        )


def in_thread(function, *arguments):
    results = []

    def call():
        try:
            results.append(function(*arguments))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, results


def ended(index, code):
    return ExitRecord(f"worker:{index}", index, "n", index, code, None, 1.0)


def test_everybody_gets_the_same_world(server):
    threads = [in_thread(join, server.endpoint, index) for index in range(2)]
    for thread, _ in threads:
        thread.join(within(20))
    (first,), (second,) = (results for _, results in threads)
    assert first == second
    assert first.addresses == ("a0", "a1")
    assert first.generation == 1


def test_the_start_timeout_names_the_missing():
    with serve(3, start_timeout=0.2) as server:
        with pytest.raises(RendezvousError, match="1 of 3 tasks joined") as caught:
            join(server.endpoint, 1, 3)
        assert caught.value.missing == ("worker:0", "worker:2")
        assert server.snapshot().failure.timed_out


def test_a_handler_that_fails_is_named(server, client, monkeypatch, caplog):
    calls = []

    def fail(job, event, now):
        calls.append(event)
        raise KeyError("a fault")

    monkeypatch.setitem(EVENTS, messages.Remove, (fail, ()))
    with pytest.raises(CoordinatorError, match="the coordinator failed: KeyError: 'a fault'"):
        client.call(messages.Remove("k"))
    assert len(calls) == 1  # it is not repeated
    assert client.put("k", 1) == 1
    assert "Traceback" in caplog.text


def test_time_is_kept_after_a_failure(monkeypatch, caplog):
    handler, topics = EVENTS[Tick]
    failures = iter([True])

    def fail_once(job, event, now):
        if next(failures, False):
            raise KeyError("a fault")
        return handler(job, event, now)

    monkeypatch.setitem(EVENTS, Tick, (fail_once, topics))
    with serve(start_timeout=0.2) as server, pytest.raises(RendezvousError, match="1 of 2 tasks joined"):
        join(server.endpoint, 1)
    assert "a fault" in caplog.text


def test_a_start_without_certificate_leaves_no_thread(monkeypatch):
    def fail():
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(Certificate, "make", fail)
    server = serve()
    with pytest.raises(CoordinatorError, match=r"cannot make its certificate: .*not implemented"):
        server.start()
    assert not server._thread.is_alive()


def test_the_end_of_a_task_ends_waits(server, client):
    thread, results = in_thread(join, server.endpoint, 0)
    until(lambda: server.snapshot().initialised)
    client.call(messages.Exited(ended(1, 3)))
    thread.join(within(20))
    assert "worker:1 (rank 1, pid 1) exited with code 3 before it had joined the job with init()" in str(results[0])


def test_a_latecomer_joins_the_next_world():
    options = ServerOptions("job", KEY, workers(2), 0.2, bounds=Bounds(1, 2, 2, 60.0, 60.0))
    with CoordinatorServer(options) as server:
        assert join(server.endpoint, 0, first=True).size == 1
        assert join(server.endpoint, 0, first=True).size == 1  # its answer was lost
        with pytest.raises(WorldBegunError, match="worker:1 has come too late to the first world"):
            join(server.endpoint, 1, first=True)
        assert server.snapshot().generation == 1
        thread, results = in_thread(join, server.endpoint, 1)
        until(lambda: server.snapshot().tasks[1].state is TaskState.WAITING)
        assert join(server.endpoint, 0, address="next").size == 2
        thread.join(within(20))
        assert results[0].size == 2


def test_a_silent_member_is_reported_to_the_owner():
    found = []
    options = ServerOptions("job", KEY, workers(1), 60.0, silence_limit=0.2)
    with CoordinatorServer(options, on_event=lambda event: found.append(event.silent)) as server:
        join(server.endpoint, 0, size=1)
        until(lambda: len(found) > 1)
    assert {task for task, _ in found} == {TaskKey("worker", 0)}
    assert 0.2 <= found[0][1] < found[1][1]


def test_silence_of_the_awaited_ends_a_wait(client):
    client.call(Alive("node/1"))
    assert Channel(client).wait_while("node/1/end", "node/1", 0.2) is None
    assert Channel(client).wait_while("node/2/end", "node/2", 60.0, first=0.2) is None


def test_heartbeats_of_the_awaited_prolong_a_wait(server, client):
    thread, results = in_thread(Channel(client).wait_while, "node/1/end", "node/1", 3.0)
    begin = time.monotonic()
    while time.monotonic() - begin < 4.0:
        client.call(Alive("node/1"))
        time.sleep(0.1)  # the pace of the heartbeats
    client.put("node/1/end", "well")
    thread.join(within(20))
    assert results[0].value == "well"


def test_signs_of_life_wake_none():
    async def look():
        service = JobService(Job("job", Membership(workers(1), 60.0), Store(1 << 20), 60.0), SYSTEM_CLOCK)
        woken = []
        service._wakeups.wake = lambda *topics: woken.extend(topics)
        service.apply(Alive("node/1"))
        with pytest.raises(Refusal):
            service.apply(Beat(TaskKey("worker", 9), "running", {}))
        service.apply(Beat(TaskKey("worker", 0), "running", {}))
        assert woken == []

    asyncio.run(look())


def test_a_node_relays_signs_of_its_ranks(server, client):
    beats = [Beat(task, "running", {"completed": 7}, 5.0) for task in workers(2)]
    client.call(Alive("node/0", beats))
    assert [(view.activity, view.info) for view in server.snapshot().tasks] == [("running", {"completed": 7})] * 2


def test_one_look_judges_all_waits():
    """Else each wait of a launcher with n nodes has the coordinator look at n of them."""

    async def look():
        service = JobService(Job("job", Membership(workers(1), 60.0), Store(1 << 20)), SYSTEM_CLOCK)
        woken = []
        service._wakeups.wake = lambda *topics: woken.extend(topics)
        requests = [Get(f"k{number}", 0, 20.0, Presence(f"node/{number}", 60.0, 60.0)) for number in range(5)]
        waiting = [asyncio.create_task(service._get(request)) for request in requests]
        await asyncio.sleep(0.05)
        assert woken == [Topic.TIME]
        for one in waiting:
            one.cancel()

    asyncio.run(look())


def test_only_one_waiting_rank_gets_missing_names():
    """Else n waiting tasks would get n names each, again and again."""

    async def look():
        service = JobService(Job("job", Membership(workers(500), 60.0), Store(1 << 20)), SYSTEM_CLOCK)

        async def answer(timeout, index=1):
            message = Join(JoinRequest(TaskKey("worker", index), 500, "n", index, "a"), timeout)
            return decode(await service.answer(Join.path, encode(message)), Joined, "the answer")

        assert len((await answer(0.01, index=0)).missing) == 499
        assert await answer(0.01) == Joined()
        assert len((await answer(0.0)).missing) == 498

    asyncio.run(look())


def test_who_is_missing_is_known_at_the_last():
    with serve(3, start_timeout=60.0) as server:  # longer than the client waits
        with pytest.raises(RendezvousError, match=r"no world within -14\.9 s; missing: worker:1, worker:2"):
            join(server.endpoint, 0, 3, timeout=0.1 - TIMING.join_margin)


def test_closing_ends_the_waits():
    server = serve()
    server.start()
    thread, results = in_thread(join, server.endpoint, 0)
    until(lambda: server.snapshot().initialised)
    server.close()
    server.close()
    thread.join(within(20))
    assert isinstance(results[0], (RendezvousError, CoordinatorError))


def test_a_contradicting_join_is_refused(server):
    with pytest.raises(RendezvousError, match="world of 5"):
        join(server.endpoint, 0, size=5)


def test_status_is_readable_after_hundreds_of_replacements(server, client):
    last = ("x" * 2000,) * 20  # what an agent keeps at most
    for number in range(2, 302):
        server.apply(Admit(TaskKey("worker", number)))
        server.apply(messages.Exited(ExitRecord(f"worker:{number}", number, "n", 7, None, 9, 1.0, stderr_tail=last)))
    assert sum(one.exit is not None for one in client.call(messages.Status()).tasks) == 300


def test_status_tells_all(server, client):
    client.call(messages.Started(TaskKey("worker", 0), "n", 7, "h"))
    client.call(Beat(TaskKey("worker", 0), "running", {"completed": 3}))
    client.call(messages.Exited(ended(1, 0)))
    status = client.call(messages.Status())
    first, second = status.tasks
    assert (status.job, status.generation, status.failure) == ("job", 0, None)
    assert (first.task, first.state, first.pid) == (TaskKey("worker", 0), TaskState.STARTED, 7)
    assert (first.info, first.node, first.host) == ({"completed": 3}, "n", "h")
    assert first.last_heartbeat <= status.at
    assert (second.state, second.exit.exit_code) == (TaskState.EXITED, 0)


def test_an_overlong_answer_is_reported_as_such():
    with serve(3) as server, CoordinatorClient(server.endpoint, KEY) as client:
        for index in range(3):
            client.call(Beat(TaskKey("worker", index), "running", {"said": "x" * (3 << 20)}))
        with pytest.raises(CoordinatorError, match="is longer than 8 MiB, the most that is read"):
            client.call(messages.Status())


def test_nodes_enroll_once_and_keep_their_order(client):
    assert [client.call(messages.Enroll(token, {"name": token})).number for token in ("b", "a", "b")] == [0, 1, 0]
    listed = client.call(messages.ListNodes(0, within(5)))
    assert [(one.number, one.facts) for one in listed.nodes] == [(0, {"name": "b"}), (1, {"name": "a"})]
    assert (listed.count, listed.then) == (2, 2)
    assert client.call(messages.ListNodes(2, 0.05)) == messages.NodeList((), 2)


def test_many_nodes_are_listed_page_by_page(client):
    for number in range(40):
        client.call(messages.Enroll(str(number), {"name": "x" * 100_000}))
    since, pages = 0, []
    while page := client.call(messages.ListNodes(since, 0.0)).nodes:
        pages.append([one.number for one in page])
        since = page[-1].number + 1
    assert list(itertools.chain(*pages)) == list(range(40))
    assert len(pages) > 1


def test_a_node_that_ended_long_ago_has_gone(client):
    """Agents may be started and refused for as long as a job runs."""
    for number in range(1002):
        assert client.call(messages.Enroll(str(number), {})).number == number
        client.call(Alive(node_name(number)))
        client.put(item_key(orders_key(number), 0), "go away")
        client.put(end_key(number), None)
    assert client.call(messages.ListNodes(0, 0.0)).nodes[0].number == 2
    assert (client.get(end_key(1)), client.get(item_key(orders_key(1), 0))) == (None, None)
    assert client.call(messages.FindGone((1, 2, 1002), 60.0)).nodes == (1, 2)  # the last one has yet to come


def test_ended_and_silent_nodes_are_gone(client):
    for number in range(3):
        client.call(messages.Enroll(str(number), {}))
        client.call(Alive(node_name(number)))
    client.put(end_key(1), None)
    assert client.call(messages.FindGone((0, 1, 2), 60.0)).nodes == (1,)
    assert client.call(messages.FindGone((0, 2), 0.0)).nodes == (0, 2)


def test_a_task_that_died_waiting_may_rejoin(server):
    """Without a launcher none says that it has died, but its connection ends."""
    program = """
import sys
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint
with CoordinatorClient(Endpoint.parse(sys.argv[1]), bytes.fromhex(sys.stdin.readline())) as client:
    Channel(client).join(TaskKey("worker", 1), size=2, node="n", pid=100, address="a1", timeout=600.0)
"""
    command = [sys.executable, "-c", program, str(server.endpoint)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    try:
        process.stdin.write(KEY.hex() + "\n")
        process.stdin.close()
        until(lambda: server.snapshot().tasks[1].state is TaskState.WAITING, 60)
        with pytest.raises(RendezvousError, match="worker:1 has joined already: process 100 on node n"):
            join(server.endpoint, 1)
    finally:
        process.kill()
        process.wait()
    results = []

    def come_again():
        try:
            results.append(join(server.endpoint, 1))
        except RendezvousError:  # its end has yet to be seen
            return False
        return True

    again = threading.Thread(target=lambda: until(come_again, 60))
    again.start()
    until(lambda: server.snapshot().tasks[1].pid == 1, 60)
    join(server.endpoint, 0)
    again.join()
    assert [member.pid for member in results[0].members] == [0, 1]


def test_the_port_is_an_allowed_one():
    with serve() as other:  # the kernel has chosen a port, which is taken now
        taken = other.endpoint.port
        with pytest.raises(
            CoordinatorError, match=f"cannot listen on 127.0.0.1, ports {taken}-{taken} .--port-range.: "
        ):
            serve(ports=PortRange(taken, taken)).start()
        high = min(taken + 400, 65535)
        with serve(ports=PortRange(taken - 400, high)) as server:
            assert server.endpoint.port in {*range(taken - 400, high + 1)} - {taken}


def test_the_first_rank_that_waits_says_for_whom(monkeypatch, caplog):
    monkeypatch.setattr("tfcollective._control.client.client.TIMING", replace(TIMING, remind=0.01))
    with serve(size=12) as server:
        waiting = [threading.Thread(target=join, args=(server.endpoint, index, 12)) for index in (1, 2)]
        for thread in waiting:
            thread.start()
        text = (
            "init() waits for worker:0, worker:3, worker:4, worker:5, worker:6, worker:7, worker:8, worker:9 and 2 more"
        )
        until(lambda: text in caplog.messages, 60)
        waiting += [threading.Thread(target=join, args=(server.endpoint, index, 12)) for index in (0, *range(3, 12))]
        for thread in waiting[2:]:
            thread.start()
        for thread in waiting:
            thread.join()


def test_a_waiting_node_hears_of_the_next(client):
    found = []
    waiting = threading.Thread(target=lambda: found.append(client.call(messages.ListNodes(0, within(20)))))
    waiting.start()
    client.call(messages.Enroll("a", {"name": "n"}))
    waiting.join()
    assert [one.facts["name"] for one in found[0].nodes] == ["n"]


def test_values_and_waits(server, client):
    assert client.get("k") is None
    assert client.wait("k", timeout=0.01) is None
    thread, results = in_thread(lambda: client.wait("k", timeout=within(20), newer_than=1))
    assert [client.put("k", "old"), client.put("k", {"new": [1, None]})] == [1, 2]
    thread.join(within(20))
    assert results[0].value == {"new": [1, None]}


def test_blobs_both_ways(server, client):
    data = bytes(range(256)) * 10000
    client.put_blob("up", data)
    assert server.get_blob("up") == data
    server.put_blob("down", data)
    assert client.get_blob("down", timeout=1) == data
    assert client.get_blob("none", timeout=0.01) is None
    assert server.get_blob("none") is None


def test_bytes_that_are_removed_are_forgotten_in_full(server, client):
    for _ in range(3):
        client.put_blob("big", bytes(3 << 20))
        client.call(messages.Remove("big"))
        client.call(messages.Remove("big"))
        assert client.get_blob("big", timeout=0.0) is None
        assert [client.get(f"big/{index}") for index in range(3)] == [None] * 3


def test_a_value_wakes_only_its_waiters():
    """Otherwise each heartbeat of one of n nodes would cost the coordinator n wake-ups."""

    async def look():
        looks = []

        class Watched(Store):
            def newer(self, key, version):
                looks.append(key)
                return super().newer(key, version)

        service = JobService(Job("job", Membership(workers(1), 60.0), Watched(1 << 20)), SYSTEM_CLOCK)
        requests = [Get(f"k{number}", timeout=20.0) for number in range(5)]
        waiting = [asyncio.create_task(service._get(request)) for request in requests]
        await asyncio.sleep(0.05)
        looks.clear()
        service.apply(messages.Put("k3", 1))
        assert (await asyncio.wait_for(waiting[3], within(20))).entry.value == 1
        assert looks == ["k3"]
        service.close()
        assert [found.entry and found.entry.version for found in await asyncio.gather(*waiting)] == [
            None,
            None,
            None,
            1,
            None,
        ]

    asyncio.run(look())


def test_an_oversized_value_is_refused_unsent(client):
    with pytest.raises(CoordinatorError, match="too large"):
        client.put("k", "x" * MAX_BODY_BYTES)


def test_proxies_are_ignored(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with CoordinatorClient(server.endpoint, KEY) as client:
        assert client.put("k", 1) == 1


def test_a_coordinator_that_has_vanished_is_noticed():
    with serve() as server, CoordinatorClient(server.endpoint, KEY) as client:
        client.put("k", 1)
        server.close()
        with pytest.raises(CoordinatorError, match="no answer from the coordinator"):
            client.put("k", 2)


def test_an_address_of_others_cannot_be_served():
    with pytest.raises(CoordinatorError, match=r"cannot listen on 192\.0\.2\.1"):
        serve(bind_host="192.0.2.1").start()


def test_jobs_with_one_key_form_separate_worlds(server):
    """A rank of another job connects to this job's coordinator: the error says so, and the place stays free."""
    with CoordinatorClient(server.endpoint, KEY, "job-b") as stray:
        with pytest.raises(OtherJobError, match=r"coordinator of the job 'job', .* belongs to the job 'job-b'"):
            Channel(stray, Retry(seconds=0.0, tries=1)).join(
                TaskKey("worker", 1), size=2, node="n", pid=1, address="stray", timeout=within(20)
            )
    threads = [in_thread(join, server.endpoint, index) for index in range(2)]
    for thread, _ in threads:
        thread.join(within(20))
    assert [results[0].addresses for _, results in threads] == [("a0", "a1")] * 2


def test_a_coordinator_that_does_not_run_says_so():
    for use in (lambda server: server.snapshot(), lambda server: server.endpoint):
        with pytest.raises(CoordinatorError, match=r"is not running|not been started"):
            use(serve())


def test_an_unknown_task_is_a_conflict(server, client):
    with pytest.raises(CoordinatorError, match="no task worker:9"):
        client.call(messages.Leave(TaskKey("worker", 9)))


def test_it_listens_on_one_interface_only(server):
    assert server.endpoint.host == "127.0.0.1"


def test_it_serves_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with serve(bind_host="::1") as server, CoordinatorClient(server.endpoint, KEY) as client:
        assert str(server.endpoint) == f"[::1]:{server.endpoint.port}"
        assert client.put("k", 1) == 1


def test_the_clock_offset_is_that_of_the_coordinator(client):
    assert abs(client.clock_offset(8)) < 1e9  # the same clock: what is left is half the way there and back


def test_a_lost_member_is_reported_on_request(server, client):
    threads = [in_thread(join, server.endpoint, index) for index in range(2)]
    for thread, _ in threads:
        thread.join(within(20))
    assert client.call(messages.FindLost(1, 0.01)) == messages.Lost()
    thread, results = in_thread(lambda: client.call(messages.FindLost(1, within(20))))
    server.apply(messages.Exited(ended(1, 3)))
    thread.join(within(20))
    assert results == [messages.Lost(1, "rank 1 (worker:1, pid 1) exited with code 3")]
    assert client.call(messages.FindLost(2, 0.01)) == messages.Lost()  # another world


def test_many_tasks_join_beyond_the_connection_limit():
    size = 200
    with serve(size) as running:
        joins = [in_thread(join, running.endpoint, index, size) for index in range(size)]
        for thread, _ in joins:
            thread.join(60)
        worlds = [results[0] for _, results in joins]
    assert all(world == worlds[0] for world in worlds)
    assert worlds[0].size == size


def test_output_reaches_waiting_and_later_readers(server, client):
    thread, pages = in_thread(lambda: client.call(messages.ReadOutput(0, 20)))
    with CoordinatorClient(server.endpoint, KEY) as node:
        node.call(messages.Show(OutputPiece("worker-0", "stdout", "a line\n")))
    thread.join(within(20))
    (page,) = pages
    assert [piece.text for piece in page.pieces] == ["a line\n"]
    assert client.call(messages.ReadOutput(0, 0)).pieces == page.pieces
    assert client.call(messages.ReadOutput(page.position, 0)).pieces == ()
