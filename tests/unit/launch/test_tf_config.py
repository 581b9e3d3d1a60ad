import json
import socket
from dataclasses import replace

import pytest

from tfcollective._base.errors import LaunchError, UnsupportedError
from tfcollective._base.machine.network import choose_endpoints, free_ports
from tfcollective._base.settings import Settings
from tfcollective._base.task_specs import allreduce_topology, trainers_of
from tfcollective._base.tasks import TaskKey, trainers, workers
from tfcollective._base.topology import Endpoint
from tfcollective._control.identity import discover
from tfcollective._launch.plan.hosts import parse_hosts, share_out
from tfcollective._launch.plan.planner import plan_hosts, plan_local, with_tf_config
from tfcollective._launch.plan.rank_variables import tf_config
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms.join import JoinedLauncher


def test_what_we_write_we_understand():
    tasks = trainers([*workers(2), TaskKey("chief", 0)])
    endpoints = {task: Endpoint("127.0.0.1", 20000 + rank) for rank, task in enumerate(tasks)}
    for rank, task in enumerate(tasks):
        identity = discover(Settings(node_id="n"), {"TF_CONFIG": tf_config(task, endpoints)})
        assert (identity.task, identity.trainers, identity.trainers.index(task)) == (task, tasks, rank)


def test_every_task_gets_its_own_free_port():
    chosen = choose_endpoints(workers(50), "127.0.0.1")
    ports = [endpoint.port for endpoint in chosen.values()]
    assert len(set(ports)) == 50
    for port in ports:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_ports_that_are_taken_are_not_given():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match="no 1 free ports on"):
            free_ports("127.0.0.1", 1, [port])


def test_ranks_on_several_hosts_have_it_too():
    specs = allreduce_topology(nb_workers=1)
    specs["tensorboard"] = replace(specs["tensorboard"], tb_model_dir="/m")
    tasks = trainers_of(specs)
    spec = JobSpec(("true",), 2, hosts=parse_hosts("a:1,b:1"), tasks=tasks, task_specs=specs)
    plan = plan_hosts(spec, share_out(spec.hosts, 2), {})
    endpoints = {one.task: Endpoint(one.host, 20000 + place) for place, one in enumerate(plan.processes)}
    configs = {str(one.task): one.env.get("TF_CONFIG") for one in with_tf_config(plan, endpoints).processes}
    assert json.loads(configs["worker:0"])["cluster"] == {"chief": ["a:20000"], "worker": ["b:20001"]}
    assert json.loads(configs["evaluator:0"])["task"] == {"type": "evaluator", "index": 0}
    assert configs["tensorboard:0"] is None


def test_agents_that_others_start_get_none():
    with pytest.raises(UnsupportedError, match="TF_CONFIG"):
        JoinedLauncher().plan(JobSpec(("true",), 2, platform={"agents": 2}, emit_tf_config=True))


def test_the_plan_has_it_only_on_request():
    spec = JobSpec(("true",), 2)
    endpoints = choose_endpoints(workers(2), "127.0.0.1")
    with_it = plan_local(spec, cores=2, environ={}, endpoints=endpoints)
    configs = [json.loads(worker.env["TF_CONFIG"]) for worker in with_it.workers]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(2)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert all("TF_CONFIG" not in worker.env for worker in plan_local(spec, cores=2, environ={}).workers)
