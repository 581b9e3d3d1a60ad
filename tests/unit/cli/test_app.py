import json
import os
import re
import signal
import socket
import subprocess
import sys

import click
import pytest

from tfcollective._base import errors
from tfcollective._base.exit_codes import ExitCode, code_of
from tfcollective._base.private_directory import runtime_directory
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint
from tfcollective._cli import main, run_main
from tfcollective._cli.app import app
from tfcollective._cli.groups import GroupedCommand
from tfcollective._control.records import JobDirectory, JobRecord
from tfcollective._control.snapshot import JobSnapshot, TaskView


def commands(group=app, words=()):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name), command
        yield from commands(command, (*words, name)) if isinstance(command, click.Group) else ()


COMMANDS = pytest.mark.parametrize(
    ("words", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in commands()]
)


@COMMANDS
def test_every_help_has_examples(words, command, capsys):
    assert main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"tfcollective {' '.join(words)}" in out.split("Examples:")[1]


@COMMANDS
def test_many_options_are_shown_in_groups(words, command):
    shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    assert len(shown) <= 12 or isinstance(command, GroupedCommand)


@COMMANDS
def test_every_option_is_described_in_a_sentence(words, command):
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden:
            assert re.search(r"\w\.( \[[^]]+\])?$", one.help.replace(")", "")), one.help


@pytest.mark.parametrize("arguments", [[], ["bench"]], ids=["all", "bench"])
def test_lists_of_commands_say_whole_sentences(arguments, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*arguments, "--help"]) == 0
    commands = capsys.readouterr().out.split("Commands:")[1].split("Examples:")[0]
    lines = [line for line in commands.splitlines() if line.strip()]
    assert len(lines) >= 5
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)


def test_an_agent_says_what_it_needs(capsys):
    assert main(["agent"]) == 64
    assert "--join HOST:PORT and --key-file F" in capsys.readouterr().err
    assert main(["agent", "--join", "127.0.0.1:5"]) == 64
    assert "--key-file" in capsys.readouterr().err


def test_an_agent_reads_the_address_before_waiting(tmp_path, capsys):
    assert main(["agent", "--join", "nowhere", "--key-file", str(tmp_path / "key"), "--start-timeout", "0.1"]) == 64
    err = capsys.readouterr().err
    assert "--join: expected HOST:PORT, got 'nowhere'" in err
    assert "key" not in err


def test_an_agent_says_it_awaits_the_key(tmp_path, caplog, capsys):
    missing = str(tmp_path / "key")
    assert main(["agent", "--join", "127.0.0.1:5", "--key-file", missing, "--start-timeout", "0.1"]) == 64
    assert f"waiting for the key file {missing}, at most 0.1 s" in caplog.text
    assert f"the key file {missing}: cannot read the job key" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert "tfcollective" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-np", "0", "true"], "num_proc (-np): expected 1 or more, got 0"),
        (["run", "-np", "two", "true"], "num_proc (-np): expected 1 or more, got 'two'"),
        (["run", "-np", "99999", "true"], "num_proc (-np): expected at most 16384, because the list of all ranks"),
        (["run", "true"], "-np"),
        (
            ["run", "-np", "2", "--task-spec", "worker", "true"],
            "num_proc (-np) and task_specs (--task-spec) cannot be combined",
        ),
        (
            ["run", "--task-spec", "worker:vcores=x", "true"],
            "task_specs (--task-spec): worker:vcores=x: vcores: expected 1 or more, got 'x'",
        ),
        (["run", "--task-spec", "worker:speed=1", "true"], "got 'speed=1'"),
        (["run", "--task-spec", "worker:instances=0", "true"], "instances: expected 1 or more, got 0"),
        (
            ["run", "--task-spec", "chief", "--task-spec", "chief", "true"],
            "task_specs (--task-spec): chief: given twice",
        ),
        (["run", "--task-spec", "chief:instances=2", "true"], "chief: instances: expected 1, got 2"),
        (["run", "--task-spec", "evaluator", "true"], "no task trains"),
        (["run", "--task-spec", "worker", "--task-spec", "tensorboard", "true"], "tensorboard: tb_model_dir: give it"),
        (
            ["run", "--task-spec", "tensorboard:tb_termination_timeout_seconds=soon", "true"],
            "tb_termination_timeout_seconds: expected a number, 0 or more, or -1 (default), got 'soon'",
        ),
        (["run", "--task-spec", "worker", "--task-spec", "ps", "true"], "there are no parameter servers"),
        (["run", "-np", "2"], "the command to run is missing"),
        (["run", "-np", "2", "--bogus", "true"], "--bogus"),
        (["run", "-np", "2", "python", "none.py"], "the script none.py does not exist"),
        (["run", "-np", "2", "--env", "A", "true"], "NAME=VALUE"),
        (["run", "-np", "2", "--transport", "x", "true"], "--transport"),
        (
            ["run", "-np", "2", "--start-timeout", "0", "true"],
            "start_timeout (--start-timeout): expected a number of seconds, above 0, got 0.0",
        ),
        (
            ["run", "-np", "2", "--log-dir", "/dev/null/x", "true"],
            "--log-dir: cannot make /dev/null/x: Not a directory",
        ),
        (["run", "-np", "2", "--cwd", "/no/place", "true"], "--cwd: the directory /no/place does not exist"),
        (["run", "--hostfile", "/no/file", "true"], "cannot read the hostfile /no/file: No such file or directory"),
        (["run", "-np", "2", "--config-file", "/dev", "true"], "--config-file: cannot read /dev: Is a directory"),
        (["check", "--queue", "q"], "--queue or --partition needs --launcher"),
        (["check", "--remote-python", "p"], "--remote-python needs --launcher"),
        (["check", "--launcher", "local"], "this launcher has no check"),
        (["nothing"], "nothing"),
        (["--nothing"], "No such option"),
        (
            ["-np", "2", "python", "-c", "print('a b')"],
            "-np is an option of `run`: write tfcollective run -np 2 python -c 'print('\"'\"'a b'\"'\"')'",
        ),
        (["--num-proc=2", "true"], "--num-proc is an option of `run`: write tfcollective run --num-proc=2 true"),
        (["--report"], "--report is an option of `check`: write tfcollective check --report"),
    ],
)
def test_wrong_usage_is_said_and_is_64(arguments, message, capsys):
    assert main(arguments) == 64
    assert message in capsys.readouterr().err


