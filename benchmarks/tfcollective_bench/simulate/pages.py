"""The simulation for people: the model, what it predicts, and how it compares with what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfcollective_bench.model import Report, select
from tfcollective_bench.report import Plot, Section, Series, Table, draw_lines, plots_available
from tfcollective_bench.simulate.calibrate import by_link, fitted, measured_worlds
from tfcollective_bench.simulate.network import Network, ring_bound
from tfcollective_bench.simulate.run import PREDICTED
from tfcollective_bench.units import bandwidth_text, bytes_text, seconds_text

__all__ = ["overview", "sections"]

_EXPLANATION = (
    "Every rank's steps come from the native algorithms, which choose by size and ranks as in a real world; they are "
    "played over a model: a message leaves its host after those before it, takes its bytes times beta on the link "
    "(headers included), is there alpha later, and bytes that have to be combined cost gamma each. copy is what "
    "processors need to hand a byte over; it counts where it is slower than the link. One rank a host, float32.\n\n"
    "Where hosts were measured, alpha and copy are those with which the smallest measured world comes out at its "
    "smallest and at its largest size (no copy where the link explains it); everything else in the check is a "
    "prediction. Measured hosts share the cores of this machine, so copy and gamma grow in the check as there are "
    "more hosts than cores. What no model here knows: switches in the way, losses, and hosts that are not equal.\n\n"
    "of the bound: the part of the link's rate, less headers, that the bytes of a ring all-reduce, 2(p-1)/p of the "
    "buffer, get. A burst that passes an idle link at once can make it more than 100 %."
)


def overview(report: Report) -> list[Table]:
    """The tables: model, check, predictions of every link."""
    found = [_model_table(report)]
    check = _check_table(report)
    found += [check] if check.rows else []
    return found + [_prediction_table(report, link) for link in _networks(report)]


def sections(report: Report) -> list[Section]:
    """The parts of the page."""
    plots = plots_available()
    result = [Section("How to read this", _EXPLANATION), Section("The model", tables=(_model_table(report),))]
    check = _check_table(report)
    if check.rows:
        drawn = tuple(_check_plots(report)) if plots else ()
        result.append(Section("Predicted and measured", tables=(check,), plots=drawn))
    for link in _networks(report):
        drawn = tuple(_prediction_plots(report, link)) if plots else ()
        result.append(Section(f"Predictions, {link}", tables=(_prediction_table(report, link),), plots=drawn))
    if not plots:
        result.append(Section("Plots", "There are none: matplotlib is missing (pip install 'tfcollective[bench]')."))
    return result


def _networks(report: Report) -> Mapping[str, Network]:
    return {link: Network(**values) for link, values in report.settings["networks"].items()}


def _model_table(report: Report) -> Table:
    columns = ("link", "alpha", "payload", "copy", "gamma", "burst", "hosts measured")
    measured = by_link(measured_worlds(report.samples))
    rows = tuple(
        (
            link,
            seconds_text(network.alpha),
            bandwidth_text(1 / network.beta),
            bandwidth_text(1 / network.copy) if network.copy else "-",
            bandwidth_text(1 / network.gamma),
            bytes_text(round(network.burst)) if network.burst else "-",
            ", ".join(str(hosts) for hosts in sorted({one.hosts for one in measured.get(link, ())})) or "none",
        )
        for link, network in _networks(report).items()
    )
    return Table("the model", columns, rows, frozenset(columns) - {"link", "hosts measured"}, " ".join(report.notes))


def _predicted(report: Report, cores: str, link: str) -> dict[tuple[int, int], float]:
    """Ranks, bytes -> seconds."""
    samples = select(report.samples, runner=PREDICTED, cores=cores, link=link)
    return {(int(s.row["ranks"]), int(s.row["bytes"])): s.values[0] for s in samples}


def _prediction_table(report: Report, link: str) -> Table:
    found, network = _predicted(report, "apart", link), _networks(report)[link]
    sizes = list(dict.fromkeys(size for _, size in found))
    columns = ("ranks", *(bytes_text(size) for size in sizes))
    rows = []
    for ranks in dict.fromkeys(ranks for ranks, _ in found):
        shares = {size: ring_bound(network, ranks, size) / found[ranks, size] for size in sizes}
        rows.append((str(ranks), *(f"{seconds_text(found[ranks, s])} ({shares[s] * 100:.0f} %)" for s in sizes)))
    note = "Predicted, one rank a host; in brackets, of the bound."
    return Table(f"time of an all-reduce at {link}, by bytes", columns, tuple(rows), frozenset(columns), note)


def _check_table(report: Report) -> Table:
    columns = ("link", "hosts", "bytes", "measured", "p10", "p90", "simulated", "simulated / measured", "of the bound")
    rows = []
    for link, network in _networks(report).items():
        found = _predicted(report, "shared", link)
        measured = by_link(measured_worlds(report.samples)).get(link, [])
        known = fitted(measured) if measured else ()
        for one in measured:
            seconds, latency = found[one.hosts, one.bytes], one.latency
            times = (latency.median, latency.p10, latency.p90, seconds)
            ratio = f"{seconds / latency.median:.2f}{' (fitted)' if one in known else ''}"
            share = f"{ring_bound(network, one.hosts, one.bytes) / latency.median * 100:.0f} %"
            rows.append((link, str(one.hosts), bytes_text(one.bytes), *map(seconds_text, times), ratio, share))
    return Table("predicted and measured", columns, tuple(rows), frozenset(columns) - {"link"})


def _prediction_plots(report: Report, link: str) -> Iterator[Plot]:
    found, network = _predicted(report, "apart", link), _networks(report)[link]
    sizes = list(dict.fromkeys(size for _, size in found))
    names = tuple(bytes_text(size) for size in sizes)
    times, shares = [], []
    for size, name in zip(sizes, names, strict=True):
        worlds = [ranks for ranks, of_size in found if of_size == size]
        x = tuple(map(float, worlds))
        times.append(Series(name, x, tuple(found[ranks, size] * 1e3 for ranks in worlds)))
        bounds = (ring_bound(network, ranks, size) / found[ranks, size] * 100 for ranks in worlds)
        shares.append(Series(name, x, tuple(bounds)))
    yield _lines(f"time-{link}", f"Predicted time of an all-reduce, {link}", times, "ms", names, log_y=True)
    yield _lines(f"share-{link}", f"Predicted part of the link's rate, {link}", shares, "% of the bound", names)


def _lines(
    name: str, title: str, lines: Sequence[Series], y_label: str, names: tuple[str, ...], *, log_y: bool = False
) -> Plot:
    return draw_lines(
        name, title, lines, x_label="ranks, one a host", y_label=y_label, names=names, log_y=log_y, bytes_on_x=False
    )


def _check_plots(report: Report) -> Iterator[Plot]:
    for link, measured in by_link(measured_worlds(report.samples)).items():
        if link not in _networks(report):
            continue
        predicted = _predicted(report, "shared", link)
        lines = []
        for hosts in dict.fromkeys(one.hosts for one in measured):
            mine = [one for one in measured if one.hosts == hosts]
            x = tuple(float(one.bytes) for one in mine)
            low, middle, high = (
                tuple(getattr(one.latency, place) * 1e3 for one in mine) for place in ("p10", "median", "p90")
            )
            lines.append(Series(f"{hosts} hosts, measured", x, middle, low, high))
            simulated = tuple(predicted[hosts, one.bytes] * 1e3 for one in mine)
            lines.append(Series(f"{hosts} hosts, simulated", x, simulated))
        names = tuple(line.name for line in lines)
        title = f"Measured and simulated, {link}"
        yield draw_lines(f"check-{link}", title, lines, x_label="bytes", y_label="ms", names=names)
