"""TensorFlow's kernels on GPUs, as far as a TensorFlow without CUDA goes: they compile for this version, this version
has every symbol that they need, and run on the processor over stand-ins for the CUDA driver and NCCL. What does not run
here is one line: asking TensorFlow for its CUDA stream."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from standin import ROOT, cuda, options

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import Settings
from tfcollective._runtime import native_library as _native
from tfcollective._runtime.communicator import Average, Listener, NativeCommunicator, Sum
from tfcollective._runtime.native_library import tf_gpu
from tfcollective.tensorflow import _gpu_kernels as gpu_kernels
from tfcollective.tensorflow._ops import LIBRARY_NAME

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(1200),  # TensorFlow's headers take a compiler 10 s, and many times that on a busy machine
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

KEY = b"0123456789abcdef"
STANDIN_DEVICE = ROOT / "tests" / "native" / "tf_gpu_standin"
FIRST_PROCESS_SET = 70
OPS = (
    "TfcollectiveAllreduce",
    "TfcollectiveGroupedAllreduce",
    "TfcollectiveBroadcast",
    "TfcollectiveReducescatter",
    "TfcollectiveBucketStart",
    "TfcollectiveBucketDone",
)


def core() -> Path:
    return _native.load(Settings.load().library).path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the kernels for GPUs, and with those that take the processor for one. As in a wheel, the core
    lies above."""
    folder = tmp_path_factory.mktemp("kernels")
    tensorflow = gpu_kernels.tensorflow_folder()
    tf_gpu.compile_kernels(tensorflow, core(), folder / "tf_gpu.so")
    quick = replace(tensorflow, flags=(*tensorflow.flags, "-O0"))
    tf_gpu.compile_kernels(quick, core(), folder / "standin.so", device=STANDIN_DEVICE)
    return folder


def symbols(library: Path, kind: str) -> set[str]:
    listed = subprocess.run(["nm", "-D", kind, str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines()}


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_this_tensorflow_has_every_needed_symbol(built: Path) -> None:
    framework = gpu_kernels.tensorflow_folder().path / "libtensorflow_framework.so.2"
    listed = subprocess.run(["ldd", str(framework)], capture_output=True, text=True, check=True).stdout
    system = [Path(path) for path in re.findall(r"/\S*lib(?:c|m|stdc\+\+|gcc_s|pthread)\.so\.\d+", listed)]
    assert len(system) >= 3, listed
    exported = set().union(*(symbols(library, "--defined-only") for library in (framework, core(), *system)))
    command = ["nm", "-D", "--undefined-only", str(built / "tf_gpu.so")]
    undefined = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    needed = {line.split()[-1].partition("@")[0] for line in undefined if line.split()[-2] == "U"}
    assert {"tfc_device_run", "tfc_device_join"} <= needed
    assert any("platform_specific_handle" in name or "OpKernelContext" in name for name in needed)
    assert sorted(needed - exported) == []


def test_they_load_beside_those_of_the_processor(built: Path) -> None:
    from tensorflow.python.framework import kernels

    load(built)
    tf.load_op_library(str(built / "tf_gpu.so"))  # binds every symbol at once

    def places(op: str) -> set[tuple[str, str]]:
        return {(kernel.device_type, kernel.label) for kernel in kernels.get_registered_kernels_for_op(op).kernel}

    for op in OPS:
        assert {("GPU", ""), ("CPU", "")} <= places(op), op
    assert places("TfcollectiveBarrier") == {("CPU", "")}


# ---- the kernels themselves, with the processor for a GPU ----


@pytest.fixture
def ops(built: Path) -> Iterator[object]:
    cuda().standin_reset()
    cuda().standin_set(b"host_is_gpu", 1)
    module = load(built)
    yield module
    cuda().standin_reset()


_loaded: list[object] = []


def load(built: Path) -> object:
    """Once a process: kernels cannot be registered twice."""
    if not _loaded:
        _loaded.append(tf.load_op_library(str(core().parent / LIBRARY_NAME)))
        tf.load_op_library(str(built / "standin.so"))
    return _loaded[0]


class Worlds:
    """Ranks of one world in this process, each with a number by which the kernels find it."""

    def __init__(self, size: int, **changes: object) -> None:
        listeners = [Listener("127.0.0.1", "node") for _ in range(size)]
        addresses = [listener.address for listener in listeners]
        self.communicators: list[NativeCommunicator] = [None] * size  # type: ignore[list-item]

        def connect(rank: int) -> None:
            more = {name: value[rank] if isinstance(value, list) else value for name, value in changes.items()}
            given = options(**{"share_gpus": True, **more})
            made = NativeCommunicator.connect(listeners[rank], rank=rank, addresses=addresses, key=KEY, options=given)
            made.publish(FIRST_PROCESS_SET + rank)
            self.communicators[rank] = made

        self._together(connect)

    def _together(self, work: object) -> None:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(self.communicators))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all(self.communicators)

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        self._together(lambda rank: self.communicators[rank].close(5))
        for rank, communicator in enumerate(self.communicators):
            communicator.withdraw(FIRST_PROCESS_SET + rank)


