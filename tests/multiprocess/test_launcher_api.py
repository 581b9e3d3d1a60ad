"""``tfcollective.run``: functions on real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from launching import where
from time_limits import within

import tfcollective
from tfcollective._base.experiment import Trainable

pytestmark = pytest.mark.multiprocess


def test_the_results_come_in_rank_order():
    results = tfcollective.run(where, (21,), {"times": 2}, np=3)
    assert [result[:2] for result in results] == [("worker:0", 42), ("worker:1", 42), ("worker:2", 42)]
    assert len({result[2] for result in results} | {os.getpid()}) == 4


def test_an_unbuilt_checkout_hides_no_installed_package(tmp_path):
    """The directory where a user happens to be is not where children look for us."""
    (tmp_path / "here" / "tfcollective").mkdir(parents=True)
    (tmp_path / "here" / "tfcollective" / "__init__.py").write_text("raise SystemExit('the checkout was imported')")
    script = tmp_path / "script.py"
    script.write_text("import tfcollective\nprint(tfcollective.run(str.upper, ('x',), np=2))")
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path / "here", capture_output=True, text=True, timeout=within(100), check=False
    )
    assert done.stdout.strip() == "['X', 'X']", done.stderr


def test_specs_say_who_runs():
    specs = tfcollective.allreduce_topology(1, "1 GiB", 2, nb_proc_per_worker=2, evaluator=False, tensorboard=False)
    results = tfcollective.run(where, (1,), task_specs=specs)
    assert [result[0] for result in results] == ["chief:0", "worker:0", "worker:1"]


def test_an_experiment_that_comes_back_is_trained():
    class Doubled(Trainable):
        def __init__(self, value):
            self.value = value

        def train(self):
            return 2 * self.value

    assert tfcollective.run(Doubled, (4,), np=1) == [8]


def test_a_function_can_go_by_its_name():
    fn = tfcollective.get_safe_experiment_fn("launching.where", 21)
    assert [result[:2] for result in tfcollective.run(fn, kwargs={"times": 2}, np=2)] == [
        ("worker:0", 42),
        ("worker:1", 42),
    ]
    with pytest.raises(tfcollective.WorkerFailedError, match=r"cannot find the function launching\.nowhere"):
        tfcollective.run(tfcollective.get_safe_experiment_fn("launching.nowhere"))
    with pytest.raises(tfcollective.ConfigError, match="expected the name of a function"):
        tfcollective.get_safe_experiment_fn("where")


def test_one_process_by_default():
    assert len(tfcollective.run(where, (1,))) == 1


def test_what_a_closure_holds_goes_along():
    value = {"x": [1, 2, 3]}
    assert tfcollective.run(lambda: value, np=2) == [value, value]


def test_large_arguments_and_results():
    data = os.urandom(5_000_000)
    (back,) = tfcollective.run(lambda given: given[::-1], (data,))
    assert back == data[::-1]


def test_options_reach_the_ranks(tmp_path):
    def look():
        return os.environ["A"], os.environ["TFCOLLECTIVE_OP_TIMEOUT"], str(Path.cwd())

    assert tfcollective.run(look, env={"A": "b"}, op_timeout=9.0, cwd=str(tmp_path)) == [("b", "9", str(tmp_path))]


def test_what_is_not_given_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_OP_TIMEOUT", "17")
    monkeypatch.setenv("TFCOLLECTIVE_TRANSPORT", "tcp")

    def look():
        return os.environ["TFCOLLECTIVE_OP_TIMEOUT"], os.environ["TFCOLLECTIVE_TRANSPORT"]

    assert tfcollective.run(look) == [("17", "tcp")]
    assert tfcollective.run(look, op_timeout=9.0) == [("9", "tcp")]


def test_an_exception_comes_back_with_its_traceback():
    def fail():
        if os.environ["TFCOLLECTIVE_TASK"] == "worker:1":
            raise ValueError("of rank 1")
        time.sleep(60)

    with pytest.raises(tfcollective.WorkerFailedError, match="ValueError: of rank 1") as caught:
        tfcollective.run(fail, np=2)
    error = caught.value
    assert "in fail" in str(error)
    assert error.first["rank"] == 1
    assert error.first["exception"]["type"] == "ValueError"
    assert [failure["rank"] for failure in error.failures] == [1, 0]


@pytest.mark.parametrize("dies", [False, True])
def test_ended_ranks_blame_the_failed_one(dies):
    def fail():
        tfcollective.init()
        if tfcollective.rank() == 2:
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("of rank 2")
        tfcollective.get_communicator().barrier()

    with pytest.raises(tfcollective.WorkerFailedError) as caught:
        tfcollective.run(fail, np=3)
    assert caught.value.first["rank"] == 2
    others = [failure for failure in caught.value.failures if failure["rank"] != 2 and failure["exception"]]
    assert {failure["exception"]["blames"] for failure in others} == {2}
    assert all(failure["seen"] > 0.0 for failure in caught.value.failures)


def test_an_unpicklable_result_is_an_error():
    with pytest.raises(tfcollective.WorkerFailedError, match="the result of worker:0 cannot be sent"):
        tfcollective.run(threading.Lock)


def test_an_exit_code_is_a_failure():
    with pytest.raises(tfcollective.WorkerFailedError, match="exited with code 7"):
        tfcollective.run(sys.exit, (7,), np=2)


def test_it_works_from_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.extend(tfcollective.run(where, (1,), np=2)))
    thread.start()
    thread.join(within(60))
    assert len(results) == 2


def test_ctrl_c_ends_the_ranks_and_is_raised():
    program = textwrap.dedent(
        """
        import time, tfcollective
        def fn():
            print("ready", flush=True)
            time.sleep(1000)
        try:
            tfcollective.run(fn, np=2)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert "ready" in process.stdout.readline()
    assert "ready" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=within(30))
    assert "interrupted" in out
    assert process.returncode == 0


@pytest.mark.parametrize("leave", [lambda: os._exit(0), lambda: sys.exit(0)], ids=["_exit", "exit"])
def test_a_function_exiting_silently_fails_everywhere(leave):
    def leave_on_one():
        if os.environ["TFCOLLECTIVE_TASK"] == "worker:1":
            leave()
        time.sleep(within(120))  # nothing that this rank does tells it of rank 1: the launcher has to end it

    began = time.monotonic()
    with pytest.raises(
        tfcollective.WorkerFailedError, match=r"rank 1.*exited with code 0 before its function had returned"
    ):
        tfcollective.run(leave_on_one, np=3)
    assert time.monotonic() - began < within(60)


def test_paths_may_be_path_objects(tmp_path):
    found = tfcollective.run(lambda: str(Path.cwd()), cwd=tmp_path, log_dir=tmp_path / "logs")
    assert found == [str(tmp_path)]
    assert (tmp_path / "logs" / "rank.0" / "stdout").exists()
    with pytest.raises(tfcollective.ConfigError, match=r"cwd \(--cwd\): expected a path, got 3"):
        tfcollective.run(print, cwd=3)
