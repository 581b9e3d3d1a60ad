"""What becomes of a text of faulthandler, and in which words a process's activity is told."""

import pytest

from tfcollective._base.stacks import Activity, parse

TEXT = """Thread 0x00007f2f00000001 (most recent call first):
  File "/usr/lib/python3.11/site-packages/keras/src/queue.py", line 3 in get
  File "/usr/lib/python3.11/site-packages/tensorflow/loop.py", line 9 in run

Thread 0x00007f2f00000002 [loader] (most recent call first):
  File "data.py", line 7 in read
  File "data.py", line 2 in <lambda>

Current thread 0x00007f2f00000003 (most recent call first):
  File "/usr/lib/python3.11/site-packages/keras/src/trainer.py", line 5 in fit
  File "train.py", line 41 in <module>

Thread 0x00007f2f00000004 (most recent call first):
  <no Python frame>
"""


def test_the_main_thread_is_first():
    main, other = parse(TEXT, lambda name: f"/home/me/{name}" if name == "train.py" else name)
    assert [(one.file, one.line, one.function, one.package) for one in main] == [
        ("/home/me/train.py", 41, "<module>", ""),
        ("/usr/lib/python3.11/site-packages/keras/src/trainer.py", 5, "fit", "keras"),
    ]
    assert [(one.file, one.line, one.function) for one in other] == [("data.py", 2, "<lambda>"), ("data.py", 7, "read")]


def test_the_innermost_frames_are_kept():
    frames = "".join(f'  File "train.py", line {line} in f\n' for line in range(1, 101))
    (main,) = parse(f"Current thread 0x01 (most recent call first):\n{frames}  ...\n")
    assert [one.line for one in main] == list(range(60, 0, -1))


@pytest.mark.parametrize("text", ["", "\n\n", "Current", "what is this?\n\nand that"])
def test_other_texts_have_no_threads(text):
    assert parse(text) == ()


@pytest.mark.parametrize(
    ("activity", "words"),
    [
        (Activity(), "ended"),
        (Activity("Z", 1.0), "ended"),
        (Activity("T", 1.0, 0.9), "stopped by a signal"),
        (Activity("t", 1.0), "stopped by a debugger"),
        (Activity("D", 1.0), "waiting for a disk, a device or a mount"),
        (Activity("S", 2.0, 0.25, 400), "swapping (400 pages from the disk in 2.0 s)"),
        (Activity("S", 2.0, 1.5, 10), "computing (1.50 s of CPU time in 2.0 s)"),
        (Activity("R", 2.0, 0.25), "computing (0.25 s of CPU time in 2.0 s)"),
        (Activity("S", 1.0, 0.25), "waiting (0.25 s of CPU time in 1.0 s)"),
        (Activity("S", 1.0, 0.0, 0, "pipe_read"), "waiting (0.00 s of CPU time in 1.0 s, in the kernel's pipe_read)"),
    ],
)
def test_the_kernel_says_what_a_process_does(activity, words):
    assert str(activity) == words
    assert words.startswith(activity.kind)
