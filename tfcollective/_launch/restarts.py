"""A job that failed is started again, from the beginning, as often as it may be: the rule, and the loop around it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tfcollective._base.errors import ConfigError, TfCollectiveError
from tfcollective._base.processes import PASSED_ON
from tfcollective._base.verdict import Decision, Obstacle
from tfcollective._launch.launcher import JobOutcome, Launcher
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.report.report import headline
from tfcollective._launch.report.tracking import tracking
from tfcollective._launch.system.signals import forward_signals
from tfcollective._launch.web.watching import watching

_LONGEST_PAUSE_S = 30.0


def run_job(
    launcher: Launcher,
    spec: JobSpec,
    *,
    stop_signals: Sequence[int] = (),
    pause: Callable[[float], object] | None = None,
) -> JobOutcome:
    """Runs the job, and again when it fails, at most ``spec.max_restarts`` times; the outcome of the last time.

    Each time everything is new: coordinator, key, agents, processes. Only the number of the generation continues. What
    is in the checkpoints is for the ranks to find. A signal that asks the job to stop stops it for good, also between
    two starts. MLflow and the page of ``--web`` hear of it all as one run, where they are used. ``pause`` waits in
    place of the clock, for tests.

    Raises:
        ConfigError: the launcher cannot start a job again, or not the processes of its engine.
        LaunchError: the first start could not be made. A later one that cannot be made is in the outcome.
    """
    if launcher.starts_mpi != (spec.engine == "mpi"):
        raise ConfigError("the engine mpi and the launcher mpi go together: mpirun starts its processes")
    if launcher.delegates:
        return launcher.run(spec, stop_signals=stop_signals)
    if spec.max_restarts and not launcher.can_restart:
        raise ConfigError("max_restarts: this launcher does not start the agents itself, so it cannot start them again")
    try:
        with tracking(launcher, spec) as track, watching(launcher, spec) as show:
            outcome = _run_until_final(launcher, spec, stop_signals, pause)
            track(outcome)
            show(outcome)
    finally:
        launcher.close()
    return outcome


def _run_until_final(
    launcher: Launcher, spec: JobSpec, stop_signals: Sequence[int], pause: Callable[[float], object] | None
) -> JobOutcome:
    earlier: tuple[str, ...] = ()
    while True:
        outcome = _run_once(launcher, spec, stop_signals)
        decision = outcome.judge(spec.max_restarts - spec.restarts).decision
        failed = outcome.stopped_by is None and decision is not Decision.COMPLETE
        why_not = obstacle(outcome) if failed and spec.max_restarts else None
        if not failed or decision is not Decision.RESTART or why_not is not None:
            return replace(outcome, earlier=(*earlier, *outcome.earlier), not_restarted=why_not or "")
        earlier = (*earlier, *outcome.earlier, headline(outcome))
        spec = restarted(spec, outcome.generation)
        wait = pause_before(spec.restarts)
        news = (
            f"tfcollective: {earlier[-1]}; all ranks are started again in {wait:g} s "
            f"(restart {spec.restarts} of {spec.max_restarts})\n"
        )
        stopped_by = _wait(news, wait, stop_signals, pause)
        if stopped_by is not None:
            return replace(outcome, stopped_by=stopped_by, earlier=earlier)


def _wait(
    news: str, seconds: float, stop_signals: Sequence[int], pause: Callable[[float], object] | None
) -> int | None:
    """Shows the news and waits; returns the signal that ended the wait, or None.

    Signals are handled here, too, before the news invites one: process 1 of a container has no default for them, and
    would wait on.
    """
    stopped = threading.Event()
    with forward_signals(stop_signals, lambda number: None if number in PASSED_ON else stopped.set()) as received:
        sys.stderr.write(news)
        (stopped.wait if pause is None else pause)(seconds)
    return received[0] if received else None


def _run_once(launcher: Launcher, spec: JobSpec, stop_signals: Sequence[int]) -> JobOutcome:
    """The outcome of one start. The first that cannot be made raises what the launcher raises; a later one is one more
    start that failed: a host that was lost may still be down."""
    try:
        return launcher.run(spec, stop_signals=stop_signals)
    except TfCollectiveError as error:
        if spec.restarts == 0:
            raise
        final = "what is wrong with the job's settings does not pass" if isinstance(error, ConfigError) else ""
        return JobOutcome((), initialised=False, agent_failure=str(error), host_lost=not final, not_restarted=final)


def obstacle(outcome: JobOutcome) -> str | None:
    """Returns why a failed job would fail again, or must not be started again; None if it may be."""
    judged = outcome.judge()
    if outcome.not_restarted or judged.obstacle is None or judged.cause is None:
        return outcome.not_restarted or None
    if judged.obstacle is Obstacle.NEVER_BEGAN:
        return (
            "it failed before any rank had joined the job with tfcollective.init(), where nothing of the job had begun"
        )
    if judged.cause.exception is None:
        return f"exit code {judged.cause.exit_code} stands for wrong usage"
    return f"{judged.cause.exception.type} comes again however often it is tried"


def restarted(spec: JobSpec, generation: int) -> JobSpec:
    """The job as it is started next, after one whose last world was of this generation."""
    count = spec.restarts + 1
    log_dir = spec.log_dir
    if log_dir is not None:
        parent = Path(log_dir) if spec.restarts == 0 else Path(log_dir).parent
        log_dir = str(parent / f"restart.{count}")
    return replace(spec, restarts=count, first_generation=max(generation, spec.first_generation) + 1, log_dir=log_dir)


def pause_before(restart: int) -> float:
    """Returns the seconds to wait before the first, second, ... restart: trouble of a node may be transient."""
    return min(_LONGEST_PAUSE_S, float(2 ** (restart - 1)))
