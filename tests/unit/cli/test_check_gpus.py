"""What ``tfcollective check`` says of GPUs."""

import threading

from standin import cuda, standins

from tfcollective._cli.check import _gpus


def use(monkeypatch, **names):
    monkeypatch.setenv("TFCOLLECTIVE_CUDA_DRIVER", str(names.get("driver", standins() / "libcuda_standin.so")))
    monkeypatch.setenv("TFCOLLECTIVE_NCCL", str(names.get("nccl", standins() / "libnccl_standin.so")))


def test_what_there_is(monkeypatch):
    use(monkeypatch)
    finding = _gpus()
    assert finding.ok
    for part in ("GPU 3: Stand-in", "direct access to 3 others", "CUDA 13.0", "NCCL 2.27.3", "libnccl_standin.so"):
        assert part in finding.detail


def test_no_gpu_is_no_failure(monkeypatch):
    use(monkeypatch, driver="/nowhere/libcuda.so.1")
    finding = _gpus()
    assert finding.ok
    assert "none (there is no CUDA driver on this host: /nowhere/libcuda.so.1" in finding.detail


def test_gpus_without_nccl_are_one(monkeypatch):
    use(monkeypatch, nccl="/nowhere/libnccl.so.2")
    finding = _gpus()
    assert not finding.ok
    assert "/nowhere/libnccl.so.2" in finding.detail
    assert "nvidia-nccl-cu12" in finding.remedy


def test_a_driver_that_does_not_answer_is_one(monkeypatch):
    use(monkeypatch)
    cuda().standin_set(b"hang:cuInit", 1)
    before = set(threading.enumerate())
    try:
        finding = _gpus(0.2)
    finally:
        cuda().standin_reset()
        for left_behind in set(threading.enumerate()) - before:
            left_behind.join(60)
    assert not finding.ok
    assert "no answer within 0.2 s" in finding.detail
    assert "nvidia-smi" in finding.remedy
