"""What people see of an exception; the frames of frameworks come from code that is compiled under their file names."""

import json
import re

import pytest

from tfcollective._base.tracebacks import cause_line, folded_traceback

KERAS = "/venv/lib/python3.11/site-packages/keras/src/trainer.py"
TENSORFLOW = "/venv/lib/python3.11/site-packages/tensorflow/python/eager.py"
GRAPH = f"""Graph execution error:

Detected at node MatMul defined at (most recent call last):
  File "/home/me/train.py", line 10, in <module>

  File "{KERAS}", line 20, in fit

  File "{KERAS}", line 30, in step

  File "/home/me/model.py", line 6, in call

Matrix size-incompatible: In[0]: [2,5], In[1]: [4,3]
\t [[{{{{node MatMul}}}}]] [Op:__inference_step_18]"""
SEVERAL = """Graph execution error:

2 root error(s) found.
  (0) INVALID_ARGUMENT: indices[1] = 12 is not in [0, 10)
\t [[{{node a}}]]
  (1) CANCELLED: Function was cancelled before it was started
0 successful operations.
0 derived errors ignored. [Op:__inference_x_2]"""
ASSERTED = """Graph execution error:

Detected at node cond/Assert/Assert defined at (most recent call last):
<stack traces unavailable>
assertion failed: [tfcollective: the replicas\\' weights differ on ranks [1]]
\t [[{{node cond/Assert/Assert}}]] [Op:__inference_step_18]"""
AUTOGRAPH = f"""in user code:

    File "{KERAS}", line 1, in train_function  *
        return step_function(self, iterator)
    File "/home/me/train.py", line 4, in f  *
        return tf.reshape(x, [3, 3])
    File "/home/me/train.py", line 7, in g
        raise ValueError("Cannot reshape")

    ValueError: Cannot reshape a tensor with 4 elements
"""
LAYER = """Exception encountered when calling Dense.call().

\x1b[1mInput 0 is incompatible: expected 3, found 5\x1b[0m

Arguments received by Dense.call():
  • x=5"""


@pytest.mark.parametrize(
    ("kind", "message", "line"),
    [
        ("ValueError", "plain\nmore", "plain"),
        ("ValueError", "\n\n  late\n", "late"),
        ("KeyError", "", ""),
        ("InvalidArgumentError", GRAPH, "Matrix size-incompatible: In[0]: [2,5], In[1]: [4,3]"),
        ("InvalidArgumentError", SEVERAL, "INVALID_ARGUMENT: indices[1] = 12 is not in [0, 10)"),
        ("InvalidArgumentError", ASSERTED, "tfcollective: the replicas' weights differ on ranks [1]"),
        ("ValueError", AUTOGRAPH, "Cannot reshape a tensor with 4 elements"),
        ("ValueError", LAYER, "Input 0 is incompatible: expected 3, found 5"),
        ("InvalidArgumentError", "{{function_node __wrapped_X_device_/cpu:0}} too small [Op:X] name: ", "too small"),
        ("InternalError", "Graph execution error:", "Graph execution error:"),
    ],
)
def test_the_line_that_says_what_was_wrong(kind, message, line):
    assert cause_line(kind, message) == line


def through(filename, call):
    """A function of this file that makes the call."""
    names = {"call": call}
    exec(compile("def enter():\n    return call()", filename, "exec"), names)
    return names["enter"]


def raised(call):
    """The error that the call raises, without the frames of this test."""
    try:
        call()
    except Exception as error:
        return error.with_traceback(error.__traceback__.tb_next)
    pytest.fail("nothing was raised")


def fail():
    raise ValueError("a label of 17")


def test_frames_of_frameworks_are_folded_in_between():
    error = raised(through("/home/me/train.py", through(KERAS, through(TENSORFLOW, through(KERAS, fail)))))
    lines = folded_traceback(error).splitlines()
    assert lines[:2] == ['File "/home/me/train.py", line 2, in enter', "... 3 frames in keras and tensorflow ..."]
    assert re.fullmatch(rf'File "{re.escape(__file__)}", line \d+, in fail', lines[2])
    assert lines[3:] == ['  raise ValueError("a label of 17")', "ValueError: a label of 17"]


def test_frames_of_frameworks_are_folded_at_ends():
    lines = folded_traceback(raised(through("/home/me/train.py", lambda: json.loads("{")))).splitlines()
    assert lines[-2] == "... 3 frames in Python ..."
    assert lines[-1].startswith("JSONDecodeError: ")


def test_generated_code_belongs_to_what_calls_it():
    inside = raised(through("/home/me/train.py", through(TENSORFLOW, through("<string>", fail))))
    assert "... 2 frames in tensorflow ..." in folded_traceback(inside)
    program = raised(through("<string>", through(TENSORFLOW, fail)))  # python -c
    assert folded_traceback(program).startswith('File "<string>", line 2, in enter\n... 1 frame in tensorflow ...\n')


def test_a_traceback_without_program_frames_is_whole():
    error = raised(through(KERAS, through(TENSORFLOW, "".join)))  # called without what it needs
    assert folded_traceback(error).splitlines()[:2] == [
        f'File "{KERAS}", line 2, in enter',
        f'File "{TENSORFLOW}", line 2, in enter',
    ]


def test_a_graph_message_keeps_places_and_cause():
    assert folded_traceback(raised(lambda: through(KERAS, fail_with(GRAPH))())).splitlines()[-7:] == [
        "ValueError: Graph execution error:",
        "Detected at node MatMul defined at (most recent call last):",
        '  File "/home/me/train.py", line 10, in <module>',
        "  ... 2 frames in keras ...",
        '  File "/home/me/model.py", line 6, in call',
        "Matrix size-incompatible: In[0]: [2,5], In[1]: [4,3]",
        "\t [[{{node MatMul}}]] [Op:__inference_step_18]",
    ]


def test_an_autograph_message_loses_only_framework_lines():
    assert folded_traceback(raised(fail_with(AUTOGRAPH))).splitlines()[-7:] == [
        "ValueError: in user code:",
        "  ... 1 frame in keras ...",
        '    File "/home/me/train.py", line 4, in f  *',
        "        return tf.reshape(x, [3, 3])",
        '    File "/home/me/train.py", line 7, in g',
        '        raise ValueError("Cannot reshape")',
        "    ValueError: Cannot reshape a tensor with 4 elements",
    ]


def fail_with(message):
    def fail():
        raise ValueError(message)

    return fail


def test_what_led_to_an_error_comes_first():
    def chain():
        try:
            try:
                fail()
            except ValueError as error:
                raise KeyError("second") from error
        except KeyError:
            raise OSError("third")  # noqa: B904  the context is what is tested

    lines = [line for line in folded_traceback(raised(chain)).splitlines() if not line.startswith(("File", "  "))]
    assert lines == [
        "ValueError: a label of 17",
        "which was the direct cause of:",
        "KeyError: 'second'",
        "during whose handling came:",
        "OSError: third",
    ]


def test_a_long_traceback_keeps_both_ends():
    lines = folded_traceback(raised(fail_with("\n".join(f"line {number}" for number in range(100))))).splitlines()
    assert len(lines) == 24
    assert lines[0].startswith("File")
    assert re.fullmatch(r"\.\.\. \d+ lines left out \.\.\.", lines[8])
    assert lines[-1] == "line 99"
