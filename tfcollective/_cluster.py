"""Processes that are kept: functions are sent to all of them again and again, from a notebook for example.

The processes are one job of any launcher, whose function follows the number of the newest call, over a channel to a
coordinator in the submitter, until there are no more. Calls and results are blobs there.
"""

from __future__ import annotations

import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from tfcollective._base import payload
from tfcollective._base.clock import Deadline
from tfcollective._base.errors import ConfigError, CoordinatorError, RendezvousError, StateError, WorkerFailedError
from tfcollective._base.experiment import Trainable
from tfcollective._base.failures import ExceptionRecord, ExitRecord, describe_exception, end_call
from tfcollective._base.job_keys import CLUSTER, derived_key, new_key
from tfcollective._base.log import get_logger
from tfcollective._base.machine.network import own_address
from tfcollective._base.options import seconds
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint
from tfcollective._base.verdict import first_cause
from tfcollective._control.client.channel import Channel, Retry
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.identity import current_node_id, discover
from tfcollective._control.messages import Remove
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.wire.protocol import ServerOptions
from tfcollective._launch import api
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.running.function import make_call
from tfcollective._launch.system.signals import StopSwitch

_LOG = get_logger(__name__)
_NEWEST = "newest"  # the number of the newest call; null: no more will come
_LOOK_S = 1.0
_LOOPBACK = "127.0.0.1"


def cluster(
    task_specs: Mapping[str, Any] | None = None, np: int | None = None, *, launcher: str = "local", **options: Any
) -> Cluster:
    """Processes that wait for functions, and stay: a context manager, whose ``run`` calls one in all of them.

    Args:
        task_specs: a TaskSpec for each role; no auxiliary tasks.
        np: in place of it: the number of processes.
        launcher: the platform. Its nodes have to reach this machine.
        **options: as for :func:`tfcollective.run`.

    Raises:
        ConfigError: what :func:`tfcollective.run` refuses, and auxiliary tasks.
    """
    options = api.with_granted_hosts(launcher, options)
    spec = api.function_job(serve_calls, np=np, task_specs=task_specs, **options)
    if spec.auxiliary_tasks:
        raise ConfigError("task_specs: a cluster has no auxiliary tasks: they follow one job; use tfcollective.run")
    return Cluster(spec, launcher)


class Cluster:
    """A context manager: while it is open, its processes wait for functions. See :func:`cluster`.

    A function that raises on a rank ends that call on all ranks; the processes stay, and the next call finds them in a
    new world. A process that dies ends them all.
    """

    def __init__(self, spec: JobSpec, launcher: str) -> None:
        self._spec, self._launcher = spec, launcher
        self._calls = 0
        self._calling = threading.Lock()  # the processes make one call at a time
        self._open = ExitStack()
        self._job: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Cluster:
        self._switch, self._error, self._ready, self._broken = StopSwitch(), None, False, False
        spec = self._spec
        host = _LOOPBACK if self._launcher == "local" else own_address(spec.network_interfaces)
        name, job_key = f"cluster-{secrets.token_hex(4)}", new_key()
        key = derived_key(job_key, CLUSTER, name)
        start_timeout = TIMING.cluster_start + _allocation_timeout(spec.platform)
        with ExitStack() as opened:
            options = ServerOptions(name, key, workers(1), start_timeout, bind_host=host)
            server = opened.enter_context(CoordinatorServer(options))
            client = CoordinatorClient(server.endpoint, key, name)
            self._client = opened.enter_context(client)
            opened.callback(self._end)
            call = make_call(serve_calls, (str(server.endpoint), name), {}, sys.path)
            job = (replace(spec, call=call, key=job_key),)
            self._job = threading.Thread(target=self._run_job, args=job, name="tfc-cluster", daemon=True)
            self._job.start()
            self._wait_for("ready", start_timeout)
            self._ready = True
            self._open = opened.pop_all()
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes, also those in the middle of a call. A second call does nothing."""
        self._open.close()

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` in every process; the results in rank order.

        What the function returns may be an experiment, as for :func:`tfcollective.run`. Ctrl-C ends the processes.
        May be called from several threads: one call is made after the other.

        Raises:
            WorkerFailedError: it raised on a rank; the message holds that rank's traceback.
            StateError: the processes have ended.
            InvalidArgumentError: the function cannot be pickled.
        """
        with self._calling:
            return self._call(fn, args, kwargs)

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        if self._job is None or not self._job.is_alive():
            raise StateError("the cluster's processes have ended") from self._error
        self._calls += 1
        name = f"call/{self._calls}"
        call = payload.dumps((fn, args, kwargs), f"the function {getattr(fn, '__name__', fn)!r}")
        self._client.put_blob(name, payload.dumps(Call(call, sys.path, self._broken), "a call"))
        self._client.put(_NEWEST, self._calls)
        try:
            found = self._wait_for(f"result/{self._calls}")
        except BaseException:
            self.close()
            raise
        self._client.call(Remove(name))
        answers = [payload.loads(found[task]) for task in self._spec.world]
        self._broken = any(answer.failure is not None for answer in answers)
        if self._broken:
            raise _failure(answers)
        return [answer.value for answer in answers]

    def _wait_for(self, name: str, seconds: float | None = None) -> dict[TaskKey, bytes]:
        """Waits for the values that all processes put there; raises the error that ended them meanwhile."""
        deadline = None if seconds is None else Deadline.after(seconds)
        found: dict[TaskKey, bytes] = {}
        while missing := [task for task in self._spec.world if task not in found]:
            data = self._client.get_blob(f"{name}/{missing[0]}", timeout=_LOOK_S)
            if data is not None:
                found[missing[0]] = data
                self._client.call(Remove(f"{name}/{missing[0]}"))
            elif self._job is None or not self._job.is_alive():
                raise self._error or StateError("the cluster's processes have ended")
            elif deadline is not None and deadline.expired():
                names = tuple(map(str, missing))
                raise RendezvousError(f"not ready within {seconds:g} s: {', '.join(names)}", missing=names)
        return found

    def _run_job(self, spec: JobSpec) -> None:
        try:
            with self._switch.held():
                api.run_function_job(spec, self._launcher)
        except KeyboardInterrupt:
            self._error = StateError("the cluster's processes were stopped")
        except BaseException as error:  # noqa: BLE001  it is raised where a call waits
            self._error = error

    def _end(self) -> None:
        if self._job is None:
            return
        if self._ready:
            with suppress(CoordinatorError):
                self._client.put(_NEWEST, None)
            self._job.join(TIMING.coordinator_lost + TIMING.cluster_call)
        if self._job.is_alive():  # no process is ready yet, or one is not responding
            self._switch.stop(signal.SIGTERM)
            self._job.join(TIMING.cluster_stop + self._spec.grace)
        if self._job.is_alive():  # in the middle of something that cannot be interrupted, such as packing
            _LOG.warning("the cluster's launcher has not ended yet; it ends what it has started as soon as it can")


