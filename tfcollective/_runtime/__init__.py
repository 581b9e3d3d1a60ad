"""The place of this process in the world: ``init()``, ``shutdown()``, ``rank()``, ``size()`` and related functions.

Nothing here imports or initialises TensorFlow: threads, memory growth and visible devices can be set after ``init()``.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tfcollective._base import log
from tfcollective._base.errors import ConfigError, InvalidArgumentError, StateError
from tfcollective._base.settings import ENGINES, Settings, environ_snapshot, variable
from tfcollective._base.stacks import write_when_asked
from tfcollective._base.tasks import TaskKey
from tfcollective._runtime.choice import choose_engine
from tfcollective._runtime.communicator import Communicator
from tfcollective._runtime.crash import noted_if_permanent
from tfcollective._runtime.ends import ExitCodeHook, end_on_sigterm
from tfcollective._runtime.members import Members
from tfcollective._runtime.process_sets import ProcessSet, global_process_set
from tfcollective._runtime.session import Session

__all__ = [
    "Members",
    "ProcessSet",
    "add_process_set",
    "allgather_bytes",
    "broadcast_bytes",
    "communicator_of_set",
    "cross_rank",
    "cross_size",
    "current",
    "generation",
    "get_communicator",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "members",
    "members_of_set",
    "on_new_world",
    "on_pending",
    "on_shutdown",
    "process_set_ids_and_ranks",
    "publish",
    "rank",
    "remove_process_set",
    "reopen",
    "settings",
    "shutdown",
    "size",
    "solo",
    "start_timeline",
    "stop_timeline",
    "task",
    "training",
    "training_ended",
]

_LOG = log.get_logger(__name__)
_lock = threading.RLock()
_session: Session | None = None
_hooked = False
_ends_alone = False
_shutdown_callbacks: list[Callable[[], None]] = []
_new_world_callbacks: list[Callable[[], None]] = []
_pending_callbacks: list[Callable[[int], None]] = []


@noted_if_permanent()
def init(*, process_sets: Sequence[ProcessSet] | str | None = None, engine: str | None = None) -> None:
    """Joins the world that the launcher has prepared.

    Without a launcher, the environment tells which rank this is: TF_CONFIG, or what SageMaker, Vertex AI, MPI, SLURM or
    Kubernetes write; then rank 0 starts the coordinator. Where nothing does, this process is a world of its own.

    Blocks until all ranks have called it. A second call does nothing; after :func:`shutdown` it joins again. With one
    rank nothing is started and no socket is opened.

    Without a launcher, an error that the program does not catch ends the process with exit code 64 (configuration), 69
    (ranks were missing) or 75 (a rank or the coordinator was lost), and SIGTERM ends process 1 of a container with 143,
    unless the program handles it.

    Args:
        process_sets: sets to register, the same list on all ranks; or "dynamic", Horovod's word for what needs no
            asking here: :func:`add_process_set` works at any time.
        engine: who moves the data: "native", "horovod" or "mpi"; TFCOLLECTIVE_ENGINE says it if None. Horovod and MPI
            learn from their own launchers who is who, or from ours; rank 0 starts no coordinator then.

    Raises:
        RendezvousError: ranks are missing when the start timeout ends; names them.
        ConfigError: a setting or the environment cannot be used, the native library does not load, or the engine is
            unknown or not installed.
        CoordinatorError: rank 0 cannot listen, or who answers in its place does not hold the job key.
        SystemExit: this is a ``ps`` process, and TFCOLLECTIVE_PS_POLICY=exit0 asks to end it; or the node of this rank
            of an elastic job is being preempted.
        InvalidArgumentError: a process set is wrong, or ranks gave different ones.
    """
    wanted = _wanted_sets(process_sets)
    global _session
    with _lock:
        if _session is not None and _session.pid == os.getpid():
            return
        _end_alone()
        loaded = _with_engine(Settings.load(), engine)
        log.configure(loaded.log_level)
        _write_stacks_when_asked(loaded)
        session = _open(loaded)
        session.start()
        _session = session
        _hook_process()
        try:
            for process_set in wanted if session.identity.task.is_trainer else ():
                add_process_set(process_set)
        except BaseException:
            shutdown()
            raise


def _end_alone() -> None:
    """Makes the exit code name the cause of the end, once a process, if none of our launchers watches it."""
    global _ends_alone
    if _ends_alone or variable("task") in environ_snapshot():
        return
    _ends_alone = True
    ExitCodeHook(lambda: None if _session is None else _session.ended_by_peer()).install()
    end_on_sigterm()


def _write_stacks_when_asked(loaded: Settings) -> None:
    """Lets the agent of this process ask for its stacks from now on: it may hang while it joins, too."""
    launched = loaded.identity in ("auto", "launcher")
    if launched and loaded.failure_file is not None:
        try:
            write_when_asked(loaded.failure_file)
        except OSError as error:
            _LOG.warning("this process cannot show its stacks: %s", error)


def _with_engine(loaded: Settings, engine: str | None) -> Settings:
    if engine is None:
        return loaded
    if engine not in ENGINES:
        raise ConfigError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    return replace(loaded, engine=engine)


def _open(loaded: Settings) -> Session:
    chosen = choose_engine(loaded)
    return Session(chosen, chosen.join(), _tell_pending)


def _tell_pending(generation: int) -> None:
    for callback in _pending_callbacks:
        callback(generation)


def _wanted_sets(process_sets: Sequence[ProcessSet] | str | None) -> list[ProcessSet]:
    if process_sets is None or process_sets == "dynamic":
        return []
    if isinstance(process_sets, str):
        raise InvalidArgumentError(f'process_sets: expected a list of ProcessSet or "dynamic", got {process_sets!r}')
    sets = list(process_sets)
    for process_set in sets:
        if not isinstance(process_set, ProcessSet):
            raise InvalidArgumentError(f"process_sets: expected ProcessSet, got {process_set!r}")
    return sets


def shutdown() -> None:
    """Leaves the world. Ranks that still wait for this one get PeerLostError. Runs at exit by itself; does nothing
    when not initialised."""
    _leave_world()


def _leave_world(*, process_ends: bool = False) -> None:
    global _session
    with _lock:
        session, _session = _session, None
        if session is None or session.pid != os.getpid():
            return
        try:
            for callback in _shutdown_callbacks:
                callback()
        finally:
            session.close(process_ends=process_ends)


def reopen(lost: int | None = None) -> None:
    """Joins the next world of an elastic job, in the same process; see :meth:`Session.reopen`. For
    :mod:`tfcollective.elastic`: everything that a rank knows of the world changes."""
    with _lock:
        session = current()
        _check_process(session)
        for callback in _shutdown_callbacks:
            callback()
    session.reopen(lost)  # may take minutes, in which another thread may call shutdown()
    with _lock:
        if _session is not session:
            raise StateError("this process left the job while it waited for the next world")
        for callback in _new_world_callbacks:
            callback()


@contextmanager
def training() -> Iterator[None]:
    """Marks this rank of an elastic job as training while the context is open. A newcomer first joins the next world.
    When the context ends without an error, no world waits for this rank any longer, until it trains again.
    """
    with current().training():
        if current().newcomer:
            reopen()
        yield


@contextmanager
def solo() -> Iterator[None]:
    """See :meth:`Session.solo`. At its end ranks reset what they count together: newcomers did nothing."""
    with current().solo():
        yield
    for callback in (*_shutdown_callbacks, *_new_world_callbacks):
        callback()


def on_new_world(callback: Callable[[], None]) -> None:
    """Runs `callback` at the end of every :func:`reopen`: for what all ranks of a world begin together."""
    _new_world_callbacks.append(callback)


def on_pending(callback: Callable[[int], None]) -> None:
    """Runs `callback` on rank 0, on another thread, with each generation for which the members of an elastic job are to
    come together."""
    _pending_callbacks.append(callback)


def generation() -> int:
    """The number of the world: it grows with each change. 0 without a coordinator."""
    return current().generation


def is_initialized() -> bool:
    """True between :func:`init` and :func:`shutdown`."""
    return _session is not None


def on_shutdown(callback: Callable[[], None]) -> None:
    """Runs `callback` at the start of every :func:`shutdown`: for state that belongs to one world."""
    _shutdown_callbacks.append(callback)


def settings() -> Settings:
    """The settings that ``init()`` read."""
    return current().settings


def task() -> TaskKey:
    """Returns this process's task, for example ``TaskKey("worker", 3)``."""
    return current().identity.task