def test_dry_run_prints_the_plan_and_starts_nothing(capsys):
    assert main(["run", "-np", "2", "--dry-run", "python", "-c", "raise SystemExit(9)"]) == 0
    text = capsys.readouterr().out
    assert "rank 1 (worker:1, local rank 1)" in text
    assert f"command: {sys.executable} -c 'raise SystemExit(9)'" in text


def test_roles_instead_of_a_number(capsys):
    specs = ["--task-spec", "worker:instances=2,memory=2GiB", "--task-spec", "chief", "--task-spec", "ps:instances=3"]
    assert main(["run", *specs, "--ps-policy", "exit0", "--dry-run", "true"]) == 0
    text = capsys.readouterr().out
    for rank, task in enumerate(("chief:0", "worker:0", "worker:1")):
        assert f"rank {rank} ({task}, local rank {rank})" in text
    assert "rank 3" not in text


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["-m", "a.b", "--help", "-np", "7"], "-m a.b --help -np 7"),
        (["--", "sh", "-c", "exit"], "sh -c exit"),
        (["sh", "--env", "x"], "sh --env x"),
        (["--env", "-m=3", "-m", "a.b", "-x"], "-m a.b -x"),
    ],
)
def test_what_belongs_to_the_command_stays_with_it(arguments, command, capsys):
    assert run_main(["-np", "1", "--dry-run", *arguments]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "command:" in line)
    assert line.endswith(command)


def test_settings_give_the_defaults(monkeypatch, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_OP_TIMEOUT", "17")
    assert main(["run", "-np", "1", "--dry-run", "--start-timeout", "5", "true"]) == 0
    text = capsys.readouterr().out
    assert "TFCOLLECTIVE_OP_TIMEOUT=17" in text
    assert "TFCOLLECTIVE_START_TIMEOUT=5" in text


def test_status_without_jobs(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "jobs"))
    assert main(["status"]) == 0
    assert "no job of yours" in capsys.readouterr().out
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_status_cuts_nothing_off_in_a_pipe(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "jobs"))
    info = {"url": "http://localhost:6006/" + "[long]" * 20}
    rank0 = TaskView(TaskKey("worker", 0), 0, last_heartbeat=7.0, info=info, host="h" * 40)
    record = JobRecord("job-1", Endpoint("h", 1), b"k" * 32, 5, 1.0, ("train", "--layers", "[dense]" * 20))
    answer = record, JobSnapshot("job-1", (rank0,), at=8.0), None
    monkeypatch.setattr("tfcollective._cli.status.answers", lambda records: iter([answer]))
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"job-1 (pid 5): train --layers '{'[dense]' * 20}'"
    assert all(column in lines[2] for column in ("operations", "last heartbeat"))
    assert all(cell in lines[4] for cell in ("h" * 40, "1 s ago", info["url"]))
    assert len(lines) == 6


