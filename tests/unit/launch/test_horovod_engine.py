import sys

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.machine.network import interface_of, with_interface
from tfcollective._base.topology import Endpoint
from tfcollective._cli.command import check_engine
from tfcollective._launch.plan.hosts import parse_hosts, share_out
from tfcollective._launch.plan.planner import plan_hosts, plan_local
from tfcollective._launch.plan.rank_variables import rendezvous_variables, scopes_of
from tfcollective._launch.plan.spec import JobSpec

INTERFACES = {"lo": ("127.0.0.1", "::1"), "eth7": ("10.0.0.7",)}


def on_hosts():
    spec = JobSpec(("a",), 3, engine="horovod", hosts=parse_hosts("same:2,other:1"), op_timeout=7.5)
    return plan_hosts(spec, share_out(spec.hosts, 3), {}).workers


def test_ranks_get_their_place_in_horovods_variables():
    env = on_hosts()[2].env
    words = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "CONTROLLER")
    assert [env[f"HOROVOD_{word}"] for word in words] == ["2", "3", "0", "1", "1", "2", "node-1", "gloo"]
    assert env["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "7"
    assert env["TFCOLLECTIVE_ENGINE"] == "horovod"
    assert "PYTHONPATH" not in env


def test_what_the_user_sets_stays():
    spec = JobSpec(("a",), 1, engine="horovod", env={"HOROVOD_GLOO_TIMEOUT_SECONDS": "9"})
    assert plan_local(spec, cores=2, environ={}).workers[0].env["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "9"


def test_scopes_have_as_many_ranks_as_meet_there():
    assert scopes_of(worker.env for worker in on_hosts()) == {
        "global": 3,
        "local_node-0": 2,
        "local_node-1": 1,
        "cross_0": 2,
        "cross_1": 1,
    }


def test_the_store_and_the_interface():
    assert rendezvous_variables(Endpoint("10.0.0.7", 99)) == {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.7",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "99",
    }
    assert interface_of(INTERFACES, "10.0.0.7") == "eth7"
    assert interface_of(INTERFACES, "10.0.0.8") is None
    env = {"TFCOLLECTIVE_ENGINE": "horovod"}
    assert with_interface(env, "127.0.0.1", INTERFACES)["HOROVOD_GLOO_IFACE"] == "lo"
    assert with_interface({**env, "HOROVOD_GLOO_IFACE": "x"}, "127.0.0.1", INTERFACES)["HOROVOD_GLOO_IFACE"] == "x"
    assert with_interface({"TFCOLLECTIVE_ENGINE": "native"}, "127.0.0.1", INTERFACES) == {
        "TFCOLLECTIVE_ENGINE": "native"
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "nccl"}, "one of native, horovod, mpi"),
        ({"engine": "horovod", "horovod_compat": True}, "choose"),
    ],
)
def test_engines_that_cannot_be_had(fields, message):
    with pytest.raises(ConfigError, match=message):
        JobSpec(("a",), 1, **fields)


def test_what_to_install_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_engine("native", [sys.executable])
    check_engine("horovod", ["another-python"])
    with pytest.raises(ConfigError, match="pip install --no-build-isolation horovod"):
        check_engine("horovod", [sys.executable])
    with pytest.raises(ConfigError, match=r"pip install 'tfcollective\[mpi\]'"):
        check_engine("mpi", [sys.executable])
