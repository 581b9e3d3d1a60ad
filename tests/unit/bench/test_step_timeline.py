"""Steps of a job: read from a trace, measured, drawn."""

import json
from dataclasses import replace

import pytest
from bench_reports import make_report

from tfcollective._base.codec import decode, encode, from_document, to_document
from tfcollective._base.timeline import WAIT, Interval, RankTimeline, trace_document
from tfcollective_bench.model import Report
from tfcollective_bench.training.job_plan import Case, Site, plan_job, trace_path
from tfcollective_bench.training.options import TrainingOptions
from tfcollective_bench.training.overlay import timeline_sections
from tfcollective_bench.training.runners import RUNNERS, jobs, timeline_jobs
from tfcollective_bench.training.step_timeline import StepTimeline, read_trace

MS = 1_000_000


def trace(steps=6, ranks=2):
    """Steps of 10 ms: bucket 0 from 2 to 4 ms, bucket 1 from 4 to 9 (rank 1: 9.5), TensorFlow waits from 6 to 9."""
    timelines = []
    for rank in range(ranks):
        found = [Interval("broadcast", 0, 1, 8, 0, 0, MS, "weights")]
        for step in range(steps):
            begin = (step + 1) * 10 * MS
            end = begin + 9 * MS + rank * MS // 2
            for number, left, right in ((0, begin + 2 * MS, begin + 4 * MS), (1, begin + 4 * MS, end)):
                name = f"optimizer.0#0/bucket {number}"
                found.append(Interval("allreduce", 2, 2 * step + number, 8, left, left, right, name))
            found.append(Interval(WAIT, 0, 0, 0, 0, begin + 6 * MS, begin + 9 * MS, "optimizer.0#0/bucket 1"))
        timelines.append(RankTimeline(rank, tuple(found)))
    return json.loads(json.dumps(trace_document(timelines)))


def test_whole_steps_are_read_from_a_trace():
    steps = read_trace(trace())
    assert (steps.steps, steps.length) == (3, pytest.approx(30))
    first, second = steps.ranks
    assert (first.rank, second.rank) == (0, 1)
    assert [number for number, _, _ in first.buckets] == [0, 1] * 3
    # The window begins where the step before it ended on the last rank, 9.5 ms after its begin.
    assert first.buckets[0] == (0, pytest.approx(2.5), pytest.approx(4.5))
    assert steps.waited(first) == pytest.approx(9)
    assert steps.communicated(first) == pytest.approx(21)
    assert steps.communicated(second) == pytest.approx(22.5)
    assert steps.hidden(first) == pytest.approx(12 / 21)
    assert steps.hidden(replace(first, buckets=())) is None


def test_too_few_steps_are_none():
    assert read_trace(trace(steps=4)) is None
    assert read_trace({"traceEvents": []}) is None


def test_steps_survive_json_and_stand_on_the_page():
    steps = read_trace(trace())
    entry = {"model": "mlp1024", "ranks": 2, "link": "loopback", "runner": "ours", "timeline": to_document(steps)}
    report = replace(make_report(), attachments={"timelines": [entry]})
    again = decode(encode(report), Report, "the report")
    assert from_document(again.attachments["timelines"][0]["timeline"], StepTimeline, "the timeline") == steps
    (section,) = timeline_sections(again)
    assert section.title == "Steps: ours, mlp1024, 2 processes, loopback"
    assert section.tables[0].rows[0] == ("0", "10.00 ms", "70 %", "30 %", "70 %", "57 %")
    assert list(timeline_sections(make_report())) == []


def test_the_steps_are_drawn():
    pytest.importorskip("matplotlib")
    entry = {"model": "m", "ranks": 2, "link": "l", "runner": "ours", "timeline": to_document(read_trace(trace()))}
    (section,) = timeline_sections(replace(make_report(), attachments={"timelines": [entry]}))
    assert section.plots[0].png.startswith(b"\x89PNG")
    assert section.plots[0].name == "steps-m-2-l"


def test_one_job_of_ours_records_in_every_scene():
    options = TrainingOptions(models=("mlp1024", "convnet"), views=("processes",))
    pythons = dict.fromkeys(("keras3", "keras2", "horovod"), "/p/python")
    found = list(timeline_jobs(list(jobs(list(RUNNERS.values()), pythons, options, (0, 1)))))
    assert [(job.runner, job.case.model, job.case.timeline) for job in found] == [
        ("ours", "mlp1024", True),
        ("ours", "convnet", True),
    ]
    site = Site(results="/r")
    (launcher,) = plan_job(found[0].case, site).processes
    assert launcher.env["TFCOLLECTIVE_TIMELINE"] == trace_path(site) == "/r/timeline.trace"
    assert "TFCOLLECTIVE_TIMELINE" not in plan_job(replace(found[0].case, timeline=False), site).processes[0].env
    assert decode(encode(found[0].case), Case, "CASE") == found[0].case
