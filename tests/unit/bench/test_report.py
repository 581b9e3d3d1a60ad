import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import pytest
from bench_reports import make_report
from rich.console import Console

from tfcollective._base.errors import ConfigError
from tfcollective._cli import main
from tfcollective_bench.interleave import Failure, Record, Started
from tfcollective_bench.progress import show_progress
from tfcollective_bench.report import (
    Bars,
    Section,
    Series,
    Table,
    draw_bars,
    draw_lines,
    load_report,
    print_table,
    render_page,
    write_report,
)
from tfcollective_bench.report.table import MISS, PASS, table_to_markdown
from tfcollective_bench.units import bandwidth_text, bytes_text, parse_bytes, seconds_text

TABLE = Table(
    "figures", ("work", "measured", "verdict"), (("4K <b>", "1.5x", PASS), ("4M", "0.9x", MISS)), note="a note"
)
NAMES = ("ours", "theirs")


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links, self.seen = [], [], set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def plots():
    pytest.importorskip("matplotlib")
    x = (4.0, 4096.0, 1048576.0)
    lines = [Series(name, x, (1.0, 2.0, 30.0), (0.5, 1.5, 20.0), (2.0, 3.0, 40.0)) for name in NAMES]
    bars = [
        Bars("MLP", {"ours": 20000.0, "theirs": 9.5}, {"ours": 18000.0, "theirs": 9}, {"ours": 21000.0, "theirs": 10})
    ]
    return (
        draw_lines("latency", "Latency", lines, x_label="bytes", y_label="us", names=NAMES),
        draw_bars("rates", "Samples", bars, y_label="samples/s", names=NAMES),
    )


def test_the_page_is_self_contained_and_valid(tmp_path):
    page = render_page(make_report(), [Section("Results", "One.\n\nTwo & three.", (TABLE,), plots())])
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert len(tags.links) == 2
    assert all(link.startswith("data:image/svg+xml;base64,") for link in tags.links)
    svg = base64.b64decode(tags.links[0].partition(",")[2]).decode()
    assert "<svg" in svg
    assert "4K &lt;b&gt;" in page
    assert 'class="pass"' in page
    assert 'class="miss"' in page
    assert "build it" in page


def test_headings_stand_over_their_numbers_and_not_twice():
    page = render_page(make_report(), [Section("figures", tables=(replace(TABLE, numbers=frozenset({"measured"})),))])
    assert "<th>work</th>" in page
    assert '<th class="number">measured</th>' in page
    assert "<h2>figures</h2>" in page
    assert "<h3>figures</h3>" not in page


def test_files_of_a_report(tmp_path):
    report = make_report()
    drawn = plots()
    paths = write_report(report, [Section("Results", plots=drawn)], tmp_path / "new" / "folder", "allreduce")
    assert [path.name for path in paths] == [
        "allreduce.json",
        "allreduce.html",
        "allreduce-latency.png",
        "allreduce-rates.png",
    ]
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert load_report(paths[0]) == report


def test_an_impossible_folder_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the directory"):
        write_report(make_report(), [], tmp_path / "file" / "x", "allreduce")


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"format": 99})])
def test_a_file_without_report_is_an_error(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"the report .*x\.json cannot be read: "):
        load_report(tmp_path / "x.json")


def test_a_missing_report_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the report .*x\.json: No such file or directory$"):
        load_report(tmp_path / "x.json")


@pytest.mark.parametrize("command", ["allreduce", "training", "scaling", "simulate", "targets"])
def test_an_impossible_folder_fails_before_measuring(command, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["bench", command, "--out", str(tmp_path / "file" / "x")]) == 64
    text = capsys.readouterr().err
    assert text.startswith("tfcollective: --out: cannot make the directory")
    assert text.count("\n") == 1


def test_tables_for_terminals_and_documents():
    stream = StringIO()
    print_table(TABLE, Console(file=stream, width=100))
    assert re.search(r"4M\s+│ 0\.9x\s+│ MISS", stream.getvalue())
    assert "a note" in stream.getvalue()
    assert table_to_markdown(TABLE).splitlines()[:3] == [
        "| work | measured | verdict |",
        "|---|---|---|",
        "| 4K <b> | 1.5x | pass |",
    ]


def test_a_narrow_terminal_has_readable_rows(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # where that is dumb, every terminal has 80 columns
    how = "ours / theirs, worst at 16K, and a long story about what was measured and what was not"
    columns = ("work", "against", "must", "measured", "", "how")
    row = ("4 B to 16 KiB, two ranks", "Open MPI", "2x", "3.14x (2.9 to 3.3)", "pass", how)
    table = Table("What it must reach", columns, (row,), frozenset({"must"}), "1 pass")
    narrow, wide = StringIO(), StringIO()
    print_table(table, Console(file=narrow, width=60, force_terminal=True, color_system=None))
    lines = [line.rstrip() for line in narrow.getvalue().splitlines()]
    assert lines[1] == "4 B to 16 KiB, two ranks, Open MPI"
    assert lines[2:5] == ["  must: 2x", "  measured: 3.14x (2.9 to 3.3)", "  pass"]
    assert lines[-1] == "1 pass"
    assert max(map(len, lines)) <= 60
    print_table(table, Console(file=wide, width=150, force_terminal=True, color_system=None))
    assert "│ 4 B to 16 KiB" in wide.getvalue()


def test_progress_without_a_terminal_shows_failures():
    stream = StringIO()
    with show_progress(2, Console(file=stream, width=200)) as take:
        take(Started("a", 0))
        take(Record("a", 0, {}))
        take(Failure("b", 0, "ended with code 1", "no [module] x"))
    assert stream.getvalue().splitlines() == ["round 1: a", "b: ended with code 1 in round 1: no [module] x"]


@pytest.mark.parametrize(
    ("text", "size"), [("4", 4), ("1K", 1024), ("64k", 65536), ("16M", 1 << 24), ("2GiB", 2 << 30)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size
    assert parse_bytes(bytes_text(size)) == size


@pytest.mark.parametrize("text", ["", "0", "-4", "4.5K", "4T", "K", "many"])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="not a size"):
        parse_bytes(text)


def test_units():
    assert [seconds_text(value) for value in (2.5e-7, 4.26e-5, 0.0316, 2.5)] == [
        "0.25 us",
        "42.6 us",
        "31.6 ms",
        "2.50 s",
    ]
    assert [bandwidth_text(value) for value in (8.39e9, 2.5e6, 900.0)] == ["8.39 GB/s", "2.50 MB/s", "0.90 kB/s"]
    assert bytes_text(1000) == "1000"
