"""Agents that the launcher has not started, here on this machine, over its loopback interface."""

import signal

import psutil
import pytest
from by_hand import free_port
from launching import JOIN, Run, agents, gone, run, until
from time_limits import within

pytestmark = pytest.mark.multiprocess

ON_LOOPBACK = ("--network-interface", "lo")


def test_agents_share_the_ranks_and_end_with_them(tmp_path):
    key = tmp_path / "key"
    arguments = ("-np", "3", "--wait-for-agents", "2", "--key-file", str(key), *ON_LOOPBACK)
    program = f"{JOIN}\njoin(); print('rank', rank, me.world_size)\nif rank == 2: wait_until(2, 'exited'); sys.exit(5)"
    with Run((*arguments, "python", "-c", program)) as one, agents(one, 2, key) as started:
        said = [agent.communicate(timeout=within(60))[0] for agent in started]
        code, _, err = one.finish()
    assert [agent.returncode for agent in started] == [0, 0]
    assert sorted("".join(said).splitlines()) == [f"[{rank}]<stdout>: rank {rank} 3" for rank in range(3)]
    assert code == 5
    assert "rank 2 (worker:2, pid " in err
    assert not key.exists()


def test_agents_rejoin_a_restarted_job(tmp_path):
    key, failed = tmp_path / "key", tmp_path / "failed"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    place = ("--port", str(free_port()), "--key-file", str(key))
    arguments = ("-np", "2", "--wait-for-agents", "2", "--max-restarts", "1", *place, *ON_LOOPBACK)
    # The rank that does not fail sleeps until it is ended: an agent whose ranks have all ended well has left its job.
    first = f"from pathlib import Path\nfailed = Path({str(failed)!r})\nfirst = not failed.exists()"
    once = "if first and rank == 0: time.sleep(600)\nif first: failed.touch(); os._exit(5)"
    program = f"{JOIN}\n{first}\njoin(); print('rank', rank)\n{once}"
    with Run((*arguments, "python", "-c", program)) as one, agents(one, 2, key) as started:
        said = [agent.communicate(timeout=within(90))[0] for agent in started]
        code, _, err = one.finish()
    assert code == 0, err
    assert [agent.returncode for agent in started] == [0, 0]
    assert "rank 1" in said[0] + said[1]
    assert failed.exists()
    assert key.read_text() == "ab" * 32  # given, so it stays


@pytest.mark.hosts  # needs nothing but time: seven seconds of silence
def test_agents_of_a_killed_launcher_end_ranks(tmp_path):
    key = tmp_path / "key"
    arguments = ("-np", "1", "--wait-for-agents", "1", "--key-file", str(key), *ON_LOOPBACK)
    program = f"{JOIN}\njoin(); print('pid', os.getpid(), flush=True); time.sleep(100)"
    with Run((*arguments, "python", "-c", program)) as one, agents(one, 1, key) as (agent,):
        rank = psutil.Process(int(agent.stdout.readline().split()[-1]))
        one.signal(signal.SIGKILL)
        agent.communicate(timeout=within(30))
        assert agent.returncode == 75
        until(lambda: gone(rank))


def test_one_rank_keeps_its_output_too(tmp_path):
    assert run("-np", "1", "--output-filename", str(tmp_path / "o"), "python", "-c", "print(1)")[0] == 0
    assert (tmp_path / "o/rank.0/stdout").read_text() == "1\n"
