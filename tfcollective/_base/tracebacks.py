"""The text of an exception for people: the line that says what was wrong, and a traceback that begins with the program.

For display only: nothing is decided by what is found here.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# Packages through which every call of a program goes: their frames say nothing that its own do not.
_FRAMEWORKS = ("keras", "tensorflow", "tf_keras", "tensorflow_estimator", "tfcollective")
_PYTHON = "Python"
_OURS = f"{Path(__file__).parents[1]}/"
_STDLIB = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = re.compile(r"/(?:site|dist)-packages/(\w+)")
_LONGEST_LINE = 800
_LONGEST_SOURCE = 90
_MOST_LINES = 24
_FIRST_LINES = 8
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# A frame within a message of TensorFlow's.
_FRAME = re.compile(r'(?P<indent>\s*)File "(?P<file>[^"]+)", line \d+')
# What TensorFlow and Keras put around the line that says what was wrong.
_AROUND = re.compile(
    r"(Graph execution error|in user code|Exception encountered when calling|Detected at node|Node: |\[\[)"
    r"|<stack traces unavailable>|\d+ (root error|successful operation|derived error)|.*Executing non-communication op"
)
_OF_ROOT = re.compile(r"\(\d+\) ")
_OF_FUNCTION = re.compile(r"\{\{function_node \S+\}\} ")
# The message of tf.debugging.Assert, which stands there as a list of tensors.
_ASSERTED = re.compile(r"assertion failed: \[(.*)\]")
_OF_OP = re.compile(r" *\[Op:\w*\]( name: ?\S*)?$")


def cause_line(kind: str, message: str) -> str:
    """The line of an exception's message that says what was wrong: mostly the first one. ``kind`` is its class name.

    Messages of TensorFlow and Keras begin with places in the program and in the model; then it is the line behind them.
    """
    lines = _COLOUR.sub("", message).splitlines()
    words = [line.strip() for line, frame in _with_frames(lines) if frame is None]
    saying = [line for line in words if line and not _AROUND.match(line)]
    line = (saying or [line.strip() for line in lines if line.strip()] or [""])[0]
    if _OF_ROOT.match(line):
        line = _OF_ROOT.sub("", line, count=1)
    line = _OF_OP.sub("", _OF_FUNCTION.sub("", line)).removeprefix(f"{kind}: ")
    asserted = _ASSERTED.fullmatch(line)
    return asserted[1].replace("\\'", "'") if asserted else line


def folded_traceback(error: BaseException) -> str:
    """The traceback without the frames of frameworks, in a few lines.

    A line says how many frames were left out, and of which packages. Exceptions that led to this one come first, as in
    Python's own text. Where no frame is the program's, all are there.
    """
    lines: list[str] = []
    for one, bridge in _chain(traceback.TracebackException.from_exception(error)):
        lines += folded_frames(frames_of(one.stack))
        lines += _message(one)
        lines += [bridge] if bridge else []
    if len(lines) > _MOST_LINES:
        last = _MOST_LINES - _FIRST_LINES - 1
        left_out = len(lines) - _FIRST_LINES - last
        lines[_FIRST_LINES:-last] = [f"... {left_out} lines left out ..."]
    return "\n".join(_cut(line, _LONGEST_LINE) for line in lines)


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[:most]} ..."


def _chain(last: traceback.TracebackException) -> list[tuple[traceback.TracebackException, str]]:
    """The exceptions in the order in which they were raised, each with the words that lead to the next one."""
    found = [(last, "")]
    while True:
        one = found[0][0]
        if one.__cause__ is not None:
            found.insert(0, (one.__cause__, "which was the direct cause of:"))
        elif one.__context__ is not None and not one.__suppress_context__:
            found.insert(0, (one.__context__, "during whose handling came:"))
        else:
            return found


@dataclass(frozen=True)
class Frame:
    """A call on a stack.

    Attributes:
        file: its file.
        line: the number of the line.
        function: its name.
        source: the text of the line; empty if it cannot be read.
        package: the framework that the file belongs to; empty for the program and for other packages.
    """

    file: str
    line: int
    function: str
    source: str = ""
    package: str = ""


def frames_of(stack: Iterable[traceback.FrameSummary]) -> tuple[Frame, ...]:
    """The frames of a stack whose packages are installed on this machine, in the same order."""
    frames, packages = list(stack), list[str]()
    for one in frames:
        # Generated code belongs to what calls it, but for a program that is a text itself.
        generated = one.filename == "<string>" and packages and packages[-1] in _FRAMEWORKS
        packages.append(packages[-1] if generated else _package_of(one.filename))
    program = not all(packages)
    return tuple(
        # The source of a frame that is not shown is not read.
        Frame(one.filename, one.lineno or 0, one.name, "" if package and program else one.line or "", package)
        for one, package in zip(frames, packages, strict=True)
    )


def folded_frames(frames: Sequence[Frame]) -> Iterator[str]:
    """Yields the lines that show a stack: those of frameworks become a line with their number, unless there are no
    others."""
    if all(frame.package for frame in frames):
        frames = [replace(frame, package="") for frame in frames]
    left_out: list[str] = []
    for frame in frames:
        if frame.package:
            left_out.append(frame.package)
            continue
        yield from _left_out(left_out)
        left_out = []
        yield f'File "{frame.file}", line {frame.line}, in {frame.function}'
        if frame.source:
            yield f"  {_cut(frame.source, _LONGEST_SOURCE)}"
    yield from _left_out(left_out)


def _left_out(packages: list[str]) -> Iterator[str]:
    if packages:
        count = "1 frame" if len(packages) == 1 else f"{len(packages)} frames"
        *more, last = dict.fromkeys(packages)
        where = f"{', '.join(more)} and {last}" if more else last
        yield f"... {count} in {where} ..."


def _message(one: traceback.TracebackException) -> Iterator[str]:
    """The class and the message, without the blank lines and without frames of frameworks."""
    text = _OF_FUNCTION.sub("", _COLOUR.sub("", "".join(one.format_exception_only())))
    if one.exc_type is not None:
        text = text.removeprefix(f"{one.exc_type.__module__}.")
    left_out: list[str] = []
    for line, frame in _with_frames(text.splitlines()):
        package = _package_of(frame["file"]) if frame is not None else ""
        if package:
            left_out += [package] * (_FRAME.match(line) is not None)
        if package or not line.strip():
            continue
        yield from (f"  {words}" for words in _left_out(left_out))
        left_out = []
        yield line.rstrip()
    yield from (f"  {words}" for words in _left_out(left_out))


def _with_frames(lines: list[str]) -> Iterator[tuple[str, re.Match[str] | None]]:
    """The lines of a message, each with the frame that it belongs to: behind one of AutoGraph's stands, further to the
    right, the line of the program."""
    frame: re.Match[str] | None = None
    for line in lines:
        begins = _FRAME.match(line)
        if begins is not None:
            frame = begins
        elif frame is not None and not line.startswith(f"{frame['indent']} "):
            frame = None
        yield line, frame
        frame = begins


def _package_of(filename: str) -> str:
    """The framework that this file belongs to; empty for a file of the program and of other packages."""
    if filename.startswith(_OURS):
        return "tfcollective"
    if Path(filename).name.startswith("__autograph_generated_file"):
        return "tensorflow"
    installed = _INSTALLED.search(filename)
    if installed is not None:
        return installed[1] if installed[1] in _FRAMEWORKS else ""
    return _PYTHON if filename.startswith((_STDLIB, "<frozen ")) else ""
