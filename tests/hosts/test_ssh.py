"""Jobs on hosts that a real sshd serves: what ranks get, what is refused before anything starts, and what is cut."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from external_engines import path_with_mpi4py, python_with_horovod
from launching import JOIN, MEET, Run, environment_of, gone, until, words_of
from time_limits import within

pytestmark = [pytest.mark.hosts, pytest.mark.multiprocess]

# Joins the world, says what it sees, and waits.
WAIT = f"{JOIN}\nc = join(); print('ready', flush=True); time.sleep(120)"


def python(program):
    return ("python", "-c", program)


def ranks_seen(out):
    return sorted(int(found) for found in re.findall(r"^\[(\d+)\]<stdout>: ready", out, re.M))


def test_hosts_get_ranks_in_the_lists_order(hosts):
    program = """
import os, socket, subprocess
links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True).stdout
lan = [word for word in links.replace("@", " ").split() if word.startswith("lan")][0]
print(os.environ["TFCOLLECTIVE_TASK"], os.environ["TFCOLLECTIVE_BIND_HOST"], lan)
"""
    last_first = f"{hosts.addresses[3]}:2,{hosts.addresses[0]}:1"
    code, out, err = hosts.finish("-np", "3", "-H", last_first, *python(program))
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        f"[0]<stdout>: worker:0 {hosts.addresses[3]} lan4",
        f"[1]<stdout>: worker:1 {hosts.addresses[3]} lan4",
        f"[2]<stdout>: worker:2 {hosts.addresses[0]} lan1",
    ]


def test_exactly_as_many_as_asked_for(hosts):
    code, out, _ = hosts.finish("-np", "2", "-H", f"{hosts.addresses[0]}:4", *python("print('here')"))
    assert code == 0
    assert sorted(out.splitlines()) == ["[0]<stdout>: here", "[1]<stdout>: here"]


def test_the_interface_can_be_named_by_its_network(hosts):
    program = "import os; print(os.environ['TFCOLLECTIVE_BIND_HOST'])"
    arguments = ("--network-interface", "10.213.87.0/24", "-H", hosts.listed(count=2), *python(program))
    code, out, err = hosts.finish(*arguments)
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[{rank}]<stdout>: {hosts.addresses[rank]}" for rank in range(2)]


def test_an_interface_that_is_not_there_is_named(hosts):
    code, _, err = hosts.finish("--network-interface", "ib7", "-H", hosts.listed(count=2), *python("print(1)"))
    assert code == 64
    assert "no interface here is or lies in ib7" in err


def test_collectives_between_hosts(hosts):
    program = """
import numpy, tfcollective
from tfcollective._runtime.communicator import Sum
from tfcollective._runtime import get_communicator
tfcollective.init()
total = get_communicator().allreduce(numpy.full(100_000, tfcollective.rank() + 1, numpy.float32), op=Sum)
print(tfcollective.size(), tfcollective.local_size(), tfcollective.cross_size(), total.min(), total.max())
tfcollective.shutdown()
"""
    code, out, err = hosts.finish("-H", hosts.listed(slots=2), *python(program))
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[{rank}]<stdout>: 8 2 4 36.0 36.0" for rank in range(8)]


def test_a_function_runs_on_all_hosts_and_returns(hosts, tmp_path):
    (tmp_path / "moved.py").write_text(
        "def where(word):\n    import os\n    return word + os.environ['TFCOLLECTIVE_BIND_HOST']\n"
    )
    platform = {"identity_file": str(hosts.folder / "id"), "options": hosts.options()[1].split()}
    program = f"""
