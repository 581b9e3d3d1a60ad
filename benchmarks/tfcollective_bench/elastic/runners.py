"""Who takes part, and the commands of their turns: pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfcollective.errors import ConfigError
from tfcollective_bench.baselines import Baselines
from tfcollective_bench.elastic.options import ElasticOptions
from tfcollective_bench.elastic.rank import HOROVOD, OURS, RESTART, TRACED
from tfcollective_bench.elastic.trial import TURN
from tfcollective_bench.interleave import Variant
from tfcollective_bench.ranks import EXTERNAL_VARIABLES, external_command, thread_variables, working_folder

__all__ = ["HOSTS_FILE", "RUNNERS", "chosen", "discovery_script", "hint_for", "rank_command", "variant_of"]

_RANK = "tfcollective_bench.elastic.rank"
_TRIAL = "tfcollective_bench.elastic.trial"
#: Horovod's discovery script, in the directory of the run.
HOSTS_FILE = "hosts.sh"
_MARGIN_S = 90.0  # in which a trial ends its job
#: name -> what it is, for people.
RUNNERS: Mapping[str, str] = {
    OURS: "tfcollective, elastic (--min-np 1)",
    TRACED: "the same, with a step before elastic.run, so that a new process has traced it when it joins",
    RESTART: "tfcollective, all processes started again (--max-restarts)",
    HOROVOD: "Horovod elastic with Gloo, each rank on a host name of its own (TensorFlow 2.15)",
}


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The runners of these names, in the table's order; all if there are none. ConfigError for an unknown one."""
    for name in names:
        if name not in RUNNERS:
            raise ConfigError(f"--runners: unknown runner {name!r}: expected one of {', '.join(RUNNERS)}")
    return tuple(name for name in RUNNERS if not names or name in names)


def hint_for(runner: str, found: Baselines, ranks: int, addresses: Sequence[str]) -> str:
    """How to get what a runner lacks; empty when it is there."""
    if runner != HOROVOD:
        return "" if found.tensorflow else "pip install 'tfcollective[tf]'"
    if found.horovod_python is None:
        return "run tools/baselines.sh horovod, or name its interpreter with --horovod-python"
    if len(addresses) < ranks:
        return f"each rank needs a name of this host: {ranks} are needed, there are {', '.join(addresses)}"
    return ""


def discovery_script(addresses: Sequence[str], ranks: int) -> str:
    """What Horovod asks for its hosts. It blocks the host of a lost rank and ends its other ranks, so each rank has a
    name of this host to itself."""
    lines = "".join(f"echo {shlex.quote(f'{address}:1')}\n" for address in addresses[:ranks])
    return f"#!/bin/sh\n{lines}"


def rank_command(runner: str, found: Baselines, options: ElasticOptions, hosts: Path) -> list[str]:
    """The command that starts the ranks of a runner, with :data:`TURN` for the directory of its turn.

    Args:
        hosts: Horovod's discovery script.
    """
    arguments = [runner, TURN, str(options.megabytes)]
    if runner == HOROVOD:
        python = str(found.horovod_python)
        launcher = [python, "-m", "horovod.runner.launch", "--gloo", "-np", str(options.ranks), "--min-np", "1"]
        # The shortest pause before the name of the lost rank counts again, so that it is replaced.
        how = ["--max-np", str(options.ranks), "--blacklist-cooldown-range", "1", "2"]
        return [*launcher, *how, "--host-discovery-script", str(hosts), *external_command(python, _RANK), *arguments]
    launcher = [sys.executable, "-m", "tfcollective", "run", "-np", str(options.ranks), "--no-prefix"]
    how = ["--max-restarts", "1"] if runner == RESTART else ["--min-np", "1"]
    return [*launcher, *how, "-m", _RANK, *arguments]


def variant_of(runner: str, found: Baselines, options: ElasticOptions, directory: Path) -> Variant:
    """The command of a runner's turns, which keep what they need in this directory."""
    trial = [str(directory / runner), str(options.ranks), f"{options.deadline_s:g}"]
    return Variant(
        name=runner,
        argv=(sys.executable, "-m", _TRIAL, *trial, *rank_command(runner, found, options, directory / HOSTS_FILE)),
        deadline_s=options.deadline_s + _MARGIN_S,
        env=thread_variables(options.ranks),
        unset=EXTERNAL_VARIABLES,
        cwd=working_folder(),
    )
