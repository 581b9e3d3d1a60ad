"""The evaluator's loop over real files; the clock advances only when the evaluator waits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tfcollective import files
from tfcollective._base.errors import ConfigError
from tfcollective._testing.clock import ManualClock
from tfcollective.auxiliary_tasks._checkpoints import NotWholeError
from tfcollective.auxiliary_tasks._evaluator import Evaluation, EvaluatorOptions, run_evaluator
from tfcollective.auxiliary_tasks._plan import IDLE, MAX_STEPS, TRAINING_ENDED
from tfcollective.auxiliary_tasks.tensorboard import EventFollower


class Run:
    """Evaluates what appears in a directory; ``script`` maps the number of a wait to what then happens."""

    def __init__(self, model_dir, losses=None, **options):
        self.model_dir, self.script, self.losses = model_dir, {}, losses or {}
        self.clock = ManualClock()
        self.waits, self.evaluated, self.figures, self.ended = [], [], [], False
        self.options = EvaluatorOptions(
            **{"write_events": False, "poll_interval": 1.0, "idle_timeout": 30.0, **options}
        )

    def run(self, **more):
        return run_evaluator(
            self.model_dir,
            self.evaluate,
            self.options,
            clock=self.clock,
            pause=self.pause,
            on_figures=self.figures.append,
            **{"training_ended": lambda: self.ended, **more},
        )

    def evaluate(self, checkpoint):
        text = Path(checkpoint.path).read_text(encoding="ascii")
        self.clock.advance(2.0)
        self.evaluated.append(checkpoint.name)
        return Evaluation({"loss": self.losses.get(checkpoint.name, 1.0), "size": len(text)}, 4, 1.0)

    def pause(self, seconds):
        assert 0 < seconds <= 1.0
        self.waits.append(seconds)
        self.clock.advance(seconds)
        self.script.get(len(self.waits), lambda: None)()

    def end(self):
        self.ended = True


def put(directory, step, text="x"):
    directory.mkdir(exist_ok=True)
    (directory / f"e{step}.keras").write_text(text)


def test_all_in_order_each_once_until_training_ends(tmp_path):
    model_dir = tmp_path / "later"
    run = Run(model_dir)
    run.script = {
        2: lambda: [put(model_dir, step) for step in (2, 10, 1)],
        5: lambda: put(model_dir, 11),
        6: run.end,
    }
    result = run.run()
    assert run.evaluated == ["e1.keras", "e2.keras", "e10.keras", "e11.keras"]
    assert result.reason == TRAINING_ENDED
    assert result.evaluated == 4
    assert result.figures.last_training_step == 11
    assert result.figures.nb_eval_steps == 16
    assert result.figures.eval_step_mean_duration == 0.25
    assert result.figures.awake_time_ratio == pytest.approx(8 / (8 + len(run.waits)))
    assert run.figures[-1].last_training_step == 11


def test_a_growing_file_is_left_until_whole(tmp_path):
    run = Run(tmp_path, idle_timeout=10.0)
    run.script = {n: (lambda n=n: put(tmp_path, 1, "x" * n)) for n in range(1, 6)}
    result = run.run()
    assert result.metrics["size"] == 5
    assert run.evaluated == ["e1.keras"]
    assert result.reason == IDLE


def test_a_restarted_evaluator_goes_on(tmp_path):
    class Crash(Exception):
        pass

    def crash(checkpoint, metrics):
        if checkpoint.step == 3:
            raise Crash

    for step in (1, 2, 3, 4):
        put(tmp_path, step)
    first = Run(tmp_path)
    with pytest.raises(Crash):
        first.run(exporters=[crash])
    state = json.loads((tmp_path / "eval" / "evaluator.json").read_text())
    assert state["last_step"] == 2
    assert state["figures"]["nb_eval_steps"] == 8
    second = Run(tmp_path, max_steps=4)
    assert second.run().reason == MAX_STEPS
    assert second.evaluated == ["e3.keras", "e4.keras"]
    third = Run(tmp_path, max_steps=4)
    assert third.run().reason == MAX_STEPS
    assert third.evaluated == []
    assert third.waits == []


def test_the_state_forgets_files_that_are_gone(tmp_path):
    put(tmp_path, 1)
    Run(tmp_path, max_steps=1).run()
    (tmp_path / "e1.keras").unlink()
    put(tmp_path, 2)
    Run(tmp_path, max_steps=2).run()
    assert len(json.loads((tmp_path / "eval" / "evaluator.json").read_text())["done"]) == 1


def test_a_checkpoint_deleted_meanwhile_is_skipped(tmp_path, caplog):
    for step in (1, 2):
        put(tmp_path, step)
    run = Run(tmp_path, max_steps=2)
    evaluate = run.evaluate

    def slow(checkpoint):
        if checkpoint.step == 1:
            (tmp_path / "e1.keras").unlink()
        return evaluate(checkpoint)

    run.evaluate = slow
    assert run.run().evaluated == 1
    assert "e1.keras was deleted before it was evaluated" in caplog.text


def test_an_unreadable_checkpoint_is_an_error(tmp_path):
    (tmp_path / "e1.keras").write_bytes(b"\xff\xfe")
    with pytest.raises(UnicodeDecodeError):
        Run(tmp_path).run()


class Halves(Run):
    """Knows files that hold "half" for halves."""

    def evaluate(self, checkpoint):
        if Path(checkpoint.path).read_text(encoding="ascii") == "half":
            raise NotWholeError("the end is missing")
        return super().evaluate(checkpoint)


def test_a_killed_writers_leftovers_block_nothing(tmp_path, caplog):
    put(tmp_path, 1)
    put(tmp_path, 2, "half")
    put(tmp_path, 3)
    run = Halves(tmp_path)
    run.script = {3: lambda: put(tmp_path, 2, "whole now"), 6: lambda: put(tmp_path, 4, "half"), 9: run.end}
    result = run.run()
    assert run.evaluated == ["e1.keras", "e3.keras", "e2.keras"]
    assert result.reason == TRAINING_ENDED
    assert "not whole, and so not evaluated: e4.keras" in caplog.text


def test_what_becomes_whole_unseen_is_evaluated(tmp_path):
    """By a writer that has kept the file's size and time, or whose lock was all that was wrong."""
    put(tmp_path, 1, "half")
    facts = (tmp_path / "e1.keras").stat()

    def complete():
        put(tmp_path, 1, "full")
        os.utime(tmp_path / "e1.keras", ns=(facts.st_atime_ns, facts.st_mtime_ns))

    run = Halves(tmp_path, max_steps=1)
    run.script = {4: complete}
    assert run.run().reason == MAX_STEPS
    assert run.evaluated == ["e1.keras"]


