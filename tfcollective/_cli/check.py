"""``tfcollective check``: whether this installation works on this host, and how to mend it if it does not."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from copy import copy
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from tfcollective._base.clock import on_thread
from tfcollective._base.errors import ConfigError, TfCollectiveError
from tfcollective._base.processes import answer_of, program_of
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.timing import TIMING
from tfcollective._base.version import TENSORFLOWS, __version__
from tfcollective._cli.check_report import REPORT_NAME, lines_of, write_report
from tfcollective._cli.groups import GroupedOption
from tfcollective._cli.host_checks import host_findings
from tfcollective._cli.platforms import CLUSTERS, PLATFORM_OPTIONS, given_to, refuse_options_of_others
from tfcollective._launch.launcher import CheckedLauncher, Finding, find_launcher

_TENSORFLOW = "TensorFlow"
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")
_KERASES = ("keras", "keras-nightly")
_PACKAGES = ("numpy", *_TENSORFLOWS, *_KERASES, "aiohttp", "cryptography")
_RANKS = 2
_LOOPBACK_LENGTH = 1000
_REPORT = "tfcollective: the job failed"
# TensorFlow runs in processes of its own: it is slow to import, and a library that does not fit it may crash. They are
# two, since the op of one alone has ended before TensorFlow waits for it; and they see no GPU, which each would want to
# have for itself.
# Looks into the working directory last, as processes.program_of: a source tree there would hide the installed package.
_OPS_PROGRAM = """import sys; sys.path.append(sys.path.pop(0))
import tfcollective.tensorflow as t; t.init(); assert t.allreduce([1.0], op=t.Sum).numpy() == [2.0]"""


def _hidden(one: GroupedOption) -> GroupedOption:
    """The same option, which the help of `tfcollective run` explains."""
    other = copy(one)
    other.hidden = True
    return other


@click.command(
    short_help="Checks the installation, and says how to mend it.",
    epilog="""\b
