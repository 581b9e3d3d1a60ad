"""The runners: the command that starts the ranks of each, or how to install it. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective_bench.allreduce.options import AllreduceOptions
from tfcollective_bench.allreduce.points import Point
from tfcollective_bench.baselines import Baselines
from tfcollective_bench.interleave import Variant
from tfcollective_bench.ranks import (
    EXTERNAL_VARIABLES,
    external_command,
    horovod_command,
    our_command,
    thread_variables,
    working_folder,
)
from tfcollective_bench.testbed import NetnsTestbed

__all__ = ["RUNNERS", "Case", "Runner", "case_name", "chosen", "variant_of"]

_WORKERS = "tfcollective_bench.allreduce.workers"
_PROGRAMS = "run tools/baselines.sh programs"
_MPI = "run tools/baselines.sh mpi (Open MPI and mpi4py)"
_HOROVOD = "run tools/baselines.sh horovod, or name its interpreter with --horovod-python"
_TENSORFLOW = "pip install 'tfcollective[tf]'"


@dataclass(frozen=True)
class Case:
    """The case that one turn measures: a world, by its ranks, (ours) its transport, and the rate of the links if the
    ranks are on hosts of their own."""

    runner: str
    ranks: int
    transport: str = ""
    link: str = ""


@dataclass(frozen=True)
class Runner:
    """A library that all-reduces.

    Attributes:
        name: on the command line and in reports.
        title: for people.
        ours: whether it is tfcollective's and has a choice of transports.
        missing: what to do to get it; empty when it is there.
        command: the command of a case with these worker arguments.
        elsewhere: whether its ranks can be put on other hosts: if our launcher starts them.
    """

    name: str
    title: str
    ours: bool
    missing: Callable[[Baselines], str]
    command: Callable[[Baselines, Case, Sequence[str]], Sequence[str]]
    elsewhere: bool = False


def _launched(worker: str, kind: str) -> Callable[[Baselines, Case, Sequence[str]], Sequence[str]]:
    """Ranks started by our launcher."""

    def command(_found: Baselines, case: Case, arguments: Sequence[str]) -> Sequence[str]:
        if case.link:
            testbed = NetnsTestbed(case.ranks, case.link)
            hosts = ",".join(
                f"{name}={address}" for name, address in zip(testbed.namespaces, testbed.addresses, strict=True)
            )
            launcher = [sys.executable, "-m", "tfcollective_bench.testbed_launcher", testbed.gateway, hosts]
            return [*launcher, "-m", f"{_WORKERS}.{worker}", kind, *arguments]
        transport = "tcp" if case.transport == "tcp" else "auto"
        return our_command(case.ranks, f"{_WORKERS}.{worker}", [kind, *arguments], transport)

    return command


def _program(found: Baselines, case: Case, arguments: Sequence[str]) -> Sequence[str]:
    transport = "tcp" if case.transport == "tcp" else "auto"
    options = ["--library", str(found.library), "--ranks", str(case.ranks), "--transport", transport]
    return [str(found.program), *options, *arguments]


def _mpirun(found: Baselines, case: Case) -> list[str]:
    """The ranks pin themselves as all others do; mpirun must know that there are more of them than cores, because
    they then yield while they wait."""
    assert found.mpirun is not None
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    crowded = ["--oversubscribe"] if case.ranks > len(os.sched_getaffinity(0)) else []
    return [found.mpirun, *root, *crowded, "--bind-to", "none", "-np", str(case.ranks)]


def _mpi4py(found: Baselines, case: Case, arguments: Sequence[str]) -> Sequence[str]:
    return [*_mpirun(found, case), *external_command(str(found.mpi_python), f"{_WORKERS}.mpi"), *arguments]


def _mpi_program(found: Baselines, case: Case, arguments: Sequence[str]) -> Sequence[str]:
    return [*_mpirun(found, case), str(found.mpi_program), *arguments]


def _horovod(found: Baselines, case: Case, arguments: Sequence[str]) -> Sequence[str]:
    return horovod_command(str(found.horovod_python), case.ranks, f"{_WORKERS}.graph", ["horovod", *arguments])


def _when(*needed: Callable[[Baselines], object], hint: str) -> Callable[[Baselines], str]:
    return lambda found: "" if all(need(found) for need in needed) else hint


RUNNERS: Mapping[str, Runner] = {
    runner.name: runner
    for runner in (
        Runner("c", "tfcollective, C program", True, _when(lambda f: f.program, hint=_PROGRAMS), _program),
        Runner("ctypes", "tfcollective, C API by ctypes", True, lambda _: "", _launched("native", "ctypes"), True),
        Runner("numpy", "tfcollective, Communicator", True, lambda _: "", _launched("native", "numpy"), True),
        Runner(
            "op",
            "tfcollective, op in tf.function",
            True,
            _when(lambda f: f.tensorflow, hint=_TENSORFLOW),
            _launched("graph", "ours"),
            elsewhere=True,
        ),
        Runner(
            "openmpi-c",
            "Open MPI, C program",
            False,
            _when(lambda f: f.mpirun, lambda f: f.mpi_program, hint="run tools/baselines.sh mpi programs"),
            _mpi_program,
        ),
        Runner(
            "openmpi",
            "Open MPI, mpi4py",
            False,
            _when(lambda f: f.mpirun, lambda f: f.mpi_python, hint=_MPI),
            _mpi4py,
        ),
        Runner(
            "horovod",
            "Horovod-Gloo, op in tf.function",
            False,
            _when(lambda f: f.horovod_python, hint=_HOROVOD),
            _horovod,
        ),
        Runner(
            "tensorflow",
            "TensorFlow's collectives (RING), tf.function",
            False,
            _when(lambda f: f.tensorflow, hint=_TENSORFLOW),
            _launched("graph", "tensorflow"),
            elsewhere=True,
        ),
    )
}


def chosen(names: Sequence[str]) -> tuple[Runner, ...]:
    """The runners of these names, in the table's order; all if there are no names. ConfigError for an unknown one."""
    for name in names:
        if name not in RUNNERS:
            raise ConfigError(f"--runners: unknown runner {name!r}: expected one of {', '.join(RUNNERS)}")
    return tuple(runner for runner in RUNNERS.values() if not names or runner.name in names)


def case_name(case: Case) -> str:
    """Returns the case's name for people."""
    transport = f", {case.transport}" if case.transport not in ("", "auto") else ""
    link = f", {case.link}" if case.link else ""
    return f"{case.runner}, {case.ranks} ranks{transport}{link}"


def variant_of(
    runner: Runner, case: Case, found: Baselines, options: AllreduceOptions, points: Sequence[Point], flush: int
) -> Variant:
    """The command of one case; every rank has a core of its own if there are enough, and its share of them as threads
    anyway."""
    cores = len(os.sched_getaffinity(0))
    arguments = ["--dtype", options.dtype, "--flush", str(flush)]
    arguments += ["--pin"] if case.ranks <= cores else []
    arguments += ["--require-shm"] if case.transport == "shm" else []
    arguments += [str(point) for point in points]
    return Variant(
        name=case_name(case),
        argv=tuple(runner.command(found, case, arguments)),
        deadline_s=options.deadline_s,
        env=thread_variables(case.ranks),
        unset=EXTERNAL_VARIABLES,
        cwd=working_folder(),
    )