def graph() -> tuple[object, object]:
    made = tf.Graph()
    return made, made._kernel_label_map(dict.fromkeys(OPS, "standin"))


def session_of(made: object) -> object:
    # Where the processor stands in for a GPU, what waits for it keeps a thread of TensorFlow.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
    return tf.compat.v1.Session(graph=made, config=config)


def run(made: object, fetches: object) -> object:
    with session_of(made) as session:
        return session.run(fetches)


def values(rank: int, shape: tuple[int, ...]) -> np.ndarray:
    return ((np.arange(np.prod(shape, dtype=int)) + rank) % 5).reshape(shape).astype(np.float32)


def start(ops: object, rank: int, tensors: list[object], **more: object) -> object:
    given = {"plan": "plan", "signature": "the same", "num_buckets": 2, "bucket": 0, "op": int(Sum), **more}
    return ops.tfcollective_bucket_start(tensors, process_set_id=FIRST_PROCESS_SET + rank, **given)


@pytest.mark.parametrize("without_nccl", [False, True])
def test_buckets_are_summed(ops: object, without_nccl: bool) -> None:
    shapes = [(3, 4), (), (0, 2), (1000,)]
    nccl = {"nccl": [options().nccl, "/nowhere/libnccl.so.2"]} if without_nccl else {}
    with Worlds(2, **nccl):
        made, labels = graph()
        with made.as_default(), labels:
            results = []
            for rank in range(2):
                inputs = [tf.constant(values(rank, shape)) for shape in shapes]
                handles = [start(ops, rank, inputs, bucket=bucket) for bucket in range(2)]
                with tf.control_dependencies(handles):
                    results += [ops.tfcollective_bucket_done(h, T=tf.float32, N=len(shapes)) for h in handles]
        for _step in range(3):
            for bucket in run(made, results):
                for shape, got in zip(shapes, bucket):
                    np.testing.assert_array_equal(got, values(0, shape) + values(1, shape))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64"])
def test_collectives_of_one_tensor_and_of_several(ops: object, dtype: str) -> None:
    with Worlds(2):
        made, labels = graph()
        with made.as_default(), labels:
            results = []
            for rank in range(2):
                common = {"process_set_id": FIRST_PROCESS_SET + rank}
                tensor = tf.cast(values(rank, (5, 2)), dtype)
                several = [tensor, tf.cast(values(rank, (7,)), dtype)]
                got = [
                    ops.tfcollective_allreduce(tensor * 1, op=int(Sum), tensor_name="a", **common),
                    *ops.tfcollective_grouped_allreduce(several, op=int(Sum), tensor_name="g", **common),
                    ops.tfcollective_broadcast(tensor, root_rank=1, tensor_name="b", **common),
                    ops.tfcollective_reducescatter(tensor, op=int(Sum), tensor_name="r", **common),
                ]
                results.append([tf.cast(one, tf.float32) for one in got])
        total, last = values(0, (5, 2)) + values(1, (5, 2)), values(1, (5, 2))
        for rank, (one, *group, broadcast, rows) in enumerate(run(made, results)):
            np.testing.assert_array_equal(one, total)
            np.testing.assert_array_equal(group[0], total)
            np.testing.assert_array_equal(group[1], values(0, (7,)) + values(1, (7,)))
            np.testing.assert_array_equal(broadcast, last)
            np.testing.assert_array_equal(rows, total[:3] if rank == 0 else total[3:])


