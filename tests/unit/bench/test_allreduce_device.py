"""bench allreduce --device cuda, on (stand-in) GPUs and without any."""

from __future__ import annotations

import builtins
import ctypes
import json
import sys
import types
from typing import Any

import numpy as np
import pytest
from standin import GpuArray, cuda, host, options

from tfcollective._base.errors import UnsupportedError
from tfcollective._cli import main
from tfcollective._runtime.communicator import NativeCommunicator
from tfcollective_bench.allreduce import device as bench
from tfcollective_bench.allreduce.device import DeviceRow, device_table, measure_device, overheads


class StandinDevice:
    title = "GPU 0 (Stand-in)"

    def full(self, count: int, dtype: str, value: float) -> GpuArray:
        return GpuArray(np.full(count, value, dtype))

    def wrong(self, array: GpuArray, value: float) -> int:
        return int((host(array) != value).sum())

    def synchronize(self) -> None:
        cuda().standin_synchronize_memory(None)

    def nccl(self, world: NativeCommunicator) -> Any:
        def copy(source: GpuArray, target: GpuArray) -> None:
            values = host(source)
            ctypes.memmove(target.__cuda_array_interface__["data"][0], values.ctypes.data, values.nbytes)

        return copy


@pytest.fixture(autouse=True)
def _fresh_standin() -> Any:
    cuda().standin_reset()
    yield
    cuda().standin_reset()


def test_every_size_is_measured_and_checked():
    with NativeCommunicator.alone(options=options()) as world:
        rows = measure_device(world, StandinDevice(), [4, 4096, 1 << 21], dtype="float32", rounds=2, iterations=3)
    assert [(row.nbytes, row.count, row.wrong) for row in rows] == [(4, 1, 0), (4096, 1024, 0), (1 << 21, 1 << 19, 0)]
    assert all(row.out_of_place > 0 and row.in_place > 0 and row.nccl > 0 for row in rows)


def test_wrong_results_are_counted():
    class Forgetful(StandinDevice):
        def wrong(self, array: GpuArray, value: float) -> int:
            return super().wrong(array, value + 1)

    with NativeCommunicator.alone(options=options()) as world:
        (row,) = measure_device(world, Forgetful(), [40], dtype="float64", rounds=1, iterations=1)
    assert row.wrong == 10  # five out of place, five in place


def row(nbytes: int, ours: float, nccl: float, ranks: int = 1) -> DeviceRow:
    return DeviceRow(nbytes, nbytes // 4, ours, ours, nccl, 0, ranks)


def test_the_table_has_the_columns_of_nccl_tests():
    head, line = device_table([row(1 << 20, 2e-3, 1e-3, ranks=4)], "float32").splitlines()
    assert head.split()[:9] == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]
    assert line.split()[:9] == ["1048576", "262144", "float32", "sum", "-1", "2000.00", "0.52", "0.79", "0"]
    assert line.split()[-3:] == ["1000.00", "1000.00", "100.00"]


@pytest.mark.parametrize(
    ("rows", "verdicts"),
    [
        ([row(4, 9e-6, 1e-6), row(64 << 20, 1.01e-3, 1e-3)], ["reached", "reached"]),
        ([row(4, 12e-6, 1e-6), row(64 << 20, 1.03e-3, 1e-3)], ["MISSED", "MISSED"]),
        ([row(4, 2e-6, 1e-6)], ["reached"]),
    ],
)
def test_what_must_hold_is_said(rows: list[DeviceRow], verdicts: list[str]):
    assert [line.partition(":")[0] for line in overheads(rows)] == verdicts


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without_cupy(name: str, *more: Any) -> Any:
        if name.partition(".")[0] == "cupy":
            raise ImportError("No module named 'cupy'")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without_cupy)
    with pytest.raises(UnsupportedError, match="cupy-cuda12x or cupy-cuda13x"):
        bench.CupyDevice()


def test_a_cupy_without_nccl_is_said(monkeypatch: pytest.MonkeyPatch):
    for name in ("cupy", "cupy.cuda", "cupy.cuda.nccl"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["cupy.cuda"].nccl = sys.modules["cupy.cuda.nccl"]
    sys.modules["cupy.cuda.nccl"].available = False
    with pytest.raises(UnsupportedError, match="CuPy has not found it"):
        bench.CupyDevice()


def test_the_command_prints_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(bench, "CupyDevice", StandinDevice)
    monkeypatch.setenv("TFCOLLECTIVE_NCCL", str(options().nccl))
    monkeypatch.setenv("TFCOLLECTIVE_CUDA_DRIVER", str(options().cuda_driver))
    arguments = ["bench", "allreduce", "--device", "cuda", "--sizes", "4,1K", "--rounds", "1", "--iterations", "2"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == StandinDevice.title
    assert "a call costs" in printed
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["nbytes"] for one in found["rows"]] == [4, 1024]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "2"], "-np does not go with --device cuda"),
        (["--out", "somewhere"], "--out does not go with --device cuda"),
        (["--dtype", "bfloat16"], "--dtype: expected one of float16, float32"),
    ],
)
def test_what_does_not_go_with_it(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "allreduce", "--device", "cuda", *arguments]) == 64
    assert message in capsys.readouterr().err
