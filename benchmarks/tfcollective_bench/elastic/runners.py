"""The runners, and the commands of their turns: pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfcollective._base.errors import ConfigError
from tfcollective_bench.baselines import Baselines
from tfcollective_bench.elastic.options import ElasticOptions
from tfcollective_bench.elastic.rank import HOROVOD, OURS, RESTART, TRACED
from tfcollective_bench.elastic.trial import HOSTS_FILE, TURN
from tfcollective_bench.interleave import Variant
from tfcollective_bench.ranks import EXTERNAL_VARIABLES, external_command, thread_variables, working_folder

__all__ = ["RUNNERS", "chosen", "hint_for", "hosts_of", "rank_command", "variant_of"]

_RANK = "tfcollective_bench.elastic.rank"
_TRIAL = "tfcollective_bench.elastic.trial"
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
    """Returns how to install what a runner lacks; empty if nothing is missing."""
    if runner != HOROVOD:
        return "" if found.tensorflow else "pip install 'tfcollective[tf]'"
    if found.horovod_python is None:
        return "run tools/baselines.sh horovod, or name its interpreter with --horovod-python"
    if len(addresses) < ranks:
        return f"each rank needs a name of this host: {ranks} are needed, there are {', '.join(addresses)}"
    return ""


def hosts_of(runner: str, addresses: Sequence[str], ranks: int) -> str:
    """The hosts on which a runner has so many slots, as :mod:`.trial` takes them; empty if its world cannot change.

    Horovod blocks the host of a lost rank and ends its other ranks, so each of its ranks has a name of this host to
    itself.
    """
    if runner == HOROVOD:
        return ",".join(f"{address}:1" for address in addresses[:ranks])
    return "" if runner == RESTART else f"localhost:{ranks}"


def rank_command(runner: str, found: Baselines, options: ElasticOptions) -> list[str]:
    """The command that starts the ranks of a runner, with :data:`TURN` for the directory of its turn."""
    arguments = [runner, TURN, str(options.megabytes)]
    tfcollective = [sys.executable, "-m", "tfcollective", "run", "--no-prefix"]
    if runner == RESTART:
        return [*tfcollective, "-np", str(options.ranks), "--max-restarts", "1", "-m", _RANK, *arguments]
    world = ["-np", str(options.ranks - 1), "--min-np", "1", "--max-np", str(options.ranks)]
    hosts = ["--host-discovery-script", f"cat {TURN}/{HOSTS_FILE}"]
    if runner != HOROVOD:
        return [*tfcollective, *world, *hosts, "-m", _RANK, *arguments]
    python = str(found.horovod_python)
    # The shortest pause before the name of the lost rank counts again, so that it is replaced.
    pause = ["--blacklist-cooldown-range", "1", "2"]
    horovod = [python, "-m", "horovod.runner.launch", "--gloo", *world, *pause, *hosts]
    return [*horovod, *external_command(python, _RANK), *arguments]


def variant_of(
    runner: str, found: Baselines, options: ElasticOptions, addresses: Sequence[str], directory: Path
) -> Variant:
    """The command of a runner's turns, which keep what they need in this directory."""
    hosts = [hosts_of(runner, addresses, ranks) for ranks in (options.ranks - 1, options.ranks)]
    trial = [str(directory / runner), str(options.ranks), f"{options.deadline_s:g}", f"{options.calm_s:g}", *hosts]
    return Variant(
        name=runner,
        argv=(sys.executable, "-m", _TRIAL, *trial, *rank_command(runner, found, options)),
        deadline_s=options.deadline_s + _MARGIN_S,
        env=thread_variables(options.ranks),
        unset=EXTERNAL_VARIABLES,
        cwd=working_folder(),
    )