Examples:
  tfcollective check
  tfcollective check --report
  tfcollective check --launcher kubernetes --image registry.example/train:1.0
  tfcollective check --launcher yarn --remote-python /shared/env/bin/python""",
    params=[_hidden(one) for one in PLATFORM_OPTIONS],
)
@click.option(
    "--report",
    metavar="[FILE]",
    is_flag=False,
    flag_value=REPORT_NAME,
    help=f"Write a text to attach to a bug report, without secrets, to FILE. [{REPORT_NAME}]",
)
@click.option(
    "--launcher",
    metavar="NAME",
    help=f"Check a platform, with its options as for `tfcollective run`: {', '.join(CLUSTERS)}.",
)
def check(report: str | None, launcher: str | None, **options: Any) -> int:
    """Checks versions, this host, the native library, GPUs, the TensorFlow ops and an all-reduce of two processes.

    A line that begins with "note" is no failure: something works, but slower or not everywhere.

    With --launcher, it checks versions, the native library and that platform, as a job with these options would need
    it.
    """
    refuse_options_of_others(launcher, options)
    findings: list[Finding] = []
    failed = _show(findings, _findings() if launcher is None else _platform_findings(launcher, options))
    if report is not None:
        write_report(Path(report), findings, environ_snapshot())
        click.echo(f"       the report is in {report}: read it before you pass it on")
    return failed


def _platform_findings(name: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    launcher = find_launcher(name)
    if not isinstance(launcher, CheckedLauncher):
        raise ConfigError(f"--launcher {name}: this launcher has no check; leave out --launcher")
    yield _versions()
    yield _native_library()
    yield from launcher.check(given_to(name, options))


def _show(shown: list[Finding], findings: Iterator[Finding]) -> int:
    """Prints each finding when it is there and adds it to ``shown``; the exit code."""
    for finding in findings:
        for line in lines_of(finding):
            click.echo(line)
        shown.append(finding)
    return 0 if all(finding.ok for finding in shown) else 1


def _findings() -> Iterator[Finding]:
    yield _versions()
    yield from host_findings()
    yield _native_library()
    yield _gpus()
    yield _tensorflow_version()
    yield _gpu_kernels()
    yield _tensorflow_ops()
    yield _loopback()


def _versions() -> Finding:
    found = [f"tfcollective {__version__}", f"Python {platform.python_version()}", platform.platform()]
    for package in _PACKAGES:
        version = _version(package)
        if version is not None:
            found.append(f"{package} {version}")
    return Finding("versions", True, ", ".join(found))


def _native_library() -> Finding:
    from tfcollective._runtime import native_library as _native

    remedy = (
        "install tfcollective again (pip install --force-reinstall tfcollective); if a version of GLIBC is missing, "
        "this system is older than the one that the wheel is for: build it here, with pip install ."
    )
    return Finding.of("native library", lambda: str(_native.load(Settings.load().library).path), remedy)


def _gpus(timeout: float = TIMING.check) -> Finding:
    """Checks the GPUs on a thread that is abandoned if the driver or NCCL hangs: their calls have no deadline."""
    with suppress(FutureTimeoutError):
        return on_thread(_find_gpus, "tfcollective-gpus").result(timeout)
    remedy = "see whether nvidia-smi answers; the driver may have to be loaded again, or the host to be restarted"
    return Finding("GPUs", False, f"the CUDA driver or NCCL gives no answer within {timeout:g} s", remedy)


def _find_gpus() -> Finding:
    """Finds GPUs; that there are none is no failure, but the finding says what is missing."""
    from tfcollective._runtime import native_library as _native
    from tfcollective._runtime.native_library.device_calls import DeviceSearch, describe_gpus, find_libraries

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


def _tensorflow_version() -> Finding:
    """Finds combinations of packages that pip permits and TensorFlow reports late, or never."""
    packages = {package: version for package in _TENSORFLOWS if (version := _version(package))}
    package, tensorflow = next(iter(packages.items()), ("", None))
    keras = next(filter(None, map(_version, _KERASES)), None)
    if tensorflow is None:
        return Finding(_TENSORFLOW, True, "not installed: only tfcollective.Communicator can be used")
    detail = ", ".join(f"{package} {version}" for package, version in packages.items()) + f", keras {keras}"
    if len(set(packages.values())) > 1:
        remedy = f"both install the folder tensorflow: pip uninstall {' '.join(packages)}, then install one of them"
        return Finding(_TENSORFLOW, False, f"{detail}: two versions over each other", remedy)
    if _numbers(tensorflow) < (2, 15):
        return Finding(_TENSORFLOW, False, detail, "install TensorFlow 2.15.1 or newer")
    has_keras_3 = _numbers(tensorflow) >= (2, 16)
    if keras is None or (_numbers(keras) >= (3,)) != has_keras_3:
        wanted = "'keras>=3'" if has_keras_3 else "'keras<3'"
        return Finding(_TENSORFLOW, False, f"{detail}: they do not fit", f"pip install {wanted}")
    if _numbers(tensorflow) > _numbers(TENSORFLOWS[-1]):
        major, minor = _numbers(TENSORFLOWS[-1])
        return Finding.note(
            _TENSORFLOW,
            f"{detail}: newer than {TENSORFLOWS[-1]}, the newest that tfcollective {__version__} was tested with",
            "if the ops below or your program fail with it, install a version that was tested: "
            f"pip install '{package.replace('tf-nightly', 'tensorflow')}<{major}.{minor + 1}'",
        )
    return Finding(_TENSORFLOW, True, detail)


def _gpu_kernels() -> Finding:
    """A wheel holds those of some versions of TensorFlow; for another one they are compiled when first needed."""
    from tfcollective._runtime.native_library import tf_gpu

    name = "GPU kernels"
    tensorflow = _version("tensorflow")
    if tensorflow is None:
        return Finding(name, True, "not needed without a TensorFlow for GPUs")
    if tf_gpu.prebuilt(tensorflow).exists():
        return Finding(name, True, f"those for TensorFlow {tensorflow} are in this installation")
    compiler = tf_gpu.find_compiler()
    detail = f"none for TensorFlow {tensorflow} in this installation"
    if compiler is None:
        return Finding.note(name, f"{detail}, and no compiler; only GPUs need them", "install g++ 9 or newer")
    return Finding(name, True, f"{detail}: {compiler} compiles them when a GPU needs them")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _tensorflow_ops() -> Finding:
    name = "TensorFlow ops"
    if not any(map(_version, _TENSORFLOWS)):
        return Finding(name, True, "not needed without TensorFlow")
    options = ("-np", str(_RANKS), "--start-timeout", f"{TIMING.check_start:g}", "--env", "CUDA_VISIBLE_DEVICES=-1")
    job = ["run", *options, sys.executable, "-c", _OPS_PROGRAM]
    done = answer_of([sys.executable, *program_of("tfcollective._cli"), *job], TIMING.check_start)
    if done is None:
        detail = f"no answer within {TIMING.check_start:g} s"
        return Finding(name, False, detail, "see whether TensorFlow itself imports")
    if done.returncode == 0:
        return Finding(name, True, "load and run")
    said = done.stderr.strip() or f"exit code {done.returncode}"
    report = said[max(said.rfind(_REPORT), 0) :]
    return Finding(
        name, False, report, "use TensorFlow 2.15.1 or newer, and see the whole error: import tfcollective.tensorflow"
    )


def _loopback() -> Finding:
    from tfcollective._launch.api import run

    name = f"all-reduce between {_RANKS} processes"
    try:
        sums = run(loopback, np=_RANKS, start_timeout=TIMING.check, op_timeout=TIMING.check)
    except TfCollectiveError as error:
        remedy = "see the report above; a firewall on the loopback interface is the usual cause"
        return Finding(name, False, str(error), remedy)
    expected = [float(sum(range(1, _RANKS + 1)))] * _RANKS
    return Finding(name, sums == expected, f"got {sums}, expected {expected}", "report this: the sums are wrong")


def loopback() -> float:
    """Runs on every rank: the sum over the ranks of rank + 1."""
    import numpy

    import tfcollective
    from tfcollective._runtime import get_communicator
    from tfcollective._runtime.communicator import Sum

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
