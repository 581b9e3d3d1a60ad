"""What a script uses of Horovod is found, wherever it is written."""

import pytest

from tfcollective._cli.app import invoke
from tfcollective._cli.horovod_script import Finding, examine

SCRIPT = """\
import os
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
from horovod.keras.callbacks import LearningRateWarmupCallback as Warmup
from horovod import tensorflow as again
import horovod.torch

hvd.init()
rank = int(os.environ["HOROVOD_RANK"])
x = hvd.allreduce(1.0, compression=hvd.Compression.fp16)
hvd.join()
warm = [Warmup(0.1), hvd_keras.callbacks.MetricAverageCallback(), hvd_keras.rank()]
again.allreduce(2.0)
hvd.elastic.run(print)
hvd.nothing_like_it()
os.environ.get("HOROVOD_CYCLE_TIME")
horovod.run(print, num_proc=2), horovod.__version__.split("."), "HOROVOD_%s"
class Other:
    allreduce = None
Other.allreduce
"""


def found() -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(SCRIPT).findings}


def test_a_multiple_import_is_listed_once() -> None:
    imports = examine("from horovod.tensorflow import rank, size\n").imports
    assert imports == [(1, "horovod.tensorflow", "tfcollective.horovod.tensorflow")]


def test_names_are_found_through_every_kind_of_import() -> None:
    by_name = found()
    assert by_name["horovod.tensorflow.allreduce"].lines == (10, 13)
    assert by_name["horovod.tensorflow.Compression"].lines == (10,)
    assert by_name["horovod.keras.callbacks.LearningRateWarmupCallback"].lines == (4, 12)
    assert by_name["horovod.tensorflow.keras.callbacks.MetricAverageCallback"].status == "same"
    assert by_name["horovod.tensorflow.keras.rank"].status == "same"
    assert by_name["horovod.run"].status == "different"
    assert len(by_name) == 11


def test_what_is_not_there_is_said() -> None:
    missing = {name: finding.note for name, finding in found().items() if finding.status == "not yet"}
    assert set(missing) == {"horovod.tensorflow.nothing_like_it"}
    assert "no such name" in missing["horovod.tensorflow.nothing_like_it"]


ELASTIC = """\
import horovod.tensorflow as hvd
import horovod.keras as hvd_keras
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.common.elastic import ObjectState, run_fn
from horovod.tensorflow.keras import elastic

state = hvd.elastic.TensorFlowKerasState(print)
hvd_keras.elastic.CommitStateCallback(state), elastic.KerasState(print)
"""


def test_elastic_names_are_found_wherever_horovod_has_them() -> None:
    report = examine(ELASTIC)
    assert {row[1:] for row in report.imports[2:]} == {
        ("horovod.common.exceptions", "tfcollective.horovod.common.exceptions"),
        ("horovod.common.elastic", "tfcollective.horovod.common.elastic"),
        ("horovod.tensorflow.keras.elastic", "tfcollective.horovod.tensorflow.keras.elastic"),
    }
    assert {finding.name: finding.status for finding in report.findings} == {
        "horovod.common.exceptions.HostsUpdatedInterrupt": "different",
        "horovod.common.elastic.ObjectState": "different",
        "horovod.common.elastic.run_fn": "not yet",
        "horovod.tensorflow.elastic.TensorFlowKerasState": "different",
        "horovod.keras.elastic.CommitStateCallback": "same",
        "horovod.tensorflow.keras.elastic.KerasState": "different",
    }


def test_modules_and_variables() -> None:
    report = examine(SCRIPT)
    assert [row for row in report.imports if row[0] in (2, 5, 6)] == [
        (2, "horovod.tensorflow", "tfcollective.horovod.tensorflow"),
        (5, "horovod.tensorflow", "tfcollective.horovod.tensorflow"),
        (6, "horovod.torch", None),
    ]
    assert report.variables == [("HOROVOD_CYCLE_TIME", (16,)), ("HOROVOD_RANK", (9,))]


def test_the_command(tmp_path, capsys) -> None:
    script, clean = tmp_path / "train.py", tmp_path / "clean.py"
    script.write_text(SCRIPT)
    clean.write_text("import horovod.tensorflow as hvd\nhvd.init()\n")
    assert invoke("tfcollective", ["migrate", str(script)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        f"{script}: does not run here as it is: tfcollective has no horovod.torch, no "
        "horovod.tensorflow.nothing_like_it; change 5 imports; read the notes on "
    )
    assert "line 6: horovod.torch -> there is nothing like it" in out
    assert "  different: horovod.tensorflow.join (line 11): averages are" in out
    assert "  variable HOROVOD_RANK (line 9): set with tfcollective run --horovod-compat" in out
    assert "  variable HOROVOD_CYCLE_TIME (line 16): has no effect" in out
    assert invoke("tfcollective", ["migrate", str(clean)]) == 0
    assert "different: horovod.tensorflow.init (line 2): `comm` is refused" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "def f(:\n", "\x00"])
def test_what_is_no_script_is_a_usage_error(text, tmp_path, capsys) -> None:
    script = tmp_path / "bad.py"
    if text is not None:
        script.write_text(text)
    assert invoke("tfcollective", ["migrate", str(script)]) == 64
    assert "cannot be read as a Python script" in capsys.readouterr().err


def test_a_script_without_horovod(tmp_path, capsys) -> None:
    script = tmp_path / "plain.py"
    script.write_text("print(1)\n")
    assert invoke("tfcollective", ["migrate", str(script)]) == 0
    assert "does not import horovod" in capsys.readouterr().out


def test_the_verdicts_on_all_scripts_come_first(tmp_path, capsys) -> None:
    for name, text in (
        ("same.py", "from horovod.tensorflow import rank\n"),
        ("different.py", "import horovod.tensorflow as hvd\nhvd.init()\n"),
        ("torch.py", "import horovod.torch as hvd\n"),
        ("plain.py", "print(1)\n"),
    ):
        (tmp_path / name).write_text(text)
    names = ("same", "different", "torch", "plain")
    assert invoke("tfcollective", ["migrate", *(str(tmp_path / f"{name}.py") for name in names)]) == 1
    assert capsys.readouterr().out.splitlines()[:5] == [
        f"{tmp_path}/same.py: change 1 import; nothing else",
        f"{tmp_path}/different.py: change 1 import; read the notes on 1 name that may behave differently",
        f"{tmp_path}/torch.py: does not run here as it is: tfcollective has no horovod.torch; change 1 import",
        f"{tmp_path}/plain.py: does not import horovod: nothing to change",
        "",
    ]