def test_nccl_did_the_work(ops: object) -> None:
    cuda().standin_calls.restype = ctypes.c_long
    with Worlds(1):
        made, labels = graph()
        with made.as_default(), labels:
            result = ops.tfcollective_allreduce(
                tf.ones([4]), op=int(Average), tensor_name="a", process_set_id=FIRST_PROCESS_SET
            )
        before = cuda().standin_calls(b"cuStreamWaitEvent")
        np.testing.assert_array_equal(run(made, result), np.ones(4))
        # Our stream waits for the caller's, and the caller's for ours. No other stream waits.
        assert cuda().standin_calls(b"cuStreamWaitEvent") == before + 2


def test_ranks_with_different_plans_get_an_error(ops: object) -> None:
    with Worlds(2):
        made, labels = graph()
        with made.as_default(), labels:
            handles = [start(ops, rank, [tf.ones([3])], signature=f"kernel of rank {rank}") for rank in range(2)]
            with tf.control_dependencies(handles):
                done = [ops.tfcollective_bucket_done(handle, T=tf.float32, N=1) for handle in handles]
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"MISMATCH.*the ranks disagree on") as raised:
            run(made, done)
        assert "kernel of rank 0" in str(raised.value)
        assert "kernel of rank 1" in str(raised.value)


def test_an_error_of_nccl_reaches_tensorflow(ops: object) -> None:
    cuda().standin_set(b"fail:ncclAllReduce", 1)
    with Worlds(1):
        made, labels = graph()
        with made.as_default(), labels:
            result = ops.tfcollective_allreduce(
                tf.ones([4]), op=int(Sum), tensor_name="a", process_set_id=FIRST_PROCESS_SET
            )
        with pytest.raises(tf.errors.InternalError, match="DEVICE: rank 0, GPU 0"):
            run(made, result)


def test_unfinished_steps_leave_at_most_two_buckets(ops: object) -> None:
    with Worlds(1):
        made, labels = graph()
        with made.as_default(), labels:
            handle = start(ops, 0, [tf.ones([3])])
            # Buckets are launched one after the other: where this one is done, the one before it is launched, and only
            # such are dropped.
            last = ops.tfcollective_bucket_done(start(ops, 0, [tf.ones([1])], bucket=1), T=tf.float32, N=1)
            chosen = tf.compat.v1.placeholder(tf.int64, [])
            done = ops.tfcollective_bucket_done(chosen, T=tf.float32, N=1)
        with session_of(made) as session:
            handles = []
            for _step in range(5):
                handles.append(session.run(handle))
                session.run(last)
            assert len(set(handles)) == 5
            for old in (handles[0], handles[4] + 2):
                with pytest.raises(tf.errors.FailedPreconditionError, match="no started bucket with the handle"):
                    session.run(done, {chosen: old})
            np.testing.assert_array_equal(session.run(done, {chosen: handles[4]})[0], np.ones(3))


# ---- finding and making them ----


def test_a_missing_compiler_gives_advice(tmp_path: Path) -> None:
    folder = gpu_kernels.tensorflow_folder()
    with pytest.raises(ConfigError, match=r"no compiler was found \(no-such-compiler\)\. Install g\+\+") as raised:
        tf_gpu.compile_kernels(folder, core(), tmp_path / "x.so", compilers=("no-such-compiler",))
    assert "TFCOLLECTIVE_GPU_KERNELS=0" in str(raised.value)


def fake_compiler(folder: Path, body: str) -> str:
    """A program that does `body` in place of compiling; in it, $OUTPUT is the file to make."""
    made = folder / "fake-compiler"
    made.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nOUTPUT=$2\n' + body)
    made.chmod(0o700)
    return str(made)


def compile_with(compiler: str, output: Path) -> None:
    tf_gpu.compile_kernels(tf_gpu.TensorflowFolder("1.2.3", Path("/nowhere")), core(), output, compilers=(compiler,))


def test_ranks_that_come_at_once_compile_once(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "cache" / "kernels.so"
    compiler = fake_compiler(tmp_path, f"echo compiled >> {log}\necho kernels > $OUTPUT\n")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: compile_with(compiler, output), range(4)))
    assert log.read_text().split() == ["compiled"]
    assert output.read_text() == "kernels\n"


