"""Finds what a script uses of Horovod: pure, from its syntax tree. Nothing of the script runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tfcollective._cli.horovod_names import TABLES

ROOT = "horovod"
# The table that has the names of a module. The module to import instead has "tfcollective." before its name.
_TABLE_OF = {
    "horovod.tensorflow": "tensorflow",
    "horovod.tensorflow.compression": "tensorflow",
    "horovod.tensorflow.functions": "tensorflow",
    "horovod.tensorflow.mpi_ops": "tensorflow",
    "horovod.tensorflow.keras": "keras",
    "horovod.tensorflow.keras.callbacks": "callbacks",
    "horovod.tensorflow.elastic": "elastic",
    "horovod.tensorflow.keras.elastic": "keras_elastic",
    "horovod.common.elastic": "elastic",
    "horovod.common.exceptions": "elastic",
    "horovod.keras.elastic": "keras_elastic",
    "horovod.keras": "keras",
    "horovod.keras.callbacks": "callbacks",
}
_OTHERS = {
    "horovod.run": ("different", "tfcollective.run takes its keyword names, of the elastic ones min_num_proc"),
    "horovod.__version__": ("same", ""),
}
_VARIABLE = re.compile(r"HOROVOD_[A-Z_]*[A-Z]")
_FALLBACK = {"keras": "tensorflow", "callbacks": "keras"}
_UNKNOWN = ("not yet", "tfcollective has no such name")


@dataclass(frozen=True)
class Finding:
    """A name that the script uses.

    Attributes:
        name: as Horovod has it, with its module.
        status: "same", "different" or "not yet".
        note: what differs.
        lines: where, ascending.
    """

    name: str
    status: str
    note: str
    lines: tuple[int, ...]


@dataclass
class Report:
    """The uses of Horovod in a script.

    Attributes:
        imports: (line, module of Horovod, module to import instead or None).
        findings: the names, in the order in which they first appear.
        variables: (name, lines) of environment variables of Horovod's that are named.
    """

    imports: list[tuple[int, str, str | None]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    variables: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


def examine(source: str) -> Report:
    """Reads a script; SyntaxError if it is none."""
    tree = ast.parse(source)
    report = Report()
    aliases: dict[str, str] = {}
    uses: dict[str, list[int]] = {}
    for line, module, alias, full in _imported(tree):
        aliases[alias] = full
        if (line, module, _instead(module)) not in report.imports:  # of which one line takes several names
            report.imports.append((line, module, _instead(module)))
        if full not in _TABLE_OF and full != ROOT and _table(full) is not None:
            uses.setdefault(full, []).append(line)  # from horovod.tensorflow import allreduce
    for node in ast.walk(tree):
        dotted = _dotted(node)
        if dotted is not None and dotted[0] in aliases:
            uses.setdefault(".".join([aliases[dotted[0]], *dotted[1:]]), []).append(node.lineno)  # type: ignore[attr-defined]
    report.findings = _findings(uses)
    report.variables = _variables(tree)
    return report


def _imported(tree: ast.AST) -> Iterator[tuple[int, str, str, str]]:
    """(line, module, the name in the script, what it stands for) of every import of Horovod."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == ROOT:
                    yield node.lineno, name.name, name.asname or ROOT, name.name if name.asname else ROOT
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == ROOT:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                module = full if full in _TABLE_OF else str(node.module)
                yield node.lineno, module, name.asname or name.name, full


def _dotted(node: ast.AST) -> list[str] | None:
    """["hvd", "callbacks", "X"] for ``hvd.callbacks.X``; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return [node.id, *reversed(parts)]


def _instead(module: str) -> str | None:
    return f"tfcollective.{module}" if module in _TABLE_OF else None


def _table(full: str) -> tuple[str, str] | None:
    """(table, name in it) for a dotted name: what follows the longest module."""
    parts = full.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        if module in _TABLE_OF:
            return _TABLE_OF[module], parts[length]
    return None


def _findings(uses: dict[str, list[int]]) -> list[Finding]:
    found: dict[str, tuple[str, str, set[int]]] = {}
    for full, lines in uses.items():
        if full in _TABLE_OF or full == ROOT or any(module.startswith(full + ".") for module in _TABLE_OF):
            continue  # a module on the way to a name
        place = _table(full)
        other = next((name for name in _OTHERS if f"{full}.".startswith(f"{name}.")), None)
        if other is not None:
            found.setdefault(other, (*_OTHERS[other], set()))[2].update(lines)
            continue
        name = full if place is None else full[: full.rindex(f".{place[1]}") + 1 + len(place[1])]
        status, note = _UNKNOWN if place is None else _look_up(*place)
        found.setdefault(name, (status, note, set()))[2].update(lines)
    return [Finding(name, *row[:2], tuple(sorted(row[2]))) for name, row in sorted(found.items(), key=_first_line)]


def _first_line(item: tuple[str, tuple[str, str, set[int]]]) -> tuple[int, str]:
    return min(item[1][2]), item[0]


def _look_up(table: str, name: str) -> tuple[str, str]:
    here: str | None = table
    while here is not None:
        if name in TABLES[here]:
            return TABLES[here][name]
        here = _FALLBACK.get(here)
    return _UNKNOWN


def _variables(tree: ast.AST) -> list[tuple[str, tuple[int, ...]]]:
    lines: dict[str, set[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _VARIABLE.fullmatch(node.value):
            lines.setdefault(node.value, set()).add(node.lineno)
    return sorted((name, tuple(sorted(where))) for name, where in lines.items())
