"""A process of its own: init() without a launcher."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import tfcollective
from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError, StateError

QUESTIONS = ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]


@pytest.fixture
def single() -> Iterator[None]:
    tfcollective.init()
    yield
    tfcollective.shutdown()


@pytest.mark.parametrize("name", [*QUESTIONS, "current", "settings", "get_communicator"])
def test_before_init_the_error_says_what_to_call(name: str) -> None:
    assert not tfcollective.is_initialized()
    with pytest.raises(StateError, match=r"call tfcollective.init\(\) first"):
        getattr(runtime, name)()


def test_a_world_of_one(single: None) -> None:
    assert [getattr(tfcollective, name)() for name in QUESTIONS] == [0, 1, 0, 1, 0, 1]
    assert tfcollective.is_initialized()


def test_twice_is_once_and_again_after_shutdown(single: None) -> None:
    tfcollective.init()
    session = runtime._session
    tfcollective.init()
    assert runtime._session is session
    tfcollective.shutdown()
    tfcollective.shutdown()
    assert not tfcollective.is_initialized()
    tfcollective.init()
    assert runtime._session is not session


def test_nothing_is_started() -> None:
    # In a process of its own: threads and descriptors that other tests have left may go at any time.
    code = (
        "import os, tfcollective; seen = lambda: [len(os.listdir(f'/proc/self/{name}')) for name in ('task', 'fd')]; "
        "print(seen()); tfcollective.init(); print(seen())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    before, after = done.stdout.splitlines()
    assert before == after


def test_the_communicator_is_made_when_asked_for(single: None) -> None:
    world = runtime.get_communicator()
    assert world is runtime.get_communicator()
    assert float(world.allreduce(2.0)) == 2.0
    tfcollective.shutdown()
    assert world.closed


def test_it_keeps_to_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFCOLLECTIVE_OP_TIMEOUT", "7")
    monkeypatch.setenv("TFCOLLECTIVE_NCCL", "/nowhere")
    tfcollective.init()
    options = runtime.get_communicator().options
    assert (options.op_timeout, options.nccl) == (7.0, "/nowhere")
    tfcollective.shutdown()


def test_callbacks_run_at_shutdown() -> None:
    calls: list[bool] = []
    runtime.on_shutdown(lambda: calls.append(tfcollective.is_initialized()))
    tfcollective.init()
    tfcollective.shutdown()
    runtime._shutdown_callbacks.pop()
    assert calls == [False]


def test_common_counts_begin_anew_after_solo_work(single: None) -> None:
    calls: list[str] = []
    runtime.on_shutdown(lambda: calls.append("names"))
    runtime.on_new_world(lambda: calls.append("steps"))
    with runtime.solo():
        assert runtime.get_communicator().allreduce(np.ones(2))[0] == 1
        assert calls == []
    runtime._shutdown_callbacks.pop()
    runtime._new_world_callbacks.pop()
    assert calls == ["names", "steps"]


def test_a_failing_callback_still_closes_the_world(single: None) -> None:
    world = runtime.get_communicator()
    runtime.on_shutdown([].pop)
    with pytest.raises(IndexError):
        tfcollective.shutdown()
    runtime._shutdown_callbacks.pop()
    assert world.closed


def test_a_shutdown_gives_back_what_the_world_had(single: None) -> None:
    world = weakref.ref(runtime.get_communicator())
    session = runtime._session
    assert session is not None
    gc.disable()  # it would find the communicator sooner or later
    try:
        tfcollective.shutdown()
        assert world() is None
    finally:
        gc.enable()
    with pytest.raises(StateError, match="has left"):
        session.communicator()


def test_half_a_launcher_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFCOLLECTIVE_COORDINATOR", "127.0.0.1:1")
    with pytest.raises(ConfigError):
        tfcollective.init()
    assert not tfcollective.is_initialized()


def test_from_another_thread() -> None:
    thread = threading.Thread(target=tfcollective.init)
    thread.start()
    thread.join()
    assert tfcollective.size() == 1
    tfcollective.shutdown()


def test_a_fork_keeps_its_rank_without_communicating(single: None) -> None:
    runtime.get_communicator()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, f"rank {tfcollective.rank()} ".encode())
            runtime.get_communicator()
        except StateError as error:
            os.write(write_end, str(error).encode())
        finally:
            tfcollective.shutdown()
            os._exit(0)
    os.waitpid(child, 0)
    text = os.read(read_end, 4096).decode()
    assert text.startswith("rank 0 ")
    assert "fork" in text
    np.testing.assert_array_equal(runtime.get_communicator().allreduce([1.0]), [1.0])
    os.close(read_end)
    os.close(write_end)


def test_init_imports_neither_numpy_nor_tensorflow() -> None:
    code = (
        "import sys, tfcollective; tfcollective.init(); tfcollective.size(); "
        "print([m for m in ('numpy', 'tensorflow', 'keras', 'urllib3', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
