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
    process_set_ids_and_ranks rank remove_process_set run run_on_yarn shutdown single_server_topology size
    start_timeline stop_timeline task
"""
# Besides packages: what users import from a module itself, and what a module hands on from another.
LISTED = """
    auxiliary_tasks.tensorboard control.client errors job_keys keras.callbacks keras.elastic launch.launcher
    launch.plan.hosts launch.plan.planner launch.provider launch.providers.commands launch.run machine.network settings
    spark task_specs tensorflow.compression tensorflow.data.compute_service tensorflow.elastic
"""


def test_only_modules_that_others_import_from_list_their_names():
    """In all others the underscore says what is private."""
    folder = Path(tfcollective.__file__).parent
    modules = [path for path in folder.rglob("*.py") if path.name != "__init__.py" and "_horovod" not in path.parts]
    listed = [path for path in modules if "\n__all__ = [" in path.read_text("utf-8")]
    assert {".".join(path.relative_to(folder).with_suffix("").parts) for path in listed} == set(LISTED.split())


def test_the_public_names_are_frozen():
    assert sorted(tfcollective.__all__) == sorted(PUBLIC.split())
    assert set(tfcollective.__all__) <= set(dir(tfcollective))


@pytest.mark.parametrize("name", sorted(PUBLIC.split()))
def test_every_public_name_resolves(name):
    assert getattr(tfcollective, name) is not None


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match="nothing"):
        tfcollective.nothing  # noqa: B018


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
