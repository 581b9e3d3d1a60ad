import json
from dataclasses import replace

import pytest
from bench_reports import make_report

from tfcollective._base.codec import decode, encode, from_document
from tfcollective._base.errors import ConfigError
from tfcollective_bench.hardware import cache_bytes, probe_hardware, probe_versions
from tfcollective_bench.model import Report, select


def test_a_report_survives_json():
    report = make_report()
    assert decode(encode(report), Report, "the report") == report


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda document: document.pop("samples"), "samples"),
        (lambda document: document.update(format=2), "format"),
        (lambda document: document["samples"][0].pop("unit"), "unit"),
        (lambda document: document["statuses"][0].update(state="odd"), "state"),
        (lambda document: document["hardware"].update(load=[1.0]), "load"),
    ],
)
def test_a_document_without_a_report_is_refused(change, field):
    document = json.loads(encode(make_report()))
    change(document)
    with pytest.raises(ConfigError, match=f"the report cannot be read: .*{field}"):
        from_document(document, Report, "the report")


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
