"""``python -m tfcollective.auxiliary_tasks._tensorboard_task``: the TensorBoard of a job, as launchers start it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.log import get_logger
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._base.tasks import TaskKey
from tfcollective._control.identity import discover
from tfcollective._control.store_keys import experiment_key
from tfcollective._runtime.engine import connect
from tfcollective.auxiliary_tasks.tensorboard import TensorBoardOptions, run_tensorboard

_LOG = get_logger(__name__)
_LOOK_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Shows the log directory until training has ended, and a moment longer; tells the coordinator the address."""
    options = _parser().parse_args(arguments)
    runtime.init()
    logdir = options.logdir if options.logdir is not None else _experiment_dir(TaskKey.parse(options.experiment_of))
    run_tensorboard(
        TensorBoardOptions(logdir, extra_args=options.extra_args, start_timeout=runtime.settings().start_timeout),
        training_ended=runtime.training_ended,
        linger=options.linger,
        on_url=_announce,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tfcollective.auxiliary_tasks._tensorboard_task")
    parser.add_argument("--linger", type=float, required=True, metavar="S")
    parser.add_argument("--extra-args", default="", metavar="TEXT")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--logdir", metavar="DIR")
    where.add_argument("--experiment-of", metavar="TASK")
    return parser


def _announce(url: str) -> None:
    runtime.publish({"url": url})
    sys.stderr.write(f"TensorBoard listens on {url}\n")


def _experiment_dir(chief: TaskKey) -> str:
    """Returns the directory of rank 0's experiment, once rank 0 has made it.

    Raises ConfigError when the experiment has no directory, or training has ended and there was none.
    """
    settings = Settings.load()
    identity = discover(settings, environ_snapshot())
    if not identity.launched:
        raise CoordinatorError("only launchers start this module")
    advice = "say in the TaskSpec what TensorBoard shall show: tb_model_dir"
    with connect(identity) as client:
        while True:
            ended = runtime.training_ended()  # before the look: what was said until then is seen
            said = client.wait(experiment_key(chief), timeout=0.0 if ended else _LOOK_S)
            if said is not None and isinstance(said.value, dict):
                directory = said.value.get("directory")
                if directory is None:
                    raise ConfigError(f"{chief}'s experiment does not write anywhere: {advice}")
                return str(directory)
            if ended:
                raise ConfigError(f"{chief} has trained no experiment, so no directory is known: {advice}")


if __name__ == "__main__":
    sys.exit(main())