def _allocation_timeout(platform: object) -> float:
    """Returns how long (s) the platform may take. The job refuses an unusable value, and says why."""
    asked = seconds().read(platform.get("allocation_timeout")) if isinstance(platform, Mapping) else None
    return float(asked) if isinstance(asked, int | float) else TIMING.allocation


def _failure(answers: list[_Answer]) -> WorkerFailedError:
    records = [
        ExitRecord(answer.task, rank, answer.node, answer.pid, 1, None, answer.failure.time, exception=answer.failure)
        for rank, answer in enumerate(answers)
        if answer.failure is not None
    ]
    first = first_cause(records)
    assert first is not None
    assert first.exception is not None
    text = f"rank {first.rank} ({first.task}) raised an exception:\n{first.exception.traceback}"
    return WorkerFailedError(text, failures=[asdict(record) for record in records], first=asdict(first))


# ---- on the ranks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call: function and arguments, pickled; where to look for their modules; whether it wants a new world."""

    payload: bytes
    sys_path: list[str]
    fresh: bool


@dataclass(frozen=True)
class _Answer:
    task: str
    node: str
    pid: int
    value: Any = None
    failure: ExceptionRecord | None = None


def serve_calls(coordinator: str, name: str) -> int:
    """Runs in every process of a cluster: makes one call after the other, and returns how many it has made.

    The submitter's coordinator serves the job ``name`` at ``coordinator``. Its key is derived from the job key, which
    each process has already: a key in the arguments would travel with the function.
    """
    settings = Settings.load()
    identity = discover(settings, environ_snapshot())
    if identity.key is None:
        raise CoordinatorError("only a cluster starts its processes")
    task, node = str(identity.task), current_node_id(settings.node_id)
    key = derived_key(identity.key, CLUSTER, name)
    calls: queue.SimpleQueue[int | CoordinatorError | None] = queue.SimpleQueue()
    made = 0
    with CoordinatorClient(Endpoint.parse(coordinator), key, name) as client:
        listening = (client, calls, settings.failure_file)
        threading.Thread(target=_listen, args=listening, name="tfc-calls", daemon=True).start()
        client.put_blob(f"ready/{task}", b"ready")
        while (number := calls.get()) is not None:  # one comes once the submitter is silent
            if isinstance(number, CoordinatorError):
                raise number
            _make(client, number, task, node)
            made += 1
    return made


def numbers(client: CoordinatorClient) -> Iterator[int | None]:
    """The number of each call to make, once; None, the last, ends the cluster. CoordinatorError when the submitter is
    gone. A number comes twice when the answer to its first delivery was lost."""
    newest = 0
    for entry in Channel(client).follow(_NEWEST, Retry(TIMING.coordinator_lost)):
        if not isinstance(entry.value, int):
            yield None
            return
        if entry.value > newest:
            newest = entry.value
            yield newest


def _listen(
    client: CoordinatorClient, calls: queue.SimpleQueue[int | CoordinatorError | None], failure_file: str | None
) -> None:
    """Passes the calls on; after the last one, ends this process even in the middle of a call."""
    number: int | None = 0
    try:
        for number in numbers(client):
            calls.put(number)
    except CoordinatorError as error:
        calls.put(error)
    if number is None:
        time.sleep(TIMING.cluster_call)  # a call that ends by itself meanwhile ends the process in order
        if failure_file is not None:
            end_call(failure_file)  # its result is not needed any longer
        os._exit(0)


def _make(client: CoordinatorClient, number: int, task: str, node: str) -> None:
    from tfcollective import _runtime as runtime

    try:
        call: Call = payload.loads(client.get_blob(f"call/{number}", timeout=TIMING.poll) or b"")
        if call.fresh and runtime.is_initialized():
            runtime.shutdown()  # the world of a call that failed
        sys.path[:0] = [place for place in call.sys_path if place not in sys.path]
        fn, args, kwargs = payload.loads(call.payload)
        value = fn(*args, **kwargs)
        answer = _Answer(task, node, os.getpid(), value.train() if isinstance(value, Trainable) else value)
        reply = payload.dumps(answer, f"the result of {task}")
    # A call that ended its process with code 0 would leave the submitter, and the other ranks, waiting for its result.
    except (Exception, SystemExit) as error:  # noqa: BLE001  the submitter gets it
        failure = describe_exception(error, now=time.monotonic())
        reply = payload.dumps(_Answer(task, node, os.getpid(), failure=failure), "a failure")
        with suppress(Exception):
            runtime.shutdown()  # the others learn of it in their collectives
    client.put_blob(f"result/{number}/{task}", reply)