import sys, tfcollective
sys.path.insert(0, {str(tmp_path)!r})
import moved
print(tfcollective.run(moved.where, ("at ",), launcher="ssh", hosts={hosts.listed()!r}, platform={platform!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=within(90))
    assert done.stdout == f"{[f'at {address}' for address in hosts.addresses]}\n", done.stderr


def test_a_tf_config_for_several_hosts(hosts):
    program = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["worker"][config["task"]["index"]].rsplit(":", 1)
socket.create_server((host, int(port)))
print(config["task"]["index"], host == os.environ["TFCOLLECTIVE_BIND_HOST"], len(set(config["cluster"]["worker"])))
"""
    code, out, err = hosts.finish("--emit-tf-config", "-H", hosts.listed(slots=2, count=2), *python(program))
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[{rank}]<stdout>: {rank} True 4" for rank in range(4)]


def test_ranks_of_two_hosts_meet(hosts):
    code, out, err = hosts.finish("--no-prefix", "-H", hosts.listed(slots=2, count=2), *python(MEET))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["held", "met 1", "met 2", "met 3"]


# Two hosts, the second with two ranks: MPI's and Horovod's own worlds.
TOPOLOGY = "{rank} 3 {local} {locals} {cross} {crosses} 6.0"
EXPECTED = [
    TOPOLOGY.format(rank=0, local=0, locals=1, cross=0, crosses=2),
    TOPOLOGY.format(rank=1, local=0, locals=2, cross=1, crosses=2),
    TOPOLOGY.format(rank=2, local=1, locals=2, cross=0, crosses=1),
]
PLACES = "hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()"


def placed(hosts):
    return f"{hosts.addresses[2]}:1,{hosts.addresses[0]}:2"


def seen_from(out):
    return [line.partition(": ")[2] for line in sorted(out.splitlines()) if "<stdout>" in line]


def test_the_engine_mpi_on_several_hosts(hosts, tmp_path):
    program = f"""
import numpy, tfcollective as hvd
hvd.init()
total = hvd.get_communicator().allreduce(numpy.full(3, hvd.rank() + 1.0), hvd.Sum)
print({PLACES}, total[0])
"""
    arguments = ("--engine", "mpi", "-H", placed(hosts), *python(program))
    code, out, err = hosts.finish(*arguments, env=path_with_mpi4py(tmp_path), timeout=120)
    assert code == 0, err
    assert seen_from(out) == EXPECTED, (out, err)


def test_a_failing_mpi_rank_names_its_host(hosts, tmp_path):
    program = """
import os, numpy, tfcollective as tfc
tfc.init()
world = tfc.get_communicator()
world.allreduce(numpy.ones(3))
if world.rank == 2: os._exit(7)
world.allreduce(numpy.ones(3))
"""
    arguments = ("--engine", "mpi", "-H", placed(hosts), *python(program))
    with hosts.run(*arguments, env=path_with_mpi4py(tmp_path)) as one:
        code, _, err = one.finish(120)
        one.wait_until_gone(10.0)
    assert code == 7, err
    assert re.search(r"rank 2 \(worker:2, pid \d+ on .*, slot 1\) exited with code 7", err), err


def test_the_engine_horovod_on_several_hosts(hosts):
    program = f"""
import horovod.tensorflow as hvd, numpy
hvd.init()
total = hvd.allreduce(numpy.full(3, hvd.rank() + 1.0), op=hvd.Sum)
print({PLACES}, total[0].numpy())
"""
    arguments = ("--engine", "horovod", "-H", placed(hosts), python_with_horovod(), "-c", program)
    code, out, err = hosts.finish("--env", "TF_CPP_MIN_LOG_LEVEL=3", *arguments, timeout=170)
    assert code == 0, err
    assert seen_from(out) == EXPECTED, (out, err)


@pytest.mark.tensorflow
def test_the_digits_example_trains_on_all_hosts(hosts, tmp_path):
    pytest.importorskip("tensorflow")
    script = str(Path(__file__).parents[2] / "examples" / "keras_digits.py")
    arguments = ("--epochs", "3", "--model-dir", str(tmp_path))
    quiet = ("--env", "TF_CPP_MIN_LOG_LEVEL=2", "--env", "CUDA_VISIBLE_DEVICES=")
    code, out, err = hosts.finish("-H", hosts.listed(), *quiet, "python", script, *arguments, timeout=170)
    assert code == 0, err
    assert (tmp_path / "keras_digits.keras").exists(), out


def test_this_machine_takes_part_without_ssh(hosts):
    program = "import os; print(os.environ['TFCOLLECTIVE_BIND_HOST'], 'SSH_CONNECTION' in os.environ)"
    code, out, err = hosts.finish("-H", f"localhost:1,{hosts.addresses[1]}:1", *python(program))
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        f"[0]<stdout>: {hosts.testbed.gateway} False",
        f"[1]<stdout>: {hosts.addresses[1]} True",
    ]


def test_directory_and_environment(hosts, tmp_path):
    program = "import os; print(os.getcwd(), os.environ['A'], os.environ['TF_X'], 'B_SECRET' in os.environ)"
    given = {"TF_X": "passed", "B_SECRET": "kept"}
    arguments = ("--env", "A=x y", "-H", hosts.listed(count=1), *python(program))
    _, out, err = hosts.finish(*arguments, cwd=str(tmp_path), env=given)
    assert out == f"[0]<stdout>: {tmp_path} x y passed False\n", err
    _, out, _ = hosts.finish("--pass-env", "B_*", *arguments, cwd=str(tmp_path), env=given)
    assert out == f"[0]<stdout>: {tmp_path} x y passed True\n"


def test_the_key_is_in_no_process_arguments(hosts):
    with hosts.run("-H", hosts.listed(count=2), *python(WAIT)) as one:
        one.wait_for_line("ready")
        keys = {environment_of(p).get("TFCOLLECTIVE_KEY_FILE") for p in one.processes()} - {None}
        texts = [" ".join(words_of(p)) for p in one.processes()]
        assert keys
        for path in keys:
            key = Path(path).read_text().strip()
            assert len(key) == 64
            assert not [text for text in texts if key in text]


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [("sys.exit(7)", 7, "exited with code 7"), ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL")],
)
def test_a_crash_blames_the_slot(hosts, end, code, how):
    program = f"{JOIN}\njoin()\nif rank == 3: {end}\ntime.sleep(60)"  # the other ranks are there to be ended
    begin = time.monotonic()
    got, _, err = hosts.finish("-H", hosts.listed(slots=2), *python(program))
    assert got == code
    assert re.search(rf"rank 3 \(worker:3, pid \d+ on {hosts.addresses[1]}, slot 1\) {how}", err), err
    assert time.monotonic() - begin < within(40)


def test_output_in_files_with_names_of_one_length(hosts, tmp_path):
    hosts.finish("-H", hosts.listed(slots=3), "--output-filename", str(tmp_path / "out"), *python("print('x')"))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"rank.{rank:02d}" for rank in range(12)]
    assert (tmp_path / "out/rank.11/stdout").read_text() == "x\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_hosts(hosts, number):
    with hosts.run("-H", hosts.listed(), *python(WAIT)) as one:
        one.wait_for_line("ready")
        one.signal(number)
        assert one.finish(30)[0] == 128 + number
        one.wait_until_gone(3.0)


def test_when_the_launcher_is_killed_all_hosts_end(hosts):
    with hosts.run("-H", hosts.listed(), *python(WAIT)) as one:
        one.wait_for_line("ready")
        one.signal(signal.SIGKILL)
        one.wait_until_gone(15.0)


# ---- refused before anything starts ---------------------------------------------------------------------------------


def refused(hosts, *arguments, **options):
    """The report of a job that must not begin anywhere."""
    code, out, err = hosts.finish(*arguments, *python("print('begun')"), **options)
    assert code == 70, err
    assert "begun" not in out
    assert "nothing was started" in err
    return err


def test_a_host_without_sshd(hosts):
    hosts.stop_sshd(2)
    try:
        err = refused(hosts, "-H", hosts.listed())
        assert f"{hosts.addresses[1]}: ssh cannot connect" in err
        assert "Connection refused" in err
        assert f"ssh {hosts.addresses[1]} true" in err
    finally:
        hosts.start_sshd(2)


def test_a_key_that_the_host_does_not_accept(hosts):
    err = refused(
        hosts,
        "-i",
        str(hosts.folder / "unauthorized"),
        "--ssh-options",
        f"-F none -o IdentitiesOnly=yes -o UserKnownHostsFile={hosts.folder}/known_hosts",
        "-H",
        hosts.listed(count=2),
    )
    assert err.count("ssh is refused") == 2
    assert f"ssh-copy-id {hosts.addresses[0]}" in err


def test_a_host_key_that_has_changed(hosts):
    hosts.finish("-H", hosts.listed(), *python("print(1)"))
    hosts.start_sshd(3, key="other_key")
    try:
        err = refused(hosts, "-H", hosts.listed())
        assert f"{hosts.addresses[2]}: its host key is not the known one" in err
        assert f"ssh-keygen -R {hosts.addresses[2]}" in err
    finally:
        hosts.start_sshd(3)


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_host_without_that_python(hosts):
    err = refused(hosts, "--remote-python", "/nowhere/python", "-H", hosts.listed(count=2))
    assert "there is no /nowhere/python" in err
    assert "--remote-python" in err


def test_a_host_without_the_package(hosts, tmp_path):
    bare = script(tmp_path / "bare", f'exec {sys.executable} -I -S "$@"')
    err = refused(hosts, "--remote-python", bare, "-H", hosts.listed(count=1))
    assert "has no tfcollective there" in err
    assert f"{bare} -m pip install tfcollective==" in err


def test_a_host_with_another_version(hosts, tmp_path):
    package = tmp_path / "tfcollective"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.0.7'")
    other = script(tmp_path / "other", f'PYTHONPATH={tmp_path} exec {sys.executable} "$@"')
    err = refused(hosts, "--remote-python", other, "-H", hosts.listed(count=1))
    assert "tfcollective 0.0.7 is installed there" in err


def test_a_host_with_another_python(hosts, tmp_path):
    fake = "import sys; sys.version_info = (3, 9, 2); exec(sys.stdin.read())"
    other = script(tmp_path / "other", f"shift; exec {sys.executable} -c '{fake}' \"$@\"")
    err = refused(hosts, "--remote-python", other, "-H", hosts.listed(count=1))
    assert "is Python 3.9.2 there" in err


def test_a_host_without_the_directory(hosts):
    err = refused(hosts, "--cwd", "/no/such/place", "-H", hosts.listed(count=1))
    assert "the working directory is not there" in err


def test_all_bad_hosts_are_named(hosts):
    hosts.stop_sshd(2)
    hosts.stop_sshd(4)
    try:
        err = refused(hosts, "-H", hosts.listed())
        assert [hosts.addresses[n] in err for n in range(4)] == [False, True, False, True]
    finally:
        hosts.start_sshd(2)
        hosts.start_sshd(4)


# ---- cut in training ------------------------------------------------------------------------------------------------


def test_a_cut_link_ends_all_ranks(hosts):
    with hosts.run("-H", hosts.listed(), *python(WAIT)) as one:
        for _ in range(4):
            one.wait_for_line("ready")
        hosts.cut(3)
        cut_at = time.monotonic()
        try:
            ranks = [p for p in one.processes() if environment_of(p).get("TFCOLLECTIVE_TASK")]
            assert len(ranks) == 4
            until(lambda: all(map(gone, ranks)), 30)
            assert time.monotonic() - cut_at < within(23)
            code, _, err = one.finish(20)
            assert code == 75
            assert f"the host {hosts.addresses[2]} ({hosts.addresses[2]}) has not answered for 15 s" in err
            one.wait_until_gone(10.0)
        finally:
            hosts.mend(3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_agent_is_named(hosts, number):
    with hosts.run("-H", hosts.listed(), *python(WAIT)) as one:
        for _ in range(4):
            one.wait_for_line("ready")
        agent = next(p for p in one.processes() if environment_of(p).get("TFCOLLECTIVE_TASK") == "worker:2").parent()
        agent.send_signal(number)
        try:
            code, _, err = one.finish(60)
            if number == signal.SIGKILL:
                assert code == 70
                said = f"{hosts.addresses[2]}: the agent (pid {agent.pid}) has ended without a report (ssh: exit code"
            else:
                assert code == 75
                said = f"the host {hosts.addresses[2]} ({hosts.addresses[2]}) has not answered for 15 s"
            assert said in err, err
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                agent.send_signal(signal.SIGCONT)  # it ends what it has started
        one.wait_until_gone(15.0)


# ---- agents that are started by hand ---------------------------------------------------------------------------------


def test_agents_started_by_hand(hosts, tmp_path):
    key = tmp_path / "job.key"
    program = f"{JOIN}\njoin(); print('ready', me.node_id)"
    arguments = ("--wait-for-agents", "2", "--network-interface", "tfcbed", "--port", "29999", "--key-file", str(key))
    with hosts.run("-np", "4", *arguments, *python(program)) as one:
        command = [sys.executable, "-m", "tfcollective", "agent", "--join", f"{hosts.testbed.gateway}:29999"]
        agents = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, *command, "--key-file", str(key), "--name", name],
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in hosts.testbed.namespaces[:2]
        ]
        outs = [agent.communicate(timeout=within(60))[0] for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0]
        code, _, err = one.finish(30)
        assert code == 0, err
        assert f"tfcollective agent --join {hosts.testbed.gateway}:29999 --key-file {key}" in err
    assert ranks_seen("".join(outs)) == [0, 1, 2, 3]
    assert all(len(set(re.findall(r"ready (\w+)", out))) == 1 for out in outs)
    assert not os.path.exists(key)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is missing: install openmpi-bin")
def test_agents_started_by_mpirun(tmp_path):
    key = tmp_path / "job.key"
    program = f"{JOIN}\njoin(); print('ready')"
    arguments = ("-np", "4", "--wait-for-agents", "2", "--network-interface", "lo", "--key-file", str(key))
    with Run((*arguments, *python(program))) as one:
        join = next(line for line in one.process.stderr if "agent --join" in line).split()
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "--mca", "btl", "self,tcp"]
        done = subprocess.run([*start, sys.executable, "-m", *join], capture_output=True, text=True, timeout=within(90))
        assert done.returncode == 0, done.stderr
        assert one.finish(30)[0] == 0
    assert ranks_seen(done.stdout) == [0, 1, 2, 3]
