"""The scripts and commands of docs/howto/slurm.md, word for word."""

import os
import re
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(600)]
PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "slurm.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)
SCRIPTS = [block for block in BLOCKS if block.startswith("#!")]
PROGRAM = """
import os
import numpy as np, tfcollective as tfc
tfc.init()
total = tfc.get_communicator().allreduce(np.full(3, tfc.rank() + 1), tfc.Sum)
print("seen", tfc.rank(), tfc.size(), os.environ["SLURMD_NODENAME"], int(total[0]), flush=True)
tfc.shutdown()
"""


def batch(slurm, folder, script):
    """What a batch script prints that is submitted from a folder with train.py."""
    (folder / "train.py").write_text(PROGRAM)
    (folder / "job.sh").write_text(script)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # the environment is active
    words = ("sbatch", "--wait", f"--chdir={folder}", f"--output={folder}/out", str(folder / "job.sh"))
    done = slurm.run(*words, check=False, PATH=path)
    out = (folder / "out").read_text()
    assert done.returncode == 0, out
    return sorted(re.findall(r"seen (.*)", out))


def test_the_batch_script(slurm, tmp_path):
    nodes = ("node1", "node1", "node2", "node2")
    assert batch(slurm, tmp_path, SCRIPTS[0]) == [f"{rank} 4 {node} 10" for rank, node in enumerate(nodes)]


def test_a_script_without_launcher_using_sbcast(slurm, tmp_path):
    assert "sbcast" in SCRIPTS[1]
    assert batch(slurm, tmp_path, SCRIPTS[1]) == ["0 2 node1 3", "1 2 node2 3"]
    assert list(tmp_path.glob("*.key")) == []


def test_the_key_file_on_a_shared_file_system(slurm, tmp_path):
    (variable,) = re.findall(r"^`(TFCOLLECTIVE_KEY_FILE=.*)`", PAGE, re.M)
    lines = (line for line in SCRIPTS[1].splitlines() if not line.startswith("sbcast"))
    script = "\n".join(f"export {variable}" if "KEY_FILE" in line else line for line in lines)
    assert batch(slurm, tmp_path, f"{script}\n") == ["0 2 node1 3", "1 2 node2 3"]


def test_salloc(slurm, tmp_path):
    allocate, command = re.search(r"^(salloc .*)\n(tfcollective run .*)$", PAGE, re.M).groups()
    (tmp_path / "train.py").write_text(PROGRAM)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    script = f"cd {tmp_path} && {command}"
    done = slurm.run(*allocate.split(), "bash", "-c", script, PATH=path)
    assert len(re.findall("seen", done.stdout)) == 4, done.stderr


def test_the_lines_that_outlast_lost_nodes(slurm, tmp_path):
    (lines,) = (block for block in BLOCKS if block.startswith("#SBATCH --no-kill"))
    head = "\n".join(line for line in SCRIPTS[0].splitlines() if line.startswith("#"))
    found = batch(slurm, tmp_path, f"{head}\n{lines}")
    assert found == [f"{rank} 4 {node} 10" for rank, node in enumerate(("node1", "node1", "node2", "node2"))]


def test_the_call(slurm, tmp_path):
    (call,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    body = "\n".join(f"    {line}" for line in PROGRAM.strip().splitlines())
    call = call.replace('"partition": "gpu"', '"partition": "all"')  # the only one here
    (tmp_path / "job.py").write_text(f"import tfcollective\ndef train():\n{body}\n    return 7\n{call}print(results)\n")
    done = slurm.run("bash", "-c", f"cd {tmp_path} && {sys.executable} job.py")
    assert "[7, 7, 7, 7]" in done.stdout, done.stderr
    assert sorted(re.findall(r"seen (\d 4)", done.stdout)) == [f"{rank} 4" for rank in range(4)]


def test_the_command_that_submits(slurm, tmp_path):
    (command,) = re.findall(r"^(tfcollective run --launcher slurm -np 4 .*)$", PAGE, re.M)
    (tmp_path / "train.py").write_text(PROGRAM)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = command.replace("--partition gpu", "--partition all")  # the only one here
    done = slurm.run("bash", "-c", f"cd {tmp_path} && {command}", PATH=path)
    assert len(re.findall("seen", done.stdout)) == 4, done.stderr
    for said in ("submitted", "running on node"):
        assert re.search(rf"^tfcollective: job \d+: {said}", done.stderr, re.M), done.stderr
