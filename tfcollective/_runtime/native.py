"""tfcollective's own engine: the coordinator brings the ranks together, the native library connects them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from tfcollective._base.clock import Deadline, on_thread
from tfcollective._base.descriptors import raise_limit
from tfcollective._base.errors import (
    CollectiveAbortedError,
    CoordinatorError,
    PeerLostError,
    StateError,
    UnsupportedError,
)
from tfcollective._base.job_keys import RANKS, derived_key
from tfcollective._base.log import get_logger
from tfcollective._base.settings import Settings, environ_snapshot, hide_tf_config
from tfcollective._base.tasks import PS
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import SINGLE, Placement, World
from tfcollective._control.identity import Identity, discover
from tfcollective._runtime.communicator import (
    Cancellation,
    Communicator,
    CommunicatorOptions,
    Listener,
    NativeCommunicator,
)
from tfcollective._runtime.crash import describe_cause
from tfcollective._runtime.engine import JoinResult, TensorFlowOps, closed_on_error, connect, register
from tfcollective._runtime.members import GLOBAL_SET, Members
from tfcollective._runtime.native_library import load

if TYPE_CHECKING:
    from tfcollective._control.client.client import CoordinatorClient

_Result = TypeVar("_Result")
# As a rule all ranks are connected before this, and the coordinator is not asked.
_QUIET_S = 0.3


def call_watched(
    call: Callable[[], _Result],
    find_lost: Callable[[], tuple[int, str] | None],
    cancel: Callable[[str], None],
    deadline: Deadline,
    *,
    quiet: float = _QUIET_S,
    own_error: float = TIMING.own_error,
    remind: float = TIMING.remind,
) -> _Result:
    """Runs a native call that waits for other ranks on another thread: Ctrl-C ends the wait at once, and so does the
    end of a rank. The native library knows neither, as long as a process has not connected.

    Args:
        call: may block; when the wait ends before it does, it is cancelled, and its end is awaited.
        find_lost: blocks for a while; gives (rank, what happened) once a rank has ended. Called only when ``call``
            takes long.
        cancel: ends ``call``; takes why, for the ranks that are connected already.
        deadline: of ``call`` itself. What ends after it ends because of it, and ``call`` knows who was missing.
        quiet: how long (s) ``call`` may take before the coordinator is asked.
        own_error: how long (s) an error of ``call`` itself is waited for once a rank has ended.
        remind: how long (s) ``call`` may take before people are told.

    Raises:
        PeerLostError: a rank has ended meanwhile.
        Whatever ``call`` raises.
    """
    ended = threading.Event()  # Ctrl-C may come before there is a future
    found: list[tuple[int, str]] = []

    def connect() -> _Result:
        try:
            return call()
        finally:
            ended.set()

    def watch() -> None:
        told, tell_at = False, Deadline.after(remind)
        while not found and not wait([connecting], quiet).done:
            if not told and tell_at.expired():
                told = True
                _LOG.warning(
                    "init() has waited for %.0f s for connections to all other ranks: a firewall may drop what comes "
                    "from other hosts; --port-range names the ports to open",
                    remind,
                )
            lost = _asked(find_lost)
            if lost is not None:
                found.append(lost)
                wait([connecting], own_error)

    try:
        connecting = on_thread(connect, "tfcollective-connect")
        watching = on_thread(watch, "tfcollective-watch")
        wait(cast("list[Future[object]]", [connecting, watching]), return_when=FIRST_COMPLETED)
        if not connecting.done() and not deadline.expired():
            watching.result()
            if not connecting.done():
                raise _lost_while_connecting(*found[0])
        return connecting.result()
    except CollectiveAbortedError as error:
        if not found:
            raise
        raise _lost_while_connecting(*found[0]) from error  # that rank has only heard of it earlier
    except BaseException as error:
        if not ended.is_set():
            cancel(describe_cause(error))
            ended.wait(TIMING.cancelled_connect)
        raise


def _lost_while_connecting(rank: int, what: str) -> PeerLostError:
    return PeerLostError(f"{what} before all ranks were connected", peer=rank)


def _asked(find_lost: Callable[[], tuple[int, str] | None]) -> tuple[int, str] | None:
    try:
        return find_lost()
    except CoordinatorError as error:
        _LOG.debug("cannot ask the coordinator for lost ranks: %s", error)
        return None


_LOOPBACK = "127.0.0.1"
_WATCH_S = 5.0
_LOG = get_logger(__name__)


def _find_lost(client: CoordinatorClient, generation: int) -> tuple[int, str] | None:
    """The rank of a member of this world whose process has ended, and what happened; waits a while for one."""
    from tfcollective._control.messages import FindLost

    lost = client.call(FindLost(generation, _WATCH_S))
    return None if lost.rank is None else (lost.rank, lost.message)


class NativeEngine:
    """See :class:`~tfcollective._runtime.engine.Engine`."""

    tensorflow_ops: TensorFlowOps = "library"

    def __init__(self, settings: Settings, identity: Identity) -> None:
        self._settings = settings
        self._identity = identity
        self._client: CoordinatorClient | None = None
        self._generation = 0

    def join(self) -> JoinResult:
        """Joins the world. A process without a launcher or a list of ranks is a world of its own."""
        identity = self._identity
        if not identity.task.is_trainer:
            client = connect(identity) if identity.launched else None
            return JoinResult(self._settings, identity, None, client=client)
        if identity.coordinator is None:
            return JoinResult(self._settings, identity, SINGLE)
        if not identity.without_launcher:
            return self._join_world()
        from tfcollective._runtime.rendezvous import abandon, arrange

        found = arrange(self._settings, identity)
        self._settings = replace(self._settings, bind_host=found.bind_host)
        self._identity = replace(identity, coordinator=found.endpoint, key=found.key)
        try:
            return self._join_world()
        except BaseException:
            abandon()
            raise

    def _join_world(self) -> JoinResult:
        from tfcollective._control.client.client import AskedToLeaveError, WorldBegunError

        raise_limit()  # a rank may hold several connections to every other one
        self._client = client = connect(self._identity)
        with closed_on_error(client):
            if self._settings.newcomer is None:
                try:
                    return self._enter(client, None, first=self._settings.elastic)
                except AskedToLeaveError as error:
                    _LOG.warning("%s leaves the job gracefully before it has begun: %s", self._identity.task, error)
                    raise SystemExit(0) from None
                except WorldBegunError as error:
                    _LOG.warning("%s: it waits to be taken in", error)
                    # Its launcher has given it its place on its host by this variable.
                    slot = environ_snapshot().get("LOCAL_RANK", "")
                    self._settings = replace(self._settings, newcomer=int(slot) if slot.isdecimal() else 0)
            return self._wait_apart(client, self._settings.newcomer or 0)

    def _wait_apart(self, client: CoordinatorClient, slot: int) -> JoinResult:
        """Returns the place of a rank that has come to a job which trains already: alone, until it is ready to train
        with the others (:meth:`rejoin`). It has the rank and size that it would get now; its local rank is its slot,
        since scripts choose their GPU by it."""
        from tfcollective._control.messages import CountMembers

        others = client.call(CountMembers()).size
        placement = Placement(others, others + 1, slot, slot + 1, 0, 1)
        communicator = connect_alone(self._settings)
        communicator.publish(GLOBAL_SET)
        return JoinResult(self._settings, self._identity, placement, communicator, client)

    def rejoin(self, lost: int | None) -> JoinResult:
        """See :class:`Engine`."""
        if self._client is None or not self._settings.elastic:
            raise UnsupportedError("this job is not elastic: its world does not change (tfcollective run --min-np)")
        return self._enter(self._client, lost)

    def _enter(self, client: CoordinatorClient, lost: int | None, *, first: bool = False) -> JoinResult:
        """Joins the next world of the job."""
        settings, identity = self._settings, self._identity
        listener = self.listen() if identity.world_size > 1 or settings.elastic else None
        with closed_on_error(listener):
            world = register(
                client, settings, identity, "" if listener is None else listener.address, lost, first=first
            )
            formed = time.monotonic()
            self._generation = world.generation
            placement = world.placement(identity.task)
            communicator = None if listener is None else self._connect_world(listener, placement.rank, world)
        tasks = tuple(member.task for member in world.members)
        return JoinResult(
            settings, identity, placement, communicator, client, world.homogeneous, world.generation, tasks, formed
        )

    def _connect_world(self, listener: Listener, rank: int, world: World) -> Communicator:
        members = Members(GLOBAL_SET, tuple(range(len(world.addresses))), rank)
        communicator = self.connect(listener, members, world.addresses)
        communicator.publish(GLOBAL_SET)
        return communicator

    def listen(self) -> Listener:
        """Returns the listener to which peers of this rank connect."""
        settings = self._settings
        host, library = settings.bind_host or _LOOPBACK, load(settings.library)
        return Listener(host, self._identity.node_id, ports=settings.port_range, library=library)

    def connect(self, listener: Listener, members: Members, addresses: Sequence[str]) -> Communicator:
        """Connects the members; the end of a rank, and Ctrl-C, end the wait for them."""
        settings, client = self._settings, self._client
        whole = members.process_set_id == GLOBAL_SET
        library = load(settings.library)
        cancellation = Cancellation(library=library)
        return call_watched(
            lambda: NativeCommunicator.connect(
                listener,
                rank=members.rank,
                addresses=addresses,
                key=_rank_key(self._identity),
                # Strays of another set are refused.
                generation=self._generation if whole else (self._generation << 32) + members.process_set_id,
                world_ranks=None if whole else members.ranks,
                options=_options(settings),
                library=library,
                cancellation=cancellation,
            ),
            lambda: None if client is None else _find_lost(client, self._generation),
            cancellation.request,
            Deadline.after(settings.start_timeout),
        )

    def subset(self, members: Members) -> NativeSubset:
        """See :class:`Engine`."""
        return NativeSubset(self, members)

    def dismiss(self, members: Members) -> None:
        """Does nothing: the members close their communicators, and no more is needed."""


class NativeSubset:
    """See :class:`~tfcollective._runtime.engine.Subset`."""

    def __init__(self, engine: NativeEngine, members: Members) -> None:
        self._engine = engine
        self._members = members
        self._listener = engine.listen() if members.included and members.size > 1 else None
        self.address = "" if self._listener is None else self._listener.address

    def connect(self, addresses: Sequence[str]) -> Communicator | None:
        """See :class:`Subset`."""
        if not self._members.included:
            return None
        if self._listener is None:
            return connect_alone(self._engine._settings)
        return self._engine.connect(self._listener, self._members, addresses)

    def close(self) -> None:
        """See :class:`Subset`."""
        if self._listener is not None:
            self._listener.close()


def connect_alone(settings: Settings) -> Communicator:
    """The communicator of a world of one rank."""
    return NativeCommunicator.alone(options=_options(settings), library=load(settings.library))


def identify(settings: Settings) -> Identity:
    """Returns who this process is. Reads TF_CONFIG and removes it: Estimator and tf.distribute would start servers of
    their own because of it.
    """
    identity = discover(settings, environ_snapshot())
    if identity.task.type == PS:
        _LOG.warning("this process is %s: there is nothing to do for parameter servers, it ends", identity.task)
        raise SystemExit(0)
    if identity.source == "tf_config" and not settings.keep_tf_config:
        hide_tf_config()
    if identity.coordinator is not None and _imports_parents_script():
        raise StateError(
            f"this process was started by {identity.task} itself, and multiprocessing (spawn or forkserver) runs the "
            "script in it once more: put init() under if __name__ == '__main__', where such processes do not call it"
        )
    return identity


def _imports_parents_script() -> bool:
    """True in a child that multiprocessing has spawned, while it imports the program of its parent."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and bool(getattr(process.current_process(), "_inheriting", False))


def _rank_key(identity: Identity) -> bytes:
    """Returns the key that proves the ranks' connections: unlike any other job's, even if it was given the same key."""
    return derived_key(identity.key or b"", RANKS, identity.job_id)


def _options(settings: Settings) -> CommunicatorOptions:
    return CommunicatorOptions(
        connect_timeout=settings.start_timeout,
        op_timeout=settings.op_timeout,
        stall_warning=settings.stall_warning,
        transport=settings.transport,
        nccl=settings.nccl,
        cuda_driver=settings.cuda_driver,
        share_gpus=settings.share_gpus,
        link_probe=settings.link_probe,
    )
