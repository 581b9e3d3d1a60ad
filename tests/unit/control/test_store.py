import pytest

from tfcollective._control.messages import Entry, Refusal
from tfcollective._control.state import blobs
from tfcollective._control.state.store import Store


def test_versions_grow_by_one():
    store = Store(1000)
    assert store.get("a") is None
    assert [store.put("a", {"x": 1}), store.put("a", [2]), store.put("b", None)] == [1, 2, 1]
    assert store.get("a") == Entry([2], 2)
    assert store.newer("a", 1) == Entry([2], 2)
    assert store.newer("a", 2) is None
    assert store.newer("none", 0) is None


def test_the_size_is_bounded_and_replacing_frees():
    store = Store(100)
    store.put("a", "x" * 90)
    with pytest.raises(Refusal, match="full"):
        store.put("b", "y" * 20)
    store.put("a", "")
    store.put("b", "y" * 20)


def test_a_text_takes_room_by_its_length():
    Store(31).put("a", "x" * 30)
    for value in ("x" * 31, "é" * 10):  # the second: as JSON
        with pytest.raises(Refusal, match="full"):
            Store(31).put("a", value)


@pytest.mark.parametrize("key", ["", "k" * 513])
def test_keys_are_bounded(key):
    with pytest.raises(Refusal, match="characters"):
        Store(10000).put(key, 1)


@pytest.mark.parametrize("length", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_blobs_round_trip(length):
    data = bytes(index % 251 for index in range(1000)) * (length // 1000 + 1)
    entries = dict(blobs.encode("name", data[:length]))
    count = entries[blobs.count_key("name")]
    assert count == -(-length // (1 << 20))
    assert b"".join(blobs.decode(entries[blobs.segment_key("name", i)]) for i in range(count)) == data[:length]


@pytest.mark.parametrize("value", [None, 3, "not base64!", "é"])
def test_other_values_are_no_segments(value):
    with pytest.raises(ValueError, match=r"not a segment|ASCII"):
        blobs.decode(value)


def test_a_removed_value_frees_its_room():
    store = Store(40)
    assert store.put("a", "x" * 30) == 1
    store.remove("a")
    store.remove("a")
    assert store.get("a") is None
    assert store.put("b", "x" * 30) == 1
    store.remove("b")
    assert store.put("a", 1) == 1