@pytest.mark.parametrize("call", ["ls", "get_file"])
def test_a_remote_file_system_may_be_unavailable(tmp_path, monkeypatch, call):
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://away-{call}-{tmp_path.name}"
    with files.written_whole(f"{url}/e1.keras") as path:
        path.write_text("x")
    kind = type(fsspec.filesystem("memory"))
    usual = getattr(kind, call)

    def away(*arguments, **options):
        raise ConnectionError("the name node does not answer")

    monkeypatch.setattr(kind, call, away)
    run = Run(url, max_steps=1, output_dir=tmp_path / "one")
    run.script = {20: lambda: monkeypatch.setattr(kind, call, usual)}
    assert run.run().reason == MAX_STEPS
    monkeypatch.setattr(kind, call, away)
    for_ever = Run(url, output_dir=tmp_path / "other")
    with pytest.raises(OSError, match="the name node does not answer"):
        for_ever.run()
    assert len(for_ever.waits) == pytest.approx(30, abs=2)


def test_the_best_is_kept_whole(tmp_path):
    losses = {"e1.keras": 0.5, "e2.keras": float("nan"), "e3.keras": 0.25, "e4.keras": 0.75}
    for step in (1, 2, 3):
        put(tmp_path, step, f"model {step}")
    result = Run(tmp_path, losses=losses, max_steps=3, best_metric="loss").run()
    assert (result.best.value, result.best.step) == (0.25, 3)
    assert Path(result.best.path).read_text() == "model 3"
    put(tmp_path, 4)
    again = Run(tmp_path, losses=losses, max_steps=4, best_metric="loss").run()
    assert again.best == result.best
    best = tmp_path / "eval" / "best"
    assert len(list(best.iterdir())) == 2  # best.json and one copy
    put(tmp_path, 5)
    with pytest.raises(ConfigError, match="best_metric 'accuracy' does not exist: expected one of loss, size"):
        Run(tmp_path, best_metric="accuracy").run()


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"path": "p", "value": "x", "step": 1}'])
def test_an_invalid_best_record_is_named(tmp_path, text):
    put(tmp_path, 1)
    (tmp_path / "eval" / "best").mkdir(parents=True)
    (tmp_path / "eval" / "best" / "best.json").write_text(text)
    with pytest.raises(ConfigError, match=r"best\.json does not name the best model"):
        Run(tmp_path, best_metric="loss").run()


