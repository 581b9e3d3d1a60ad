import json
from dataclasses import replace

import pytest

from tfcollective._base.errors import UnsupportedError
from tfcollective._base.settings import Settings
from tfcollective._base.task_specs import allreduce_topology, trainers_of
from tfcollective._base.tasks import TaskKey, trainers, workers
from tfcollective._base.topology import Endpoint
from tfcollective._control.identity import discover
from tfcollective._launch.agent.protocol import NodeFacts
from tfcollective._launch.plan.hosts import parse_hosts, share_out
from tfcollective._launch.plan.planner import plan_hosts, with_tf_config
from tfcollective._launch.plan.rank_variables import tf_config
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms.join import JoinedLauncher
from tfcollective._launch.run import by_name_with_ports


def test_what_we_write_we_understand():
    tasks = trainers([*workers(2), TaskKey("chief", 0)])
    endpoints = {task: Endpoint("127.0.0.1", 20000 + rank) for rank, task in enumerate(tasks)}
    for rank, task in enumerate(tasks):
        identity = discover(Settings(node_id="n"), {"TF_CONFIG": tf_config(task, endpoints)})
        assert (identity.task, identity.trainers, identity.trainers.index(task)) == (task, tasks, rank)


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


def test_each_process_gets_a_port_of_its_node():
    spec = JobSpec(("true",), 3, hosts=parse_hosts("a:2,b:1"))
    plan = plan_hosts(spec, share_out(spec.hosts, 3), {})
    found = [
        NodeFacts(name, address=address, ports=ports)
        for name, address, ports in (("b", "::2", (7,)), ("a", "1.2.3.4", (5, 6)))
    ]
    assignment = by_name_with_ports(plan)(found)
    configs = [json.loads(worker.env["TF_CONFIG"]) for worker in assignment.plan.workers]
    assert [config["task"]["index"] for config in configs] == [0, 1, 2]
    assert [config["cluster"] for config in configs] == [{"worker": ["1.2.3.4:5", "1.2.3.4:6", "[::2]:7"]}] * 3
    assert [facts.name for facts, workers in assignment.parts for _ in workers] == ["b", "a", "a"]
