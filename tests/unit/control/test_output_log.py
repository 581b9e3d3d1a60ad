"""What a reader of a job's output gets."""

from tfcollective._control.messages import OutputPiece
from tfcollective._control.state.output_log import OutputLog


def piece(text, node="worker-0", stream="stdout"):
    return OutputPiece(node, stream, text)


def test_a_reader_gets_everything_once():
    log = OutputLog(100)
    log.add(piece("a\n"))
    log.add(piece("b\n"))
    page = log.since(0)
    assert [one.text for one in page.pieces] == ["a\n", "b\n"]
    assert log.since(page.position) is None
    log.add(piece("c\n"))
    assert [one.text for one in log.since(page.position).pieces] == ["c\n"]


def test_slow_readers_learn_how_much_they_missed():
    log = OutputLog(10)
    for number in range(5):
        log.add(piece(f"{number}...."))
    page = log.since(1)
    assert [one.text for one in page.pieces] == ["3....", "4...."]
    assert page.lost == 2
    assert log.since(page.position) is None


def test_an_oversized_piece_stays_until_the_next():
    log = OutputLog(4)
    log.add(piece("far too long"))
    assert log.since(0).pieces[0].text == "far too long"
    log.add(piece("b"))
    assert [one.text for one in log.since(0).pieces] == ["b"]


def test_a_page_is_bounded_but_never_empty():
    log = OutputLog(1 << 24)
    for _ in range(3):
        log.add(piece("x" * (1 << 20)))
    position, pages = 0, 0
    while (page := log.since(position)) is not None:
        assert len(page.pieces) == 1
        position, pages = page.position, pages + 1
    assert pages == 3
