"""What every platform does for a job, whatever starts its agents: a platform's tests subclass :class:`ProviderContract`
and give it a fixture ``platform``, a :class:`Platform`.

Nodes that come late, are refused or have another version are no platform's business: tests/unit/launch/test_gather.py.
"""

import re
import signal

import psutil
import pytest
from launching import JOIN, Run, environment_of, until, words_of


class Platform:
    """Two ranks on it, on two nodes where it has more than one.

    Attributes:
        arguments: what ``tfcollective run`` is given.
        env: variables of the launcher.
        lost: the exit code of a job whose agent has been killed.
        seconds: in which a job without trouble ends, and the loss of an agent is seen.
        silence: in which agents see that their launcher has gone (s).
        unit: what the error for an agent that has been killed speaks of.
        key_in_variables: whether what starts its agents takes the job key as a variable only, so that their
            environments have it, which no other user can read; those of ranks have it on no platform.
    """

    arguments = ("-np", "2")
    env: dict[str, str] = {}  # noqa: RUF012  # a subclass replaces it
    lost = 75
    seconds = 60.0
    silence = 20.0
    unit = "agent"
    key_in_variables = False

    def start(self, program):
        """A job whose ranks run this text."""
        return Run((*self.arguments, "python", "-c", program), env=self.env)

    def said(self, job):
        """What the ranks have printed, once the job has ended."""
        return job.finish(self.seconds)[1]

    def agents(self, job):
        """The processes of its agents that run, as psutil has them."""
        return [one for one in job.processes() if "tfcollective._launch.agent" in words_of(one)]

    def ranks(self, job):
        """The processes of its ranks that run."""
        return [one for one in job.processes() if "TFCOLLECTIVE_TASK" in environment_of(one)]


class ProviderContract:
    """The tests."""

    @pytest.fixture
    def waiting(self, platform, tmp_path):
        """A job whose ranks have met, and wait; each has left a file with the job key."""
        key = f"open({str(tmp_path)!r} + f'/key-{{rank}}', 'w').write(me.key.hex())"
        with platform.start(f"{JOIN}\njoin(); {key}; wait_until(2, 'running'); time.sleep(600)") as job:

            def met():
                assert job.process.poll() is None, job.process.stderr.read()
                return len([one for one in tmp_path.glob("key-*") if len(one.read_text()) == 64]) == 2

            until(met, platform.seconds)
            yield job
            job.wait_until_gone(10.0)

    def test_every_ranks_number_and_output_are_seen(self, platform):
        with platform.start(
            f"{JOIN}\nc = join(); print('I am', rank, 'of', me.world_size); c.call(Leave(me.task))"
        ) as job:
            said = platform.said(job)
            code, _, err = job.finish(platform.seconds)
            job.wait_until_gone(10.0)
        assert code == 0, err
        assert sorted(re.findall(r"I am (\d) of (\d)", said)) == [("0", "2"), ("1", "2")]

    def test_a_failed_ranks_code_ends_the_job(self, platform):
        program = f"{JOIN}\njoin(); wait_until(2, 'running')\nif rank == 1: sys.exit(5)\ntime.sleep(600)"
        with platform.start(program) as job:
            code, _, err = job.finish(platform.seconds)
            job.wait_until_gone(10.0)
        assert code == 5, err
        assert re.search(r"rank 1 \(worker:1, pid \d+", err), err

    @pytest.mark.kill
    def test_the_loss_of_an_agent_ends_the_job(self, platform, waiting):
        platform.agents(waiting)[-1].send_signal(signal.SIGKILL)
        code, _, err = waiting.finish(platform.seconds)
        assert code == platform.lost, err
        assert platform.unit in err

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_person_stops_it(self, platform, waiting, number, code):
        waiting.signal(number)
        found, _, err = waiting.finish(platform.seconds)
        assert found == code, err
        assert f"stopped by {signal.Signals(number).name}" in err

    @pytest.mark.kill
    def test_no_rank_outlives_the_launcher_for_long(self, platform, waiting):
        waiting.signal(signal.SIGKILL)
        until(
            lambda: not platform.ranks(waiting),
            platform.silence + 20,
            lambda: f"still there: {[words_of(one) for one in platform.ranks(waiting)]}",
        )
        waiting.wait_until_gone(20.0)

    def test_the_key_is_never_visible(self, platform, waiting, tmp_path):
        (key,) = {one.read_text() for one in tmp_path.glob("key-*")}
        for one in psutil.process_iter():
            assert key not in " ".join(words_of(one))
            environ = environment_of(one)
            assert key not in repr(environ) or (platform.key_in_variables and "TFCOLLECTIVE_TASK" not in environ)
        waiting.signal(signal.SIGTERM)
        assert key not in "".join([platform.said(waiting), *waiting.finish(platform.seconds)[1:]])


__all__ = ["Platform", "ProviderContract"]
