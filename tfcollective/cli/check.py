"""``tfcollective check``: whether this installation works, and how to mend it if it does not."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from importlib import metadata
from typing import Any

import click

from tfcollective._version import __version__
from tfcollective.cli.yarn_options import package_index_option, packing
from tfcollective.clock import on_thread
from tfcollective.errors import ConfigError, TfCollectiveError
from tfcollective.launch.launcher import CheckedLauncher, Finding, find_launcher
from tfcollective.processes import answer_of
from tfcollective.settings import Settings

_PACKAGES = ("numpy", "tensorflow", "tensorflow-cpu", "keras", "aiohttp", "cryptography")
_TIMEOUT_S = 60.0
_OPS_TIMEOUT_S = 180.0
_RANKS = 2
_LOOPBACK_LENGTH = 1000
# TensorFlow runs in a process of its own: it is slow to import, and a library that does not fit it may crash.
_OPS_PROGRAM = "import tfcollective.tensorflow as t; t.init(); print(t.allreduce([1.0, 2.0]).numpy().tolist())"


@click.command(
    short_help="Checks the installation, and says how to mend it.",
    epilog="""\b
Examples:
  tfcollective check
  tfcollective check --launcher yarn --remote-python /shared/env/bin/python""",
    params=[package_index_option("YARN: ")],
)
@click.option("--launcher", metavar="NAME", help="Check a platform as well: yarn.")
@click.option("--queue", metavar="NAME", help="YARN: queue to submit to. [default]")
@click.option("--archive", metavar="F", help="YARN: packed environment to send. [packs this one]")
@click.option("--remote-python", metavar="PATH", help="YARN: interpreter on the nodes, not a packed one.")
def check(
    launcher: str | None,
    queue: str | None,
    archive: str | None,
    remote_python: str | None,
    package_index: tuple[str, ...],
) -> int:
    """Checks versions, the native library, GPUs, the TensorFlow ops and an all-reduce between two processes.

    With --launcher yarn, it checks versions, the native library and that platform: its configuration, commands,
    ResourceManager, queue and HDFS, packing, and an application with one container.
    """
    platform = {"queue": queue, "archive": archive, "python": remote_python, "pack": packing(package_index)}
    if launcher is None and any(platform.values()):
        raise ConfigError(
            "--queue, --archive, --remote-python and --package-index need a platform: name it with --launcher yarn"
        )
    return _show(_findings() if launcher is None else _platform_findings(launcher, platform))


def _platform_findings(name: str, platform: Mapping[str, Any]) -> Iterator[Finding]:
    launcher = find_launcher(name)
    if not isinstance(launcher, CheckedLauncher):
        raise ConfigError(f"--launcher {name}: this launcher has no check; leave out --launcher")
    yield _versions()
    yield _native_library()
    yield from launcher.check(platform)


def _show(findings: Iterator[Finding]) -> int:
    failed = False
    for finding in findings:
        click.echo(f"{'ok    ' if finding.ok else 'FAILED'} {finding.name}: {finding.detail}")
        if not finding.ok:
            failed = True
            click.echo(f"       to mend it: {finding.remedy}")
    return 1 if failed else 0


def _findings() -> Iterator[Finding]:
    steps: tuple[Callable[[], Finding], ...] = (_versions, _native_library, _gpus, _tensorflow_ops, _loopback)
    for step in steps:
        yield step()


def _versions() -> Finding:
    found = [f"tfcollective {__version__}", f"Python {platform.python_version()}", platform.platform()]
    for package in _PACKAGES:
        version = _version(package)
        if version is not None:
            found.append(f"{package} {version}")
    return Finding("versions", True, ", ".join(found))


def _native_library() -> Finding:
    from tfcollective import _native

    remedy = "install tfcollective again (pip install --force-reinstall tfcollective)"
    return Finding.of("native library", lambda: str(_native.load(Settings.load().library).path), remedy)


def _gpus(timeout: float = _TIMEOUT_S) -> Finding:
    """In a thread that is left behind where the driver or NCCL does not answer: their calls have no deadline."""
    with suppress(FutureTimeoutError):
        return on_thread(_find_gpus, "tfcollective-gpus").result(timeout)
    remedy = "see whether nvidia-smi answers; the driver may have to be loaded again, or the host to be restarted"
    return Finding("GPUs", False, f"the CUDA driver or NCCL gives no answer within {timeout:g} s", remedy)


def _find_gpus() -> Finding:
    """Without GPUs all is well, too: it says what is missing, for those who have some."""
    from tfcollective import _native
    from tfcollective._native.device_calls import DeviceSearch, describe_gpus, find_libraries

    try:
        settings = Settings.load()
        library = _native.load(settings.library)
        search = DeviceSearch(nccl=settings.nccl, cuda_driver=settings.cuda_driver)
        found = find_libraries(library, search)
        gpus = [_gpu_text(info) for info in describe_gpus(library, search, found.num_devices)]
    except TfCollectiveError as error:
        return Finding("GPUs", False, str(error), "see whether nvidia-smi works, and what the variables above name")
    if not gpus:
        return Finding("GPUs", True, f"none ({found.problem.decode(errors='replace') or 'the driver sees none'})")
    driver = f"CUDA {found.cuda_version // 1000}.{found.cuda_version % 1000 // 10} ({found.cuda_path.decode()})"
    listing = "; ".join(gpus)
    if not found.nccl_version:
        remedy = "install nvidia-nccl-cu12 or nvidia-nccl-cu13, or name the library in TFCOLLECTIVE_NCCL"
        return Finding("GPUs", False, f"{listing}; {driver}; {found.problem.decode(errors='replace')}", remedy)
    version = found.nccl_version
    nccl = f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100} ({found.nccl_path.decode()})"
    return Finding("GPUs", True, f"{listing}; {driver}; {nccl}; a rank sees {_seen(settings.gpus_per_proc)}")


def _seen(each: int) -> str:
    return f"{each} of them" if each else "all of them (--gpus-per-proc)"


def _gpu_text(info: Any) -> str:
    capability = f"compute capability {info.major}.{info.minor}, {info.memory >> 30} GiB"
    peers = f"direct access to {info.num_peers} others"
    return f"GPU {info.ordinal}: {info.name.decode()} ({info.bus_id.decode()}, {capability}, {peers})"


def _tensorflow_ops() -> Finding:
    name = "TensorFlow ops"
    if _version("tensorflow") is None and _version("tensorflow-cpu") is None:
        return Finding(name, True, "TensorFlow is not installed: only tfcollective.Communicator can be used")
    done = answer_of([sys.executable, "-c", _OPS_PROGRAM], _OPS_TIMEOUT_S)
    if done is None:
        return Finding(name, False, f"no answer within {_OPS_TIMEOUT_S:g} s", "see whether TensorFlow itself imports")
    if done.returncode == 0:
        return Finding(name, True, "load and run")
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Finding(
        name, False, last, "use TensorFlow 2.15.1 or newer, and see the whole error: import tfcollective.tensorflow"
    )


def _loopback() -> Finding:
    from tfcollective.launch.api import run

    name = f"all-reduce between {_RANKS} processes"
    try:
        sums = run(loopback, np=_RANKS, start_timeout=_TIMEOUT_S, op_timeout=_TIMEOUT_S)
    except TfCollectiveError as error:
        remedy = "see the report above; a firewall on the loopback interface is the usual cause"
        return Finding(name, False, str(error), remedy)
    expected = [float(sum(range(1, _RANKS + 1)))] * _RANKS
    return Finding(name, sums == expected, f"got {sums}, expected {expected}", "report this: the sums are wrong")


def loopback() -> float:
    """Runs on every rank: the sum over the ranks of rank + 1."""
    import numpy

    import tfcollective
    from tfcollective.communicator import Sum
    from tfcollective.runtime import get_communicator

    tfcollective.init()
    mine = numpy.full(_LOOPBACK_LENGTH, tfcollective.rank() + 1, numpy.float32)
    total = get_communicator().allreduce(mine, op=Sum)
    tfcollective.shutdown()
    return float(total.max()) if total.min() == total.max() else float("nan")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