def test_the_newest_only(tmp_path):
    for step in (1, 2, 3):
        put(tmp_path, step)
    run = Run(tmp_path, only_latest=True, max_steps=3)
    run.run()
    assert run.evaluated == ["e3.keras"]


def test_the_flag_of_this_job_only(tmp_path):
    (tmp_path / "training_ended.json").write_text('{"job": "old"}')
    run = Run(tmp_path, job_id="new", idle_timeout=5.0)
    run.script = {2: lambda: (tmp_path / "training_ended.json").write_text('{"job": "new"}')}
    assert run.run(training_ended=None).reason == TRAINING_ENDED
    assert len(run.waits) == 2


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"done": 3, "last_step": 1}', '{"done": []}', '{"done": [{}], "last_step": 1}']
)
def test_a_damaged_state_is_named(tmp_path, text):
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "evaluator.json").write_text(text)
    with pytest.raises(ConfigError, match=r"evaluator\.json cannot be used"):
        Run(tmp_path).run()


@pytest.mark.parametrize(
    "options", [{"idle_timeout": 0}, {"poll_interval": -1}, {"max_steps": 0}, {"idle_timeout": 1e300}]
)
def test_options_are_checked(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        EvaluatorOptions(**options)


def test_remote_checkpoints_are_fetched_and_results_uploaded(tmp_path):
    pytest.importorskip("fsspec")
    url = f"memory://evaluator-{tmp_path.name}"

    def write(step, text="x"):
        with files.written_whole(f"{url}/e{step}.keras") as path:
            path.write_text(text)

    run = Run(url, {"e2.keras": 0.5}, best_metric="loss")
    run.script = {1: lambda: [write(step) for step in (2, 10, 1)], 4: run.end}
    result = run.run()
    assert run.evaluated == ["e1.keras", "e2.keras", "e10.keras"]
    assert result.reason == TRAINING_ENDED
    assert result.best.path.startswith(f"{url}/eval/best/e2.keras.")
    found = files.find_files(url)
    assert [name for name in found if "/best/e" in name] == [result.best.path.removeprefix(f"{url}/")]
    assert {"eval/evaluator.json", "eval/best/best.json"} <= set(found)
    again = Run(url, best_metric="loss")
    again.script = {1: lambda: write(11), 4: again.end}
    assert again.run().evaluated == 1
    assert again.evaluated == ["e11.keras"]


def test_events_elsewhere_are_copied_as_they_grow(tmp_path):
    pytest.importorskip("fsspec")
    url, clock = f"memory://events-{tmp_path.name}", ManualClock()
    follower = EventFollower(url, tmp_path / "here", clock)
    follower.look()
    for text in ("abc", "abcdef"):
        for name in ("train/events.out.tfevents.1", "checkpoint"):
            with files.written_whole(f"{url}/{name}") as path:
                path.write_text(text)
        clock.advance(10.0)
        follower.look()
        copies = [path for path in (tmp_path / "here").rglob("*") if path.is_file()]
        assert [path.read_text() for path in copies] == [text]
    follower.look()  # too soon to ask again
