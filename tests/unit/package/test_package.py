"""The package as a whole: its public names and what importing it costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tfcollective

PUBLIC = """
    Average CollectiveAbortedError CollectiveCancelledError CollectiveError CollectiveMismatchError
    CollectiveTimeoutError Communicator ConfigError CoordinatorError DeviceError InternalError InvalidArgumentError
    LaunchError Max Min NodeLabel PeerLostError ProcessSet Product ProtocolError RendezvousError
    ResourceExhaustedError StateError Sum TaskSpec TfCollectiveError TransportError UnsupportedError
    WorkerFailedError __version__ add_process_set allreduce_topology cluster cross_rank cross_size get_communicator
    get_safe_experiment_fn global_process_set init is_homogeneous is_initialized local_rank local_size
    process_set_ids_and_ranks publish rank remove_process_set run run_on_yarn shutdown single_server_topology size
    start_timeline stop_timeline task
"""
PUBLIC_MODULES = """
    auxiliary_tasks auxiliary_tasks.tensorboard elastic estimator files horovod horovod.common horovod.common.elastic
    horovod.common.exceptions horovod.common.process_sets horovod.keras horovod.keras.callbacks horovod.keras.elastic
    horovod.tensorflow horovod.tensorflow.compression horovod.tensorflow.data horovod.tensorflow.data.compute_service
    horovod.tensorflow.data.compute_worker horovod.tensorflow.elastic horovod.tensorflow.functions
    horovod.tensorflow.keras horovod.tensorflow.keras.callbacks horovod.tensorflow.keras.elastic
    horovod.tensorflow.mpi_ops horovod.tensorflow.sync_batch_norm keras keras.callbacks keras.elastic launcher
    spark tensorflow tensorflow.data tensorflow.data.compute_service tensorflow.data.compute_worker tensorflow.elastic
"""


def test_a_path_without_an_underscore_is_public():
    folder = Path(tfcollective.__file__).parent
    paths = [path.relative_to(folder) for path in folder.rglob("*.py") if path.name != "__main__.py"]
    names = {".".join(part for part in path.with_suffix("").parts if part != "__init__") for path in paths}
    public = {name for name in names if name and not any(part.startswith("_") for part in name.split("."))}
    assert public == set(PUBLIC_MODULES.split())


def test_the_public_names_are_frozen():
    assert sorted(tfcollective.__all__) == sorted(PUBLIC.split())
    assert set(tfcollective.__all__) <= set(dir(tfcollective))


@pytest.mark.parametrize("name", sorted(PUBLIC.split()))
def test_every_public_name_resolves(name):
    assert getattr(tfcollective, name) is not None


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match=r"'allreduce'; collectives are in tfcollective\.tensorflow"):
        tfcollective.allreduce  # noqa: B018


def test_the_import_is_cheap():
    program = (
        "import sys, time, json; t = time.process_time(); import tfcollective; t = time.process_time() - t;"
        "print(json.dumps([t, sorted({n.partition('.')[0] for n in sys.modules})]))"
    )
    # The process's own time, since other processes may hold the processor; of several runs, since caches may be cold.
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", program])) for _ in range(3)]
    seconds, modules = min(runs)
    assert not {"numpy", "aiohttp", "urllib3", "tensorflow", "keras", "click", "rich", "psutil"} & set(modules)
    assert seconds < 0.15  # of a core; the time that it waits for one does not count
