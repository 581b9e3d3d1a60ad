"""``horovod.run``'s keyword names."""

import sys
from pathlib import Path

import pytest

import tfcollective
from tfcollective._base.errors import ConfigError
from tfcollective._launch.api import function_job
from tfcollective._launch.horovod_run import translate


def test_names_become_ours(tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a slots=2\nb slots=1\n")
    given = {
        "np": None,
        "num_proc": 3,
        "hostfile": str(hostfile),
        "output_filename": "out",
        "ssh_port": 2222,
        "ssh_identity_file": "id",
        "network_interface": "eth0,eth1",
        "verbose": 2,
        "use_gloo": True,
        "use_mpi": None,
        "disable_cache": True,
        "start_timeout": 5,
    }
    spec = function_job(print, **given)
    assert ([str(host) for host in spec.hosts], spec.network_interfaces) == (["a:2", "b:1"], ("eth0", "eth1"))
    assert (spec.num_proc, spec.log_level, spec.start_timeout) == (3, "info", 5)
    assert spec.platform == {"port": 2222, "identity_file": "id"}
    assert spec.log_dir == str(Path("out").absolute())


def test_what_is_not_said_adds_nothing():
    assert translate({"np": 2, "env": {}}) == {"np": 2, "env": {}}
    given = {"num_proc": None, "min_num_proc": None, "ssh_port": None, "hostfile": None, "verbose": None}
    assert function_job(print, np=2, **given) == function_job(print, np=2)


def test_horovods_names_for_a_job_on_spark():
    spec = function_job(print, nics={"ib1", "eth0"}, prefix_output_with_timestamp=True, use_gloo=True)
    assert (spec.network_interfaces, spec.timestamps) == (("eth0", "ib1"), True)


def test_mpi_is_an_engine():
    assert translate({"np": 2, "use_mpi": True, "mpi_args": "--map-by node"}) == {
        "np": 2,
        "engine": "mpi",
        "platform": {"args": "--map-by node"},
    }
    with pytest.raises(ConfigError, match="use_mpi=True"):
        translate({"np": 2, "mpi_args": "--map-by node"})
    with pytest.raises(ConfigError, match="'horovod' for another"):
        translate({"np": 2, "use_mpi": True, "engine": "horovod"})


def test_a_job_that_grows_by_horovods_names():
    for name in ("max_num_proc", "max_np", "max_proc"):
        assert function_job(print, num_proc=2, min_num_proc=1, **{name: 5}).bounds.largest == 5
    options = {"host_discovery_script": "./hosts.sh x", "slots": 2, "reset_limit": 3, "cooldown_range": (2, 9)}
    spec = function_job(print, num_proc=2, blacklist="h1,h2", **options)
    assert (spec.discovery, spec.slots, spec.reset_limit, spec.cooldown_range) == (("./hosts.sh", "x"), 2, 3, (2, 9))
    assert (spec.bounds.smallest, spec.blacklist) == (2, ("h1", "h2"))
    assert function_job(print, num_proc=2, discovery=["./my hosts.sh"]).discovery == ("./my hosts.sh",)
    with pytest.raises(ConfigError, match=r"discovery \(--host-discovery-script\): it is for an elastic job"):
        function_job(print, host_discovery_script="x")
    with pytest.raises(ConfigError, match=r"discovery .*: expected a command and its arguments, got 3"):
        function_job(print, num_proc=2, discovery=3)


def test_an_elastic_job_by_horovods_names():
    for name in ("min_num_proc", "min_np", "min_proc"):
        spec = function_job(print, num_proc=3, elastic_timeout=7, **{name: 2})
        assert (spec.bounds.smallest, spec.bounds.first, spec.bounds.shortage) == (2, 3, 7)
    with pytest.raises(ConfigError, match="min_num_proc or min_np, not both"):
        function_job(print, num_proc=3, min_num_proc=2, min_np=2)


def test_two_names_of_one_thing_and_bad_files(tmp_path):
    with pytest.raises(ConfigError, match="np or num_proc"):
        tfcollective.run(print, np=2, num_proc=2)
    with pytest.raises(ConfigError, match="hostfile"):
        tfcollective.run(func=print, hostfile=tmp_path / "none")
    for given in ({}, {"fn": print, "func": print}):
        with pytest.raises(ConfigError, match="as fn, or as func"):
            tfcollective.run(**given, num_proc=1)


@pytest.mark.multiprocess
def test_a_function_runs_as_horovod_would_run_it(tmp_path):
    results = tfcollective.run(
        func=abs,
        args=(-3,),
        num_proc=2,
        hosts="localhost:2",
        executable=sys.executable,
        output_filename=str(tmp_path / "out"),
    )
    assert results == [3, 3]
    assert (tmp_path / "out" / "rank.0" / "stdout").exists()
