"""This process's place in the world: ``init()``, ``shutdown()``, ``rank()``, ``size()`` and their kin.

Nothing here imports or initialises TensorFlow: threads, memory growth and visible devices can be set after ``init()``.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from tfcollective import log
from tfcollective.communicator import Communicator
from tfcollective.errors import StateError, UnsupportedError
from tfcollective.identity import Identity, discover
from tfcollective.runtime.session import Session, open_session
from tfcollective.settings import Settings, environ_snapshot, hide_tf_config
from tfcollective.tasks import PS, TaskKey
from tfcollective.topology import Placement

__all__ = [
    "cross_rank",
    "cross_size",
    "get_communicator",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "on_shutdown",
    "placement",
    "rank",
    "settings",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "task",
]

_LOG = log.get_logger(__name__)
_lock = threading.RLock()
_session: Session | None = None
_hooked = False
_shutdown_callbacks: list[Callable[[], None]] = []


def init(comm: None = None, process_sets: None = None) -> None:
    """Joins the world that the launcher has prepared.

    Without a launcher, the environment tells which rank this is: TF_CONFIG, or what SageMaker, Vertex AI, MPI, SLURM or
    Kubernetes write; then rank 0 starts the coordinator. Where nothing does, this process is a world of its own.

    Blocks until all ranks have called it. A second call does nothing; after :func:`shutdown` it joins anew. With one
    rank nothing is started and no socket is opened.

    Args:
        comm: not supported; there so that Horovod's call is understood.
        process_sets: likewise.

    Raises:
        RendezvousError: ranks are missing when the start timeout ends; names them.
        ConfigError: a setting or the environment cannot be used, or the native library does not load.
        CoordinatorError: rank 0 cannot listen, or who answers in its place does not hold the job key.
        SystemExit: this is a ``ps`` process, and TFCOLLECTIVE_PS_POLICY=exit0 asks to end it.
        UnsupportedError: an argument was given.
    """
    if comm is not None or process_sets is not None:
        raise UnsupportedError("init: comm and process_sets are not supported yet; all processes form one world")
    global _session
    with _lock:
        if _session is not None and _session.pid == os.getpid():
            return
        loaded = Settings.load()
        if loaded.log_level != "warning":
            log.configure(loaded.log_level)
        session = open_session(loaded, _identify(loaded))
        session.start()
        _session = session
        _hook_process()


def shutdown() -> None:
    """Leaves the world. Ranks that still wait for this one get PeerLostError. Runs at exit by itself; does nothing
    when not initialised."""
    global _session
    with _lock:
        session, _session = _session, None
        if session is None or session.pid != os.getpid():
            return
        try:
            for callback in _shutdown_callbacks:
                callback()
        finally:
            session.close()


def is_initialized() -> bool:
    """True between :func:`init` and :func:`shutdown`."""
    return _session is not None


def on_shutdown(callback: Callable[[], None]) -> None:
    """Runs `callback` at the start of every :func:`shutdown`: for state that belongs to one world."""
    _shutdown_callbacks.append(callback)


def placement() -> Placement:
    """All ranks and sizes at once."""
    return _current().placement


def settings() -> Settings:
    """The settings that ``init()`` read."""
    return _current().settings


def task() -> TaskKey:
    """This process's role, for example ``TaskKey("worker", 3)``."""
    return _current().identity.task


def rank() -> int:
    """This process's rank in the world, from 0; rank 0 is the chief.

    Raises:
        StateError: not initialised; or this is a side task, which has no rank.
    """
    return _current().placement.rank


def size() -> int:
    """How many ranks the world has; a side task is not one of them."""
    return _current().size


def local_rank() -> int:
    """This process's rank among those of its node."""
    return _current().placement.local_rank


def local_size() -> int:
    """How many ranks this node has."""
    return _current().placement.local_size


def cross_rank() -> int:
    """This node's place among the nodes that have a rank with this local rank."""
    return _current().placement.cross_rank


def cross_size() -> int:
    """How many nodes have a rank with this local rank."""
    return _current().placement.cross_size


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records what every rank does when; rank 0 writes it to `file_path`, a trace for Perfetto or chrome://tracing.

    All ranks call it, and :func:`stop_timeline` (or shutdown) ends it. ``tfcollective run --timeline FILE`` does the
    same for a whole job.

    Args:
        file_path: the file that rank 0 writes.
        mark_cycles: there so that Horovod's call is understood; operations here wait for no cycle.

    Raises:
        StateError: not initialised, or a timeline is being recorded.
        ConfigError: the file cannot be written.
    """
    del mark_cycles
    _current().start_timeline(file_path)


def stop_timeline() -> None:
    """Ends the timeline; rank 0 writes it and shows on stderr who waited for whom. Does nothing without one."""
    _current().stop_timeline()


def get_communicator() -> Communicator:
    """The communicator of the world, for collectives over numpy arrays.

    Raises:
        StateError: not initialised, or called in a fork of the process that was.
    """
    session = _current()
    if session.pid != os.getpid():
        raise StateError("this process is a fork: call tfcollective.init() in the process that communicates")
    return session.communicator()


def _identify(loaded: Settings) -> Identity:
    """Who this process is. TF_CONFIG has been understood then and is taken away: Estimator and tf.distribute would
    start servers of their own by it."""
    identity = discover(loaded, environ_snapshot())
    if identity.task.type == PS:
        _LOG.warning("this process is %s: there is nothing to do for parameter servers, it ends", identity.task)
        raise SystemExit(0)
    if identity.source == "tf_config" and not loaded.keep_tf_config:
        hide_tf_config()
    return identity


def _current() -> Session:
    session = _session
    if session is None:
        raise StateError("tfcollective is not initialised: call tfcollective.init() first")
    return session


def _hook_process() -> None:
    """Once a process: leave the world at exit, and let forks know that it is not theirs."""
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the parent's may be held by a thread that is not here
    if _session is not None:
        _session.forget()
