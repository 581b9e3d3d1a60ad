"""What a node prints, on its way to the submitter."""

import subprocess
import sys

from tfcollective._launch.hosted.output_relay import Outbox

PROGRAM = """
import os, subprocess, sys
from tfcollective._control.messages import OutputPiece
from tfcollective._launch.hosted.output_relay import OutputRelay

class Client:
    sent = []
    def call(self, request):
        self.sent.append(request.piece)

with OutputRelay(Client(), "worker-0"):
    os.write(1, b"ours\\n")
    child = "import os; os.write(1, b'a child'); os.write(2, b'its error\\\\n')"
    subprocess.run([sys.executable, "-c", child], check=True)
os.write(1, b"|after\\n")
for stream in ("stdout", "stderr"):
    text = "".join(piece.text for piece in Client.sent if piece.stream == stream)
    os.write(1, repr((stream, text)).encode() + b"\\n")
"""


def test_output_of_a_nodes_children_is_sent():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    kept, _, sent = done.stdout.partition("|after\n")
    assert kept == "ours\na child"
    assert sent.splitlines() == ["('stdout', 'ours\\na child')", "('stderr', 'its error\\n')"]
    assert done.stderr == "its error\n"


FULL = """
import os
from tfcollective._launch.hosted.output_relay import OutputRelay

class Client:
    sent = ""
    def call(self, request):
        self.sent += request.piece.text

client = Client()
with OutputRelay(client, "worker-0"):
    for number in range(3000):  # more than a pipe holds
        os.write(1, b"%099d\\n" % number)
os.write(2, b"%d" % len(client.sent))
"""


def test_a_full_disk_blocks_no_process():
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", FULL]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stderr == "300000"


def test_pieces_of_one_stream_are_joined():
    box = Outbox("n", 1000)
    for stream, data in (("stdout", b"a\n"), ("stdout", b"b\n"), ("stderr", b"c\n"), ("stdout", b"d\n")):
        box.add(stream, data)
    box.close()
    pieces = [box.take(0), box.take(0), box.take(0)]
    assert [(piece.stream, piece.text) for piece in pieces] == [
        ("stdout", "a\nb\n"),
        ("stderr", "c\n"),
        ("stdout", "d\n"),
    ]
    assert box.take(0) is None


def test_output_without_room_is_reported_as_omitted():
    box = Outbox("n", 10)
    box.add("stdout", b"12345678\n")
    box.add("stdout", b"too long\n")
    assert box.take(0).text == "12345678\n"
    box.add("stdout", b"on\n")
    box.close()
    assert box.take(0).text == "(9 bytes of output are only in the container's log)\n"
    assert box.take(0).text == "on\n"
