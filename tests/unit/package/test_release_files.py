"""The files that belong to a release and that nothing else runs agree with each other, and with what they name."""

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tfcollective._base.version import TENSORFLOWS

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILES = "".join(
    (ROOT / path).read_text("utf-8") for path in ("Makefile", "tools/suites.mk", "tools/release/release.mk")
)
TARGETS = set(re.findall(r"^([\w-]+):", MAKEFILES, re.MULTILINE))


def version_of(path, before):
    return re.search(rf'^{before}"?([0-9][^"\s]*)', (ROOT / path).read_text("utf-8"), re.MULTILINE)[1]


@pytest.mark.parametrize(
    ("path", "before"), [("benchmarks/tfcollective_bench/__init__.py", "__version__ = "), ("CITATION.cff", "version: ")]
)
def test_one_place_has_the_version_and_others_follow(path, before):
    assert version_of(path, before) == version_of("tfcollective/_base/version.py", "__version__ = ")


def test_tests_run_with_every_tested_tensorflow():
    listed = re.search(r"^TENSORFLOWS_WITH \?= (.*) \S+-tf_keras nightly$", MAKEFILES, re.MULTILINE)[1]
    assert tuple(version.rpartition(".")[0] for version in listed.split()) == TENSORFLOWS
    assert f"| TensorFlow | {TENSORFLOWS[0]} to {TENSORFLOWS[-1]}" in (
        ROOT / "docs" / "reference" / "supported.md"
    ).read_text("utf-8")


def test_the_licence_of_the_benchmarks_is_the_same():
    assert (ROOT / "benchmarks" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_citation_has_what_its_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert isinstance(citation["version"], str)
    assert all(author.get("name") for author in citation["authors"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_few_rights_and_fixed_actions(path):
    text = path.read_text("utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 120
        rights = {right for right, access in job["permissions"].items() if access == "write"}
        assert rights <= {
            "attest": {"id-token", "attestations"},
            "publish": {"id-token"},
            "announce": {"contents"},
            "deploy": {"pages", "id-token"},
        }.get(name, set())
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
    uses = re.findall(r"uses: (.*)", text)
    assert uses and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use) for use in uses)
    assert "secrets." not in text


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_exist(path):
    called = re.findall(r"\bmake (?:-o \S+ )?([\w-]+)", re.sub(r"#.*", "", path.read_text("utf-8")))
    assert called
    assert set(called) <= TARGETS


def test_jobs_wait_for_jobs_that_exist():
    for path in WORKFLOWS:
        jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"]
        needed = [
            need
            for job in jobs.values()
            for need in ([job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", []))
        ]
        assert set(needed) <= set(jobs)


def test_nothing_is_published_that_was_not_tested():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))["jobs"]

    def before(name):
        needs = jobs[name].get("needs", [])
        for need in [needs] if isinstance(needs, str) else needs:
            yield need
            yield from before(need)

    assert {"build", "test", "test-aarch64", "docs", "attest"} <= set(before("publish"))
    assert jobs["publish"]["environment"] == "pypi"
    assert {"publish", "docs"} <= set(before("deploy"))


def archive(folder, version):
    page = folder / "index.html"
    page.write_text(f"the site of {version}")
    with tarfile.open(folder / f"tfcollective-site-{version}.tar.gz", "w:gz") as packed:
        packed.add(page, "./index.html")
    page.unlink()


def assemble(sites, pages):
    command = [sys.executable, str(ROOT / "tools" / "release" / "pages.py"), str(sites), str(pages)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_site_leads_to_the_newest_version(tmp_path):
    sites, pages = tmp_path / "sites", tmp_path / "pages"
    sites.mkdir()
    for version in ("0.9.1", "0.10.0", "0.9.0"):
        archive(sites, version)
    done = assemble(sites, pages)
    assert done.stdout == "versions: 0.10.0 0.9.1 0.9.0\n", done.stderr
    listed = json.loads((pages / "versions.json").read_text("utf-8"))
    assert [(entry["version"], entry["aliases"]) for entry in listed] == [
        ("0.10.0", ["latest"]),
        ("0.9.1", []),
        ("0.9.0", []),
    ]
    assert 'url=0.10.0/index.html"' in (pages / "index.html").read_text("utf-8")
    assert (pages / "0.9.1" / "index.html").read_text("utf-8") == "the site of 0.9.1"


@pytest.mark.parametrize("name", [None, "tfcollective-site-1.0.tar.gz"])
def test_a_site_without_versions_is_refused(tmp_path, name):
    if name:
        (tmp_path / name).touch()
    done = assemble(tmp_path, tmp_path / "pages")
    assert done.returncode == 1
    assert "tfcollective-site-X.Y.Z.tar.gz" in done.stderr
    assert not (tmp_path / "pages").exists()


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_forms_of_issues_have_what_their_format_requires(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text("utf-8"))
    assert form["name"] and form["description"]
    for field in form["body"]:
        assert field["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"].get("label") or field["attributes"].get("value")


def test_the_dev_container_is_that_of_the_dockerfile():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    dockerfile = ROOT / ".devcontainer" / container["build"]["dockerfile"]
    text = dockerfile.read_text("utf-8")
    assert f"USER {container['remoteUser']}\n" in text
    assert container["postCreateCommand"].removeprefix("make ") in TARGETS
    assert re.search(r'^CMD \["make", "demo"\]$', text, re.MULTILINE)


def test_the_tools_of_a_release_have_one_version():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    group = re.search(r"^release = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)[1]
    requirements = re.findall(r'"([^"]+)"', group)
    assert len(requirements) > 8
    assert all(re.fullmatch(r"[\w-]+(\[[\w-]+\])?==[\d.]+", requirement) for requirement in requirements)


def test_a_commit_and_lint_use_the_same_tools():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    needed = {need for hook in hooks for need in hook.get("additional_dependencies", ())}
    assert needed
    assert all(f'"{need}"' in (ROOT / "pyproject.toml").read_text("utf-8") for need in needed)
