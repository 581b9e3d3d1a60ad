"""The processes of a compute service: Horovod's ``horovod.tensorflow.data.compute_worker``.

``tfcollective run -np 4 python -m tfcollective.tensorflow.data.compute_worker FILE`` runs them.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError
from tfcollective.tensorflow._objects import broadcast_object
from tfcollective.tensorflow.data._rendezvous import ComputeService
from tfcollective.tensorflow.data.compute_service import SIDES, TfDataServiceConfig, compute_worker_fn, own_host


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Serves until training shuts the service down.

    Args:
        dispatchers: how many; the number of processes is a multiple of it.
        dispatcher_side: "compute" or "training": which job runs them.
        configfile: where rank 0 writes what the training job has to know; removed at the end.
        timeout: how long (s) to wait for dispatchers and workers.

    Raises:
        ConfigError: the numbers do not fit.
    """
    runtime.init()
    size = runtime.size()
    if dispatchers < 1 or size % dispatchers:
        raise ConfigError(f"the number of processes ({size}) has to be a multiple of --dispatchers ({dispatchers})")
    with contextlib.ExitStack() as opened:
        config = None
        if runtime.rank() == 0:
            service = opened.enter_context(ComputeService(own_host()))
            config = TfDataServiceConfig(
                dispatchers, size // dispatchers, dispatcher_side, service.addresses, service.key, timeout
            )
            opened.callback(Path(configfile).unlink, missing_ok=True)
            config.write(configfile)
        compute_worker_fn(broadcast_object(config, name="TfDataServiceConfig"))
        runtime.get_communicator().barrier(name="end of the compute service")  # until then all may ask the service


def _parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The processes of a tf.data service, started by `tfcollective run`.")
    parser.add_argument("configfile", help="where to write what the training job has to know")
    parser.add_argument("--dispatchers", type=int, default=1, help="how many dispatchers; 1")
    parser.add_argument("--dispatcher-side", choices=SIDES, default=SIDES[0], help="which job runs them; compute")
    parser.add_argument("--timeout", type=int, default=60, help="seconds to wait for dispatchers and workers; 60")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    given = _parse()
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