def test_what_killed_processes_have_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kernels.so.4711.0a1b2c3d").write_text("half")
    compile_with(fake_compiler(tmp_path, "echo kernels > $OUTPUT\n"), tmp_path / "kernels.so")
    assert sorted(path.name for path in tmp_path.glob("kernels*")) == ["kernels.so", "kernels.so.lock"]


def test_a_killed_compiler_is_no_kernel(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"says:\nnothing; its exit code is -9"):
        compile_with(fake_compiler(tmp_path, "echo half > $OUTPUT\nkill -9 $$\n"), tmp_path / "kernels.so")
    assert [path.name for path in tmp_path.glob("kernels*")] == ["kernels.so.lock"]


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written to .*file: .*TFCOLLECTIVE_CACHE_DIR names another place"):
        compile_with(fake_compiler(tmp_path, "exit 1\n"), tmp_path / "file" / "kernels.so")


def test_wheels_fit_this_tensorflows_compilation() -> None:
    assert set(gpu_kernels.tensorflow_folder().flags) == set(tf_gpu.FLAGS)


def test_what_the_compiler_says_is_shown(tmp_path: Path) -> None:
    unit = tmp_path / "tf_gpu" / "tf_gpu.cc"
    unit.parent.mkdir()
    unit.write_text("#error not this time\n")
    with pytest.raises(ConfigError, match="error not this time"):
        tf_gpu.compile_kernels(gpu_kernels.tensorflow_folder(), core(), tmp_path / "x.so", sources=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tf_gpu", "x.so.lock"]


class TestLoading:
    @pytest.fixture(autouse=True)
    def _gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[str] = []
        self.made: list[Path] = []
        self.gpus: list[str] = ["GPU:0"]
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: self.gpus)
        monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: True)
        monkeypatch.setattr(tf, "load_op_library", self.loaded.append)

        def make(tensorflow: object, core: object, output: Path) -> None:
            output.touch()
            self.made.append(output)

        monkeypatch.setattr(tf_gpu, "compile_kernels", make)
        monkeypatch.setattr(tf_gpu, "prebuilt", lambda version: Path("/nowhere") / version)

    def settings(self, tmp_path: Path, **more: object) -> Settings:
        return Settings(cache_dir=str(tmp_path / "cache"), **more)

    def test_nothing_is_loaded_without_wanted_gpus(self, tmp_path: Path) -> None:
        gpu_kernels.load_where_needed(core(), self.settings(tmp_path, gpu_kernels=False))
        self.gpus = []
        gpu_kernels.load_where_needed(core(), self.settings(tmp_path))
        assert self.loaded == self.made == []

    def test_they_are_compiled_once(self, tmp_path: Path) -> None:
        for _ in range(2):
            gpu_kernels.load_where_needed(core(), self.settings(tmp_path))
        assert len(self.made) == 1
        assert self.loaded == [str(self.made[0])] * 2
        assert tf.__version__ in self.made[0].name
        assert (tmp_path / "cache").stat().st_mode & 0o077 == 0

    def test_those_of_the_wheel_are_taken_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        there = tmp_path / "there.so"
        there.touch()
        monkeypatch.setattr(tf_gpu, "prebuilt", lambda version: there)
        gpu_kernels.load_where_needed(core(), self.settings(tmp_path))
        assert (self.loaded, self.made) == ([str(there)], [])

    def test_a_differently_compiled_tensorflow_ignores_wheels(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        there = tmp_path / "there.so"
        there.touch()
        own = replace(gpu_kernels.tensorflow_folder(), flags=("-D_GLIBCXX_USE_CXX11_ABI=0", "-std=c++17"))
        monkeypatch.setattr(tf_gpu, "prebuilt", lambda version: there)
        monkeypatch.setattr(gpu_kernels, "tensorflow_folder", lambda: own)
        gpu_kernels.load_where_needed(core(), self.settings(tmp_path))
        assert self.loaded == [str(path) for path in self.made]
        assert len(self.made) == 1

    def test_a_cache_others_can_write_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir(mode=0o777)
        (tmp_path / "cache").chmod(0o777)
        with pytest.raises(ConfigError, match="TFCOLLECTIVE_CACHE_DIR"):
            gpu_kernels.load_where_needed(core(), self.settings(tmp_path))
