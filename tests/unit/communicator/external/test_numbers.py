"""The arithmetic beside the reduction: what the native engine does, on numpy arrays."""

import numpy as np
import pytest

import tfcollective
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime.communicator import NativeCommunicator
from tfcollective._runtime.engines.numbers import finished, on_the_wire, wire_op


def test_types_unknown_to_engines_travel_widened():
    wires = {"float16": "float32", "int8": "int32", "uint16": "int32", "uint32": "int64", "bool": "uint8"}
    wires |= {name: name for name in ("float32", "float64", "int32", "int64", "uint8")}
    for name, wire in wires.items():
        assert on_the_wire(np.ones(2, name), 1.0).dtype == wire
        back = finished(np.ones(2, wire), np.dtype(name), 1.0, 1)
        assert back.dtype == name


def test_integers_wrap_where_their_type_does():
    assert finished(np.array([200, -200], np.int32), np.dtype("int8"), 1.0, 1).tolist() == [-56, 56]


def test_averages_of_integers_do_not_wrap():
    for name in ("int8", "uint8", "int32", "uint32"):
        largest = np.iinfo(name).max
        wire = on_the_wire(np.full(2, largest, name), 1.0, tfcollective.Average)
        assert wire.dtype == np.int64
        assert finished(wire * 3, np.dtype(name), 1.0, 3).tolist() == [largest] * 2
        assert finished(wire * 3, np.dtype(name), 2.0, 3).tolist() == [largest] * 2


def test_integers_divide_toward_zero_and_scale_toward_zero():
    assert finished(np.array([-9, 9, -1], np.int32), np.dtype("int32"), 1.0, 2).tolist() == [-4, 4, 0]
    assert on_the_wire(np.array([-9, 9], np.int32), 0.5).tolist() == [-4, 4]
    assert finished(np.array([2**62], np.int64), np.dtype("int64"), 4.0, 1).tolist() == [2**63 - 1]
    assert finished(np.array([-(2**62)], np.int64), np.dtype("int64"), 4.0, 1).tolist() == [-(2**63)]


def test_half_floats_are_rounded_once():
    third = finished(np.array([1.0], np.float32), np.dtype("float16"), 1.0, 3)
    assert third.tolist() == [float(np.float16(1 / 3))]


@pytest.mark.parametrize("native_op", [tfcollective.Sum, tfcollective.Min, tfcollective.Max, tfcollective.Product])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int32", "int64", "uint8"])
def test_the_native_engine_agrees(native_op, dtype):
    world = NativeCommunicator.alone()
    values = (np.arange(-4, 5) * 3).astype(dtype)
    expected = world.allreduce(values, native_op, prescale=0.5, postscale=3.0)
    got = finished(on_the_wire(values, 0.5), values.dtype, 3.0, 1)
    np.testing.assert_array_equal(got, expected)


def test_bools():
    assert wire_op(tfcollective.Sum, "bool") == tfcollective.Max
    assert wire_op(tfcollective.Product, "bool") == tfcollective.Min
    for call in (
        lambda: wire_op(tfcollective.Average, "bool"),
        lambda: on_the_wire(np.array([True]), 2.0),
        lambda: finished(np.array([1], np.uint8), np.dtype(bool), 2.0, 1),
        lambda: wire_op(tfcollective.Max, "uint64"),
    ):
        with pytest.raises(UnsupportedError):
            call()