def test_every_error_has_an_exit_code():
    kinds = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    for kind in kinds:
        if issubclass(kind, errors.TfCollectiveError):
            assert code_of(kind("text")) >= ExitCode.USAGE


def test_status_shows_a_job_without_an_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "jobs"))
    parent = runtime_directory(str(tmp_path / "jobs"), {}, str)
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = Endpoint(*free.getsockname())
    with JobDirectory.create(parent, "job-1") as job:
        job.publish(JobRecord("job-1", endpoint, b"k" * 32, os.getpid(), 1.0, ("train",)))
        assert main(["status"]) == 0
        assert "it does not answer" in capsys.readouterr().out
        assert main(["status", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["job"], found["tasks"]) == ("job-1", [])
        assert "no answer from the coordinator" in found["unreachable"]
    assert main(["status"]) == 0
    assert "no job of yours" in capsys.readouterr().out


def test_a_page_is_for_a_running_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "jobs"))
    assert main(["web", "job-9"]) != 0
    assert "job-9: no job of that name runs on this machine" in capsys.readouterr().err
    assert main(["web", "--listen", "8080", "job-9"]) == ExitCode.USAGE
    assert "--listen: expected HOST:PORT, got '8080'" in capsys.readouterr().err


@pytest.fixture
def running_job(tmp_path, monkeypatch):
    """A process that owns the record of ``job-1``, whose coordinator does not answer; it ends by SIGTERM."""
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "jobs"))
    parent = runtime_directory(str(tmp_path / "jobs"), {}, "")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(parent), str(tmp_path / "logs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout.readline() == b"made\n"
    yield owner
    owner.kill()
    owner.communicate()


OWNER = """
import os, sys
from pathlib import Path
from tfcollective._control.records import JobDirectory, JobRecord
from tfcollective._base.topology import Endpoint
job = JobDirectory.create(Path(sys.argv[1]), "job-1")
logs = sys.argv[2]
job.publish(JobRecord("job-1", Endpoint("127.0.0.1", 9), b"k" * 32, os.getpid(), 9.0, ("python", "a b"), log_dir=logs))
print("made", flush=True)
sys.stdin.read()
"""


def test_status_shows_one_job_of_this_machine(running_job, capsys):
    assert main(["status", "job-1"]) == 0
    out = capsys.readouterr().out
    assert f"launcher: process {running_job.pid}\n" in out
    assert "command: python 'a b'\n" in out
    assert main(["status", "job-2"]) == 64
    assert "'job-2' is no job that runs on this machine" in capsys.readouterr().err


def test_logs_prints_the_output_kept_here(running_job, tmp_path, capsysbinary):
    for rank, name, text in ((1, "stdout", "c\n"), (0, "stderr", "b\n"), (0, "stdout", "a\n"), (0, "stdout.1", "old")):
        path = tmp_path / "logs" / f"rank.{rank}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert main(["logs", "job-1"]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert lines == [
        *(f"==> {tmp_path}/logs/rank.0/stdout <==", "a"),
        *(f"==> {tmp_path}/logs/rank.0/stderr <==", "b"),
        *(f"==> {tmp_path}/logs/rank.1/stdout <==", "c"),
    ]


def test_logs_says_that_nothing_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "jobs"))
    with JobDirectory.create(runtime_directory(str(tmp_path / "jobs"), {}, ""), "job-1") as job:
        job.publish(JobRecord("job-1", Endpoint("127.0.0.1", 9), b"k" * 32, os.getpid(), 1.0, ("train",)))
        assert main(["logs", "job-1"]) != 0
    assert "--log-dir" in capsys.readouterr().err


def test_kill_ends_a_job_of_this_machine(running_job, capsys):
    assert main(["kill", "job-1"]) == 0
    assert running_job.wait() == -signal.SIGTERM
    assert main(["kill", "job-1"]) == 64
    assert "no job that runs on this machine" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["allreduce", "training", "scaling", "simulate"])
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "0", "-1"])
def test_a_turn_of_a_benchmark_has_an_end(command, seconds, capsys):
    assert main(["bench", command, "--deadline", seconds]) == 64
    assert "--deadline: expected seconds above 0" in capsys.readouterr().err
