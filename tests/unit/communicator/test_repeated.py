"""A repeated all-reduce uses a prepared call, with the same results and errors."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from tfcollective._base.errors import InvalidArgumentError, StateError, UnsupportedError
from tfcollective._runtime import communicator as c
from tfcollective._runtime.communicator import NativeCommunicator


@pytest.fixture
def world() -> NativeCommunicator:
    with NativeCommunicator.alone() as made:
        yield made


def twice(world: NativeCommunicator, array: object, **settings: object) -> np.ndarray:
    """The result of the second of two equal calls."""
    world.allreduce(array, c.Sum, **settings)
    return world.allreduce(array, c.Sum, **settings)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint16"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3), (4097,)])
def test_new_arrays_of_the_same_kind(world: NativeCommunicator, dtype: str, shape: tuple[int, ...]) -> None:
    for step in range(4):
        array = (np.arange(np.prod(shape, dtype=int)) % 7 + step).reshape(shape).astype(dtype)
        before = array.copy()
        got = world.allreduce(array, c.Sum, postscale=2.0)
        assert got.dtype == array.dtype and got.shape == array.shape and got is not array
        np.testing.assert_array_equal(got, before * 2)
        np.testing.assert_array_equal(array, before)


def test_bool_and_bfloat16(world: NativeCommunicator) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(5).astype(ml_dtypes.bfloat16)
    for _ in range(3):
        np.testing.assert_array_equal(world.allreduce(array, c.Max), array)
        np.testing.assert_array_equal(world.allreduce(array == 2, c.Max), array == 2)


def test_settings_tell_calls_apart(world: NativeCommunicator) -> None:
    array = np.arange(4.0)
    for _ in range(3):
        for prescale in (1.0, 2.0):
            for postscale in (1.0, 4.0):
                for op in (c.Sum, c.Average, c.Max, 1):
                    got = world.allreduce(array, op, prescale=prescale, postscale=postscale, name="loss")
                    np.testing.assert_array_equal(got, array * prescale * postscale)


def test_out_in_place_and_overlap(world: NativeCommunicator) -> None:
    memory = np.arange(10.0)
    for _ in range(3):
        memory[:] = np.arange(10.0)
        assert world.allreduce(memory, c.Sum, postscale=2.0, out=memory) is memory
        np.testing.assert_array_equal(memory, 2 * np.arange(10.0))
        memory[:] = np.arange(10.0)
        world.allreduce(memory[:6], c.Sum, postscale=2.0, out=memory[3:9])
        np.testing.assert_array_equal(memory[3:9], 2 * np.arange(6.0))
        memory[:] = np.arange(10.0)
        world.allreduce(memory[3:9], c.Sum, postscale=2.0, out=memory[:6])
        np.testing.assert_array_equal(memory[:6], 2 * np.arange(3.0, 9.0))


def test_what_needs_a_copy_still_gets_it(world: NativeCommunicator) -> None:
    plain = np.arange(6.0).reshape(2, 3)
    read_only = plain.copy()
    read_only.flags.writeable = False
    big_endian = plain.astype(">f8")
    for array in (plain, plain.T, plain[:, ::2], np.asfortranarray(plain), read_only, big_endian, plain.tolist()):
        got = twice(world, array)
        np.testing.assert_array_equal(got, array)
        assert got.dtype.isnative


def test_errors_stay_the_same(world: NativeCommunicator) -> None:
    array = np.ones(3)
    twice(world, array, name="x")
    read_only = np.ones(3)
    read_only.flags.writeable = False
    for out in (np.ones(4), np.ones(3, "float32"), read_only, np.ones(6)[::2], [0.0, 0.0, 0.0]):
        with pytest.raises(InvalidArgumentError, match="out"):
            world.allreduce(array, c.Sum, name="x", out=out)
    with pytest.raises(InvalidArgumentError, match="op"):
        world.allreduce(array, [1], name="x")
    with pytest.raises(InvalidArgumentError, match="timeout"):
        world.allreduce(array, c.Sum, name="x", timeout=-1)
    with pytest.raises(UnsupportedError):
        world.allreduce(np.ones(3, "complex64"), c.Sum, name="x")
    np.testing.assert_array_equal(world.allreduce(array, c.Sum, name="x"), array)


def test_closed_and_forked_are_refused() -> None:
    world = NativeCommunicator.alone()
    array = np.ones(3)
    twice(world, array)
    child = os.fork()
    if child == 0:
        try:
            world.allreduce(array, c.Sum)
        except StateError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    world.close()
    with pytest.raises(StateError, match="closed"):
        world.allreduce(array, c.Sum)


def test_more_kinds_than_are_kept(world: NativeCommunicator) -> None:
    for _ in range(2):
        for count in range(1, 150):
            np.testing.assert_array_equal(world.allreduce(np.arange(count), c.Sum), np.arange(count))


def test_threads_do_not_mix_their_arrays(world: NativeCommunicator) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for step in range(300):
            array = np.full(7, number * 1000 + step)
            if not np.array_equal(world.allreduce(array, c.Sum), array):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
