"""The store keeps what is shown, and forgets the oldest of the rest."""

from __future__ import annotations

from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore, text_name


def filled(limit: int, count: int) -> TextStore:
    store = TextStore(limit)
    for number in range(count):
        store.put(f"t{number}", IndexedText("x" * 100))
    return store


def test_names_are_equal_for_equal_texts_from_equal_nodes_alone() -> None:
    name = text_name("a\n", b"\0\0\0\0", ((), ("x",)))
    assert name == text_name("a\n", b"\0\0\0\0", ((), ("x",)))
    assert name != text_name("a \n", b"\0\0\0\0", ((), ("x",)))
    assert name != text_name("a\n", b"\1\0\0\0", ((), ("x",)))
    assert name != text_name("a\n", b"\0\0\0\0", ((), ("y",)))


def test_beyond_the_limit_the_least_recently_used_go() -> None:
    store = filled(350, 3)
    assert store.get("t0") is not None
    store.put("t3", IndexedText("x" * 100))
    assert store.names() == ("t2", "t0", "t3")
    assert store.size <= 350


def test_pinned_texts_stay_until_their_owner_lets_go() -> None:
    store = filled(350, 3)
    store.pin("shown", ["t0", "t1"])
    for number in range(3, 9):
        store.put(f"t{number}", IndexedText("x" * 100))
    assert {"t0", "t1"} <= set(store.names())
    store.pin("shown", ["t8"])
    for number in range(9, 11):
        store.put(f"t{number}", IndexedText("x" * 100))
    assert "t8" in store
    assert not {"t0", "t1"} & set(store.names())
    assert store.size <= 350


def test_a_text_larger_than_the_limit_is_kept_while_it_is_the_latest() -> None:
    store = filled(50, 1)
    assert "t0" in store


def test_what_is_dropped_goes_unless_it_is_pinned() -> None:
    store = filled(1000, 3)
    store.pin("shown", ["t0"])
    for name in ("t0", "t1", "none"):
        store.drop(name)
    assert store.names() == ("t0", "t2")
