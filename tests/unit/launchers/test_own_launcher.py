"""The launcher of docs/howto/own_launcher.md, as a package that is installed beside ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "own_launcher.md"
JOB = ("--print-plan", "true")
HOSTS = ("-np", "2", "-H", "a.invalid:1,b.invalid:1")


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """Calls `tfcollective run` where the launcher is installed; its exit code, and what it prints."""
    place = tmp_path_factory.mktemp("own")
    module, entry = (re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.S)[1] for kind in ("python", "toml"))
    (place / "my_cluster.py").write_text(module)
    metadata = place / "my_cluster-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_cluster\nVersion: 1.0\n")
    group, line = re.search(r'entry-points\."(.*?)"\]\n(.*)', entry).groups()
    (place / "broken.py").write_text("1 / 0")
    (place / "greedy.py").write_text(module.replace('"--zone"', '"--np -np --queue"'))
    lines = (f"[{group}]", line.replace('"', ""), "broken = broken:Launcher", "a = greedy:MyLauncher")
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *filter(None, sys.path)])}

    def called(*words):
        run = [sys.executable, "-m", "tfcollective", "run", *words]
        done = subprocess.run(run, env=environ, capture_output=True, text=True, timeout=100)
        return done.returncode, done.stdout + done.stderr

    return called


def test_its_options_are_in_the_help(call):
    _, text = call("--launcher", "mine", "--help")
    assert "--zone [east|west]  Zone of the hosts. [east]" in text.split("My cluster:")[1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--launcher", "mine", *HOSTS, "--zone", "west"), 0, "a.invalid"),
        (
            ("--launcher", "mine", *HOSTS, "--zone", "north"),
            64,
            "zone (--zone): expected one of east, west, got 'north'",
        ),
        (("--launcher", "broken", "--colour", "red"), 70, "the launcher 'broken' cannot be loaded: division by zero"),
        (("--launcher", "slurm", "-np", "3", "--queue", "q"), 0, "--ntasks=3\n#SBATCH --partition=q"),
        (("-np", "2", "--zone", "west"), 64, "--zone needs --launcher mine"),
        (("--launcher", "mine", *HOSTS, "--queue", "q"), 64, "--queue or --partition needs --launcher"),
    ],
)
def test_its_options_are_read_and_checked(call, words, code, said):
    found, text = call(*words, *JOB)
    assert found == code
    assert said in text


def test_its_options_may_be_in_a_file(call, tmp_path):
    (tmp_path / "run.yaml").write_text("launcher: mine\nzone: north\n")
    assert "got 'north'" in call("--config-file", str(tmp_path / "run.yaml"), *HOSTS, *JOB)[1]
