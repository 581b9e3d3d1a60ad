"""The documentation says what the code does."""

import re
from pathlib import Path

import click
import pytest

import tfcollective
from tfcollective._base import errors
from tfcollective._base.options import options_of, reference_table
from tfcollective._base.settings import VARIABLES, markdown_table
from tfcollective._cli.app import app
from tfcollective._launch.launcher import options_by_launcher, table_of_platforms
from tfcollective._launch.plan.spec import OPTIONS

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

# The history of releases keeps the words of its time.
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]


def assert_holds(page, table):
    """The page has the table; the error shows the rows to add, in full."""
    text = page.read_text()
    present = set(text.splitlines())
    missing = [row for row in table.splitlines() if row not in present]
    assert not missing, "\n".join((f"{page} lacks:", *missing))
    assert table in text, f"{page} has a row too many, or another order"


def test_the_environment_page_is_the_table_of_settings():
    assert_holds(REFERENCE / "environment.md", markdown_table())


def test_the_options_page_matches_the_declarations():
    assert_holds(REFERENCE / "job_options.md", reference_table(OPTIONS))


@pytest.mark.parametrize("launcher", sorted(name for name, kind in options_by_launcher().items() if options_of(kind)))
def test_the_command_line_page_matches_the_platforms(launcher):
    table = reference_table(options_of(options_by_launcher()[launcher]))
    assert_holds(REFERENCE / "command_line.md", table)


def test_the_platforms_page_matches_the_launchers():
    assert_holds(ROOT / "docs" / "platforms.md", table_of_platforms())


def test_every_variable_in_the_docs_exists():
    known = {row.name for row in VARIABLES}
    named = {name for page in PAGES for name in re.findall(r"\bTFCOLLECTIVE_[A-Z_]+[A-Z]\b", page.read_text())}
    assert named <= known


def commands(group=app, prefix="tfcollective"):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if not command.hidden:
            yield f"{prefix} {name}", command
            yield from commands(command, f"{prefix} {name}") if isinstance(command, click.Group) else ()


def test_the_commands_of_the_benchmarks_are_among_them():
    assert "tfcollective bench scaling" in dict(commands())


@pytest.mark.parametrize(("name", "command"), sorted(commands(), key=lambda pair: pair[0]))
def test_every_option_is_on_its_page(name, command):
    page = (REFERENCE / "command_line.md").read_text()
    assert f"## {name}\n" in page
    section = page.split(f"## {name}\n")[1].split("\n## ")[0]
    for parameter in command.params:
        shown = parameter.param_type_name == "option" and not parameter.hidden  # those of another command's section
        for option in parameter.opts if shown else ():
            assert option in section, option


def test_every_error_is_on_the_errors_page():
    page = (REFERENCE / "errors.md").read_text()
    for name in errors.__all__:
        if name != "Code":
            assert f"`{name}`" in page or f"`tfcollective.{name}`" in page or f"`{name}`s" in page, name
    for code in errors.Code:
        if code is not errors.Code.OK:
            assert f"| {code.value} |" in page


def test_every_public_name_is_on_the_python_page():
    page = (REFERENCE / "python_api.md").read_text()
    for name in tfcollective.__all__:
        if not name.endswith("Error") and not name.startswith("__"):
            assert re.search(rf"\b{name}\b", page), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def lines_of_prose(text):
    """The lines without tables, drawings and blocks of code."""
    text = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    blocks = re.split(r"^\s*```.*$", text, flags=re.MULTILINE)[::2]
    return [line for block in blocks for line in block.splitlines() if not line.lstrip().startswith("|")]


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_have_at_most_100_columns(page):
    assert [line for line in lines_of_prose(page.read_text()) if len(line) > 100] == []


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_inline_code_fits_a_line(page):
    prose = re.sub(r"\s+", " ", " ".join(lines_of_prose(page.read_text())))
    assert [code for code in re.findall(r"`([^`]+)`", prose) if len(code) > 80] == []


def test_every_path_that_the_docs_name_exists():
    places = re.compile(r"`((?:tfcollective|native|launchers|benchmarks|tests|tools)/[\w/.]*)`")
    named = {
        (page.name, place) for page in CURRENT for place in places.findall(page.read_text()) if "ROOM" not in place
    }
    named.discard(("mlflow.md", "tfcollective/report.json"))
    assert len(named) > 50
    assert not [(page, place) for page, place in named if not (ROOT / place).exists()]


def test_the_design_index_names_pages_once():
    folder = ROOT / "docs" / "design"
    listed = re.findall(r"^\|.*\]\(([^)]+)\) \|$", (folder / "index.md").read_text(), re.M)
    assert sorted(listed) == sorted(page.name for page in folder.glob("*.md") if page.name != "index.md")


def pages_of(entries):
    for entry in entries:
        for value in entry.values():
            yield from pages_of(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    listed = list(pages_of(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert len(set(listed)) == len(listed)
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("name", ["tfcollective", "keras", "tensorflow", "elastic"])
def test_every_python_name_is_in_an_example(name):
    page = (REFERENCE / "api" / f"{name}.md").read_text()
    examples = "".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
    names = [full.rpartition(".")[2] for full in re.findall(r"^::: (\S+)", page, re.M)]
    assert names
    assert [one for one in names if not re.search(rf"\b{one}\b", examples)] == []