def rank() -> int:
    """Returns this process's rank in the world, from 0; rank 0 is the chief.

    Raises:
        StateError: not initialised; or this is an auxiliary task, which has no rank.
    """
    return current().placement.rank


def size() -> int:
    """Returns the number of ranks in the world; auxiliary tasks do not count."""
    return current().size


def local_rank() -> int:
    """Returns this process's rank among those of its node."""
    return current().placement.local_rank


def local_size() -> int:
    """Returns the number of ranks on this node."""
    return current().placement.local_size


def cross_rank() -> int:
    """Returns this node's place among the nodes that have a rank with this local rank."""
    return current().placement.cross_rank


def cross_size() -> int:
    """Returns the number of nodes that have a rank with this local rank."""
    return current().placement.cross_size


def publish(info: Mapping[str, object]) -> None:
    """Shows values of this task in ``tfcollective status`` and in the job's report; does nothing without a launcher.

    Args:
        info: JSON values by name; a name that was published before gets the new value.
    """
    current().publish(info)


def training_ended() -> bool:
    """True once rank 0's process has ended, for auxiliary tasks under a launcher. False where that is not known."""
    return current().training_ended()


def start_timeline(file_path: str) -> None:
    """Records what every rank does when; rank 0 writes it to `file_path`, a trace for Perfetto or chrome://tracing.

    All ranks call it, and :func:`stop_timeline` (or shutdown) ends it. ``tfcollective run --timeline FILE`` does the
    same for a whole job.

    Args:
        file_path: the file that rank 0 writes.

    Raises:
        StateError: not initialised, or a timeline is being recorded.
        ConfigError: the file cannot be written.
    """
    current().start_timeline(file_path)


