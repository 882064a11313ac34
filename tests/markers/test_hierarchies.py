"""The notation of module hierarchies, as it is written: read again, it names the same modules."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tracekit.markers.base import ModuleMarker
from tracekit.markers.kinds import RANGE
from tracekit.markers.scripted import Node, hierarchy_texts, parse

NAMES = st.from_regex(r"[a-z_0-9~]{1,4}", fullmatch=True)


def test_a_hierarchy_names_every_module_above() -> None:
    nodes = [Node(-1, "Llama", "Llama"), Node(0, "layers", None), Node(1, "0", "Block"), Node(2, "attn", "Attention")]
    assert hierarchy_texts(nodes)[0] == "TOP(Llama)::forward."
    assert hierarchy_texts(nodes)[3] == (
        "TOP(Llama)::forward.layers()::forward.0(Block)::forward.attn(Attention)::forward."
    )


def test_what_the_notation_cannot_hold_is_unknown_and_what_is_no_module_has_the_module_above() -> None:
    nodes = [
        Node(-1, "Net", "Net"),
        Node(0, "a(b)", "Bag[x]"),
        Node(1, "loop *", None, RANGE),
        Node(-1, "r", None, RANGE),
    ]
    unknown = "TOP(Net)::forward.INSTANCE_NAME_UNKNOWN(Bag[x])::forward."
    assert hierarchy_texts(nodes) == ["TOP(Net)::forward.", unknown, unknown, None]


def test_roots_of_one_class_go_by_their_names() -> None:
    assert hierarchy_texts([Node(-1, "Net", "Net"), Node(-1, "Net~2", "Net"), Node(-1, "head", "Head")]) == [
        "TOP(Net)::forward.",
        "TOP(Net~2)::forward.",
        "TOP(Head)::forward.",
    ]


@given(NAMES, st.lists(st.tuples(NAMES, st.none() | NAMES), max_size=5))
def test_a_hierarchy_is_read_as_it_was_written(root: str, below: list[tuple[str, str | None]]) -> None:
    nodes = [Node(-1, root, root), *(Node(row, *names) for row, names in enumerate(below))]
    last = below[-1][1] if below else root
    path = ".".join([root, *(name for name, _ in below)])
    assert parse(str(hierarchy_texts(nodes)[-1])) == ModuleMarker(path=path, class_name=last)
