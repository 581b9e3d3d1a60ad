"""The words that code and docs do not use: riddles, and names that were replaced by the field's."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# What to write in their place: the process, rank or person; "reported", "passed", "given"; "related"; "our".
PROSE = (
    *("whoever", "nobody", "somebody", "kin", "of ours", "of one's own", "strangers?", "told", "felt"),
    *("good-?bye", "patiently"),
)
#: The name that is no longer used -> the one that is.
NAMES = {
    "foreign": "external",
    "growth": "scaling",
    "scoreboard": "targets report",
    "netlab": "testbed",
    "cables?": "link",
    "side[ _-]tasks?": "auxiliary tasks",
    "last_words": "stderr_pump",
    "Meeting": "Rendezvous",
    "Door[Kk]eeper": "unauthenticated connection limiter",
    "Mailbox": "OrderQueue",
    "Attendance": "LivenessTracker",
    "RollCall": "view query",
    "JoinDesk": "join tracker",
    "StandIns?": "zero contribution",
    "HostDetour": "HostStagingBackend",
}
# Where a word stands for something else: TensorFlow's memory growth, the benchmarks' runner "ours".
ELSEWHERE = re.compile(r"memory[_ ]growth|one of ours, ")
# Records of decisions and the history of releases keep the words of their time.
HISTORY = ("docs/adr", "CHANGELOG.md")
SUFFIXES = {".py", ".md", ".cc", ".h", ".c", ".sh", ".toml", ".ini", ".txt"}

# Between words stands anything but a letter or a digit: the words of an identifier count, too, also of one InCapitals.
_CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WORDS = re.compile(
    rf"(?<![^\W_])({'|'.join((*PROSE, *(name for name in NAMES if name[0].islower())))})(?![^\W_])", re.IGNORECASE
)
_TYPES = re.compile(rf"({'|'.join(name for name in NAMES if name[0].isupper())})")


def found(text: str) -> Iterator[tuple[int, str]]:
    """(line, word) of every word of the list."""
    for number, line in enumerate(text.splitlines(), 1):
        rest = ELSEWHERE.sub("", line)
        for match in (*_WORDS.finditer(_CAPITALS.sub("_", rest)), *_TYPES.finditer(rest)):
            yield number, match[0]


def files() -> list[str]:
    """The files of the repository, in git's words, that this test reads."""
    listed = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    own = Path(__file__).relative_to(ROOT).as_posix()
    names = [name for name in listed.splitlines() if Path(name).suffix in SUFFIXES or Path(name).name == "Makefile"]
    return [name for name in names if name != own and not name.startswith(HISTORY) and (ROOT / name).is_file()]


def test_the_words_are_found() -> None:
    assert [word for _, word in found("Nobody is told.\nnobodys growth of ours, memory_growth")] == [
        "Nobody", "told", "growth", "of ours",
    ]  # fmt: skip
    assert [word for _, word in found("def test_nobody_told():\n    untold, kindness")] == ["nobody", "told"]
    assert [word for _, word in found("TEST(World, NobodyIsToldSo)\nNobodys::Untold()")] == ["Nobody", "Told"]
    assert [line for line, _ in found("x\nself._meeting = RollCall()\nclass TestStandIn:\n")] == [2, 3]


def test_code_and_docs_do_not_use_these_words() -> None:
    names = files()
    assert len(names) > 200
    uses = [
        f"{name}:{number}: {word}"
        for name in names
        for number, word in found((ROOT / name).read_text("utf-8", "replace"))
    ]
    assert not uses, "\n".join(uses)
