"""A compute service and a training that uses it, in one process."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

import tfcollective.tensorflow as hvd
from tfcollective._base.errors import ConfigError, InvalidArgumentError, RendezvousError, UnsupportedError
from tfcollective.tensorflow.data import compute_worker
from tfcollective.tensorflow.data._rendezvous import ComputeService
from tfcollective.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

pytestmark = pytest.mark.tensorflow
CONFIG = TfDataServiceConfig(1, 2, "compute", {"": [("127.0.0.1", 5)]}, b"k" * 32, 7)


@pytest.fixture
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def start(side: str, file: Path) -> threading.Thread:
    thread = threading.Thread(target=compute_worker.main, args=(1, side, str(file), 60))
    thread.start()
    return thread


def test_data_come_from_the_service(tmp_path: Path, world: None) -> None:
    file = tmp_path / "service.json"
    computing = start("compute", file)
    config = TfDataServiceConfig.read(str(file), wait_for_file_creation=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    dataset = tf.data.Dataset.range(10).map(lambda x: x * x).send_to_data_service(config, hvd.rank(), hvd.size())
    assert sorted(dataset.as_numpy_iterator()) == [x * x for x in range(10)]
    config.compute_client(verbose=2).shutdown()
    computing.join(60)
    assert not computing.is_alive()
    assert not file.exists()
    config.compute_client().shutdown()  # the service has ended; a second shutdown does no harm


def test_the_dispatcher_may_run_in_training(tmp_path: Path, world: None) -> None:
    file = tmp_path / "service.json"
    computing = start("training", file)
    config = TfDataServiceConfig.read(str(file), wait_for_file_creation=True)
    with pytest.raises(UnsupportedError, match="use tf_data_service"):
        tf.data.Dataset.range(3).send_to_data_service(config, 0)
    with tf_data_service(config, 0) as address:
        distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
        assert sorted(tf.data.Dataset.range(3).apply(distribute).as_numpy_iterator()) == [0, 1, 2]
    config.compute_client().shutdown()
    computing.join(60)
    assert not computing.is_alive()


def test_what_a_file_holds(tmp_path: Path) -> None:
    CONFIG.write(str(tmp_path / "a"))
    assert TfDataServiceConfig.read(str(tmp_path / "a")) == CONFIG
    assert "k" * 32 not in repr(CONFIG)
    (tmp_path / "b").write_text("[1]")
    with pytest.raises(ConfigError, match="description of a compute service, cannot be read"):
        TfDataServiceConfig.read(str(tmp_path / "b"))
    (tmp_path / "b").write_text('{"dispatchers": 1}')
    with pytest.raises(ConfigError, match="description of a compute service, cannot be read"):
        TfDataServiceConfig.read(str(tmp_path / "b"))
    with pytest.raises(RendezvousError, match="no compute service has written"):
        TfDataServiceConfig.read(str(tmp_path / "c"), wait_for_file_creation=True, timeout=0.1)


def test_arguments_that_mean_nothing(world: None) -> None:
    with pytest.raises(InvalidArgumentError, match="dispatcher_side"):
        replace(CONFIG, dispatcher_side="here")
    with pytest.raises(InvalidArgumentError, match="dispatchers: expected 1 or more"):
        replace(CONFIG, dispatchers=0)
    with (
        pytest.raises(InvalidArgumentError, match="rank 2 has no dispatcher"),
        tf_data_service(replace(CONFIG, dispatchers=2), 2),
    ):
        pass
    with pytest.raises(ConfigError, match=r"processes \(1\) has to be a multiple"):
        compute_worker.main(2, "compute", "file", 1)


def test_who_is_missing_is_named() -> None:
    with ComputeService("127.0.0.1") as service:
        config = replace(CONFIG, addresses=service.addresses, key=service.key, timeout=0)
        with pytest.raises(RendezvousError, match="dispatcher 0 of the compute service"), tf_data_service(config, 0):
            pass
        client = config.compute_client()
        client.register_dispatcher(0, "grpc://h:1")
        client.register_worker_for_dispatcher(0, 0)
        with pytest.raises(RendezvousError, match="worker 1 of dispatcher 0"), tf_data_service(config, 0):
            pass
