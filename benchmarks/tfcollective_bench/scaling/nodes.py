"""A coordinator in a process of its own, and simulated nodes that keep it busy as those of a large job do.

    python -m tfcollective_bench.scaling.nodes NODES RANKS_PER_NODE SECONDS TIMEOUT

The nodes are coroutines of one process; their connections are real and begin as the client's do. Each node enrols,
reports its ranks, sends heartbeats and forwards those of its ranks, waits for orders and shows output; a launcher
waits for the end of each node and gives orders; each rank joins the world. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from tfcollective._base.codec import decode, encode, to_document
from tfcollective._base.errors import InternalError
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._control.messages import (
    Alive,
    Beat,
    Enroll,
    Found,
    Get,
    Join,
    JoinRequest,
    OutputPage,
    OutputPiece,
    Presence,
    Put,
    ReadOutput,
    Request,
    Show,
    Started,
)
from tfcollective._control.serve.tls_stream import TlsStream
from tfcollective._control.store_keys import end_key, node_name, orders_key
from tfcollective._control.wire.connection import client_context
from tfcollective._control.wire.greeting import WELCOME, Welcome
from tfcollective._control.wire.protocol import REPLY_HEAD, REQUEST_HEAD, ReplyStatus
from tfcollective._launch.agent.protocol import NodeFacts
from tfcollective_bench.scaling.coordinator import coordinator_of
from tfcollective_bench.statistics import percentile

__all__ = ["keep_busy", "main"]

_NO_WORLD = b'{"world": null'
_PERCENTILES = {"median": 50, "p99": 99, "longest": 100}
_ARRIVING = 64  # nodes that connect at the same time
_OUTPUT_EVERY_S = 10.0
_OUTPUT_LINE = "Epoch 3/10  120/500 - 61s 160ms/step - loss: 0.2371 - accuracy: 0.9312\n"
_LOOK_EVERY_S = 0.5
_PER_SOURCE = 8192  # connections from one address: of the ports of one there are not enough for all


def keep_busy(nodes: int, ranks: int, seconds: float, timeout: float) -> dict[str, Any]:
    """Measures the load of `nodes` simulated nodes of `ranks` ranks each on a coordinator, for `seconds` seconds.

    Returns:
        ``nodes``, ``ranks``; ``arrived``: how long (s) all took to come; ``joined``: from the last rank's join to the
        last answer (s); ``joining``: processor seconds of the coordinator until then; ``load``: the same a second
        afterwards, and ``simulator``: those of the nodes; ``requests`` a second; ``beat``: the time (s) to the answer
        of a heartbeat (``median``, ``p99``, ``longest``); ``memory``: the most bytes.

    Raises:
        ResourceExhaustedError: this user may not open so many files.
        InternalError: a request was not answered as it should have been.
    """
    key = new_key()
    with coordinator_of(key, nodes * ranks, timeout, nodes * (ranks + 3) + 2) as (endpoint, process):
        job = _Job(endpoint, key, nodes, ranks, process, timeout)
        return asyncio.run(asyncio.wait_for(job.run(seconds), timeout))


class _Line:
    """An authenticated connection for one request after the other; like the client's, it reopens when it was closed."""

    def __init__(self, endpoint: Endpoint, key: bytes, source: str) -> None:
        self._endpoint = endpoint
        self._key = key
        self._source = source
        self._asking = asyncio.Lock()

    async def open(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def begin(stream: TlsStream) -> None:
            del stream
            ready.set_result(None)

        def end(stream: TlsStream) -> None:
            del stream
            if not ready.done():
                ready.set_exception(ConnectionResetError("the connection has ended"))

        host, port = self._endpoint.host, self._endpoint.port
        _, self._stream = await asyncio.get_running_loop().create_connection(
            lambda: TlsStream(client_context(), begin, end, server_side=False),
            host,
            port,
            local_addr=(self._source, 0),
        )
        await ready
        await self._greet()

    async def _greet(self) -> None:
        head = await self._stream.read(WELCOME.size)
        name = await self._stream.read(WELCOME.unpack(head)[-1])
        left = iter((head, name))
        welcome = Welcome.read(self._key, lambda count: next(left))
        await self._stream.send(welcome.client_proof(self._key))

    async def ask(self, request: Request[Any]) -> bytes:
        path, body = request.path, encode(request)
        async with self._asking:
            try:
                status, reply = await self._exchange(path, body)
            except EOFError:
                self._stream.close()
                await self.open()
                status, reply = await self._exchange(path, body)
        if status != ReplyStatus.OK:
            raise InternalError(f"the coordinator refused {path}: {reply!r}")
        return reply

    async def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        await self._stream.send(REQUEST_HEAD.pack(len(path), len(body)) + path.encode() + body)
        status, length = REPLY_HEAD.unpack(await self._stream.read(REPLY_HEAD.size))
        return status, await self._stream.read(length)


@dataclass
class _Job:
    """The nodes of a job, and what was seen of the coordinator meanwhile."""

    endpoint: Endpoint
    key: bytes
    nodes: int
    ranks: int
    process: psutil.Process
    timeout: float
    beats: list[float] = field(default_factory=list)
    requests: int = 0
    orders: int = 0
    all_ordered: asyncio.Event = field(default_factory=asyncio.Event)
    most_bytes: int = 0
    last_join: float = 0.0
    joined: int = 0
    opened: int = 0

    async def run(self, seconds: float) -> dict[str, Any]:
        begin = time.monotonic()
        gate = asyncio.Semaphore(_ARRIVING)
        formed = asyncio.Event()
        async with _Background() as background:
            background.start(self._look())
            background.start(self._read_output())
            for number in range(self.nodes):
                background.start(self._node(number, gate, formed, background))
            await background.unless_failed(formed.wait())
            joined = time.monotonic()
            self.beats.clear()
            self.requests = 0
            before, own = self._processor_time(), time.process_time()
            background.start(self._give_orders(seconds))
            await background.unless_failed(asyncio.sleep(seconds))
            took, load, requests = time.monotonic() - joined, self._processor_time() - before, self.requests
            own = time.process_time() - own
            await background.unless_failed(self.all_ordered.wait())
            return {
                "nodes": self.nodes,
                "ranks": self.ranks,
                "arrived": self.last_join - begin,
                "joined": joined - self.last_join,
                "joining": before,
                "load": load / took,
                "simulator": own / took,
                "requests": requests / took,
                "beat": {name: percentile(self.beats, percent) for name, percent in _PERCENTILES.items()},
                "memory": self.most_bytes,
            }

    # ---- one node --------------------------------------------------------------------------------------------------

    async def _node(self, number: int, gate: asyncio.Semaphore, formed: asyncio.Event, others: _Background) -> None:
        async with gate:
            agent = await self._open()
            facts = NodeFacts(f"node-{number}", f"node-{number}", f"10.0.{number // 256}.{number % 256}", pid=number)
            await self._ask(agent, Enroll(f"{number:032x}", to_document(facts)))
            for index in range(self.ranks):
                task = TaskKey("worker", number * self.ranks + index)
                await self._ask(agent, Started(task, f"node-{number}", 1000 + index))
                others.start(self._rank(task, number, await self._open(), formed))
            orders, end = await self._open(), await self._open()
        interval = TIMING.beat_within(TIMING.host_timeout)
        others.start(self._every(interval, lambda: self._beat(agent, Alive(node_name(number), self._signs(number)))))
        others.start(self._every(_OUTPUT_EVERY_S, lambda: self._show(agent, number)))
        others.start(self._follow_orders(orders, number))
        presence = Presence(node_name(number), self.timeout, self.timeout)
        others.start(self._wait_for_end(end, Get(end_key(number), 0, TIMING.poll, presence)))

    async def _rank(self, task: TaskKey, number: int, line: _Line, formed: asyncio.Event) -> None:
        address = f"10.0.{number // 256}.{number % 256}:{20000 + task.index}"
        request = JoinRequest(task, self.nodes * self.ranks, f"node-{number}", 1000 + task.index, address)
        self.last_join = time.monotonic()
        while (await self._ask(line, Join(request, TIMING.poll))).startswith(_NO_WORLD):
            pass
        self.joined += 1
        if self.joined == self.nodes * self.ranks:
            formed.set()

    def _signs(self, number: int) -> tuple[Beat, ...]:
        """Returns the heartbeats that the ranks of a node have left for its agent; none before the world has formed."""
        if self.joined < self.nodes * self.ranks:
            return ()
        now = time.monotonic()
        first = number * self.ranks
        return tuple(
            Beat(TaskKey("worker", index), "running", {"completed": int(now), "pending": 0}, now)
            for index in range(first, first + self.ranks)
        )

    async def _follow_orders(self, line: _Line, number: int) -> None:
        version = 0
        while True:
            reply = await self._ask(line, Get(orders_key(number), version, TIMING.poll))
            entry = decode(reply, Found, "the orders").entry
            if entry is not None:
                version = entry.version
                self.orders += 1
                if self.orders == self.nodes:
                    self.all_ordered.set()

    async def _wait_for_end(self, line: _Line, request: Get) -> None:
        while not decode(await self._ask(line, request), Found, "the end").silent:
            pass
        raise InternalError(f"the coordinator takes a node that sends heartbeats for lost: {request.presence}")

    async def _show(self, line: _Line, number: int) -> None:
        await self._ask(line, Show(OutputPiece(f"node-{number}", "stdout", _OUTPUT_LINE)))

    async def _beat(self, line: _Line, message: Request[Any]) -> None:
        begin = time.monotonic()
        await self._ask(line, message)
        self.beats.append(time.monotonic() - begin)

    # ---- the launcher ----------------------------------------------------------------------------------------------

    async def _give_orders(self, seconds: float) -> None:
        """Gives one order to each node, evenly spaced."""
        line = await self._open()
        for number in range(self.nodes):
            await self._ask(line, Put(orders_key(number), ['{"stop": {"signal": 15, "cause": "request"}}']))
            await asyncio.sleep(0.9 * seconds / self.nodes)

    async def _read_output(self) -> None:
        line, position = await self._open(), 0
        while True:
            reply = await self._ask(line, ReadOutput(position, TIMING.poll))
            position = decode(reply, OutputPage, "the output").position

    # ---- helpers ---------------------------------------------------------------------------------------------------

    async def _open(self) -> _Line:
        self.opened += 1
        line = _Line(self.endpoint, self.key, f"127.0.1.{1 + self.opened // _PER_SOURCE}")
        await line.open()
        return line

    async def _ask(self, line: _Line, request: Request[Any]) -> bytes:
        self.requests += 1
        return await line.ask(request)

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        """Acts at this interval, from a random moment on: nodes do not begin together."""
        due = time.monotonic() + seconds * random.random()  # noqa: S311  no secret
        while True:
            await asyncio.sleep(due - time.monotonic())
            await act()
            due = max(due + seconds, time.monotonic())

    async def _look(self) -> None:
        while True:
            self.most_bytes = max(self.most_bytes, self.process.memory_info().rss)
            await asyncio.sleep(_LOOK_EVERY_S)

    def _processor_time(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


class _Background:
    """Coroutines that go on until it is left; the first failure ends all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> _Background:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def unless_failed(self, work: Coroutine[Any, Any, Any]) -> None:
        """Returns when ``work`` does; raises what one of the coroutines has raised."""
        waiting = asyncio.ensure_future(work)
        await asyncio.wait({waiting, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._failed.done():
            self._failed.result()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)


def main(arguments: Sequence[str]) -> None:
    """Measures; see the module."""
    nodes, ranks, seconds, timeout = arguments
    print(json.dumps(keep_busy(int(nodes), int(ranks), float(seconds), float(timeout))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
