import json
from dataclasses import replace

import pytest
from bench_reports import make_report

from tfcollective.errors import InvalidArgumentError
from tfcollective_bench.hardware import cache_bytes, probe_hardware, probe_versions
from tfcollective_bench.model import Report, select


def test_a_report_survives_json():
    report = make_report()
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("samples"),
        lambda document: document.update(format=2),
        lambda document: document["samples"][0].pop("unit"),
        lambda document: document["statuses"][0].update(state="odd"),
        lambda document: document["hardware"].update(load=[1.0]),
    ],
)
def test_what_is_no_report_is_refused(change):
    document = json.loads(json.dumps(make_report().to_json()))
    change(document)
    with pytest.raises(InvalidArgumentError, match="not a report"):
        Report.from_json(document)


def test_select():
    samples = make_report().samples
    assert [s.values for s in select(samples, runner="c", bytes=4)] == [(1e-7,)]
    assert [s.metric for s in select(samples, runner="openmpi")] == ["latency", "cpu"]
    assert list(select(samples, metric="latency", bytes=4096, ranks=3)) == []
    assert len(list(select(samples, metric="latency", bytes=4096))) == 2


def test_reports_are_values():
    report = make_report()
    assert replace(report, notes=()) != report
    assert make_report() == report


@pytest.mark.parametrize(("text", "size"), [("32768K", 1 << 25), ("1M", 1 << 20), ("512", 512), ("", 0)])
def test_cache_bytes(text, size):
    assert cache_bytes(text) == size


def test_the_probes_see_this_machine():
    hardware = probe_hardware()
    assert hardware.cores >= hardware.usable_cores >= 1
    assert hardware.memory > 1 << 20
    versions = probe_versions({"none": "/no/such/python"}, [["/no/such/program"]]).packages
    assert {"tfcollective", "python"} <= versions.keys()
    assert not [name for name in versions if name.startswith(("none/", "/no"))]
