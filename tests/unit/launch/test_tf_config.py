import json
import socket

import pytest

from tfcollective.errors import LaunchError
from tfcollective.identity import discover
from tfcollective.launch import tf_config as module
from tfcollective.launch.planner import plan_local
from tfcollective.launch.spec import JobSpec
from tfcollective.launch.tf_config import choose_endpoints, tf_config
from tfcollective.settings import Settings
from tfcollective.tasks import TaskKey, trainers, workers
from tfcollective.topology import Endpoint


def test_what_we_write_we_understand():
    tasks = trainers([*workers(2), TaskKey("chief", 0)])
    endpoints = {task: Endpoint("127.0.0.1", 20000 + rank) for rank, task in enumerate(tasks)}
    for rank, task in enumerate(tasks):
        identity = discover(Settings(node_id="n"), {"TF_CONFIG": tf_config(task, endpoints)})
        assert (identity.task, identity.trainers, identity.trainers.index(task)) == (task, tasks, rank)


def test_every_task_gets_a_free_port_of_its_own():
    chosen = choose_endpoints(workers(50), "127.0.0.1")
    ports = [endpoint.port for endpoint in chosen.values()]
    assert len(set(ports)) == 50
    for port in ports:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_ports_that_are_taken_are_not_given(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "_PORTS", range(port, port + 1))
        with pytest.raises(LaunchError, match="no 1 free ports on"):
            choose_endpoints(workers(1), "127.0.0.1")


def test_the_plan_has_it_only_on_request():
    spec = JobSpec(("true",), 2)
    endpoints = choose_endpoints(workers(2), "127.0.0.1")
    with_it = plan_local(spec, cores=2, environ={}, endpoints=endpoints)
    configs = [json.loads(worker.env["TF_CONFIG"]) for worker in with_it.workers]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(2)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert all("TF_CONFIG" not in worker.env for worker in plan_local(spec, cores=2, environ={}).workers)