def stop_timeline() -> None:
    """Ends the timeline; rank 0 writes it and shows on stderr who waited for whom. Does nothing without one."""
    current().stop_timeline()


def is_homogeneous() -> bool:
    """True if every node has the same number of ranks."""
    return current().homogeneous


def get_communicator(process_set: ProcessSet | None = None) -> Communicator:
    """The communicator of the world, or of a process set, for collectives over numpy arrays.

    Args:
        process_set: whose ranks take part; all if None.

    Raises:
        StateError: not initialised, or called in a fork of the process that was.
        InvalidArgumentError: the process set is not registered, or this process is not a member.
    """
    session = current()
    _check_process(session)
    return session.communicator_of(members(process_set))


def broadcast_bytes(data: bytes, root: int, name: str, process_set: ProcessSet | None = None) -> bytes:
    """The bytes of the member at place `root`, proved with the job key; see :meth:`SealedExchange.broadcast`."""
    world = get_communicator(process_set)
    return current().sealed.broadcast(world, members(process_set), data, root, name)


def allgather_bytes(data: bytes, name: str, process_set: ProcessSet | None = None) -> list[bytes]:
    """The bytes of all members, in their order, proved with the job key; see :meth:`SealedExchange.allgather`."""
    world = get_communicator(process_set)
    return current().sealed.allgather(world, members(process_set), data, name)


def members(process_set: ProcessSet | None = None, *, outside: bool = False) -> Members:
    """The ranks that a collective with this argument is of; all ranks if None.

    Args:
        process_set: a registered one.
        outside: this process need not be a member.

    Raises:
        InvalidArgumentError: the process set is not registered, or this process is not a member.
    """
    found = current().members_of(process_set)
    if not found.included and not outside:
        ranks = ", ".join(str(member) for member in found.ranks)
        raise InvalidArgumentError(f"process_set: rank {rank()} is not one of its ranks {ranks}")
    return found


def members_of_set(process_set_id: int) -> Members:
    """The process set with this number (0: all ranks); InvalidArgumentError if there is none."""
    return current().members_of_set(process_set_id)


def communicator_of_set(process_set_id: int) -> Communicator:
    """The communicator of the process set with this number (0: all ranks)."""
    return current().communicator_of(members_of_set(process_set_id))


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a process set: its members connect to each other. Returns it.

    All ranks of the world call this, with the same ranks and in the same order, members or not.

    Args:
        process_set: a set, or its ranks.

    Raises:
        InvalidArgumentError: there is such a set already, a rank does not exist, or the ranks disagree.
    """
    session = current()
    _check_process(session)
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    session.process_sets.add(wanted, session.placement.rank, session.placement.size)
    return wanted


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set; operations of it that are under way end with an error. All ranks of the world call this.

    Args:
        process_set: one that :func:`add_process_set` has returned.

    Returns:
        Whether it was a set that can be removed: not the global one, and registered.
    """
    session = current()
    _check_process(session)
    return session.process_sets.remove(process_set, session.placement.size)


def process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of every process set by its number; 0 is that of all ranks."""
    session = current()
    return {session.members.process_set_id: list(session.members.ranks), **session.process_sets.listed()}


def _check_process(session: Session) -> None:
    if session.pid != os.getpid():
        raise StateError("this process is a fork: call tfcollective.init() in the process that communicates")


def current() -> Session:
    """Returns this process's membership in the world. Raises StateError when not initialised."""
    session = _session
    if session is None:
        raise StateError("tfcollective is not initialised: call tfcollective.init() first")
    return session


def _hook_process() -> None:
    """Registers hooks, once a process: leave the world at exit, and tell forks that it is not theirs."""
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(_end)
        os.register_at_fork(after_in_child=_after_fork)


def _end() -> None:
    _leave_world(process_ends=True)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the parent's may be held by a thread that is not here
    if _session is not None:
        _session.forget()
