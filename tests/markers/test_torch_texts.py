"""Texts of PyTorch's own tools: module hierarchies, and numbers of modules in several traces."""

from tracekit.markers.base import RANGE
from tracekit.markers.torch_texts import PREFIX, Node, Numbering, hierarchy_texts


def test_a_hierarchy_names_every_module_above_and_roots_of_one_class_by_their_names() -> None:
    """What the notation cannot hold is unknown, and what is no module has the module above."""
    layers = [Node(-1, "Net", "Net"), Node(0, "layers", None), Node(1, "0", "Block")]
    odd = [Node(0, "a(b)", "Bag[x]"), Node(3, "loop *", None, RANGE), Node(-1, "r", None, RANGE)]
    texts = hierarchy_texts([*layers, *odd, Node(-1, "Net~2", "Net"), Node(-1, "head", "Head")])
    assert texts[2] == "TOP(Net)::forward.layers()::forward.0(Block)::forward."
    unknown = "TOP(Net)::forward.INSTANCE_NAME_UNKNOWN(Bag[x])::forward."
    assert texts[3:] == [unknown, unknown, None, "TOP(Net~2)::forward.", "TOP(Head)::forward."]


def texts(*names: str) -> list[str]:
    return [f"{PREFIX}{name}" for name in names]


def renamed(numbering: Numbering, *names: str, same: tuple[str, ...] = ()) -> list[str]:
    new = numbering.renamed(texts(*names), texts(*same))
    return [new.get(text, text).removeprefix(PREFIX) for text in texts(*names)]


def test_equal_numbers_of_two_traces_are_different_modules_unless_they_number_the_same() -> None:
    numbering = Numbering(texts("Linear_0", "Linear_3", "Sampler_0"))
    assert renamed(numbering, "Net_0", "Linear_0", "Linear_1") == ["Net_0", "Linear_4", "Linear_5"]
    numbering = Numbering(texts("Linear_0"))
    first = renamed(numbering, "Net_0", "Linear_0")
    assert first == renamed(numbering, "Net_0", "Linear_0") == ["Net_0", "Linear_1"]
    assert renamed(numbering, "Net_0", "Linear_0", "Linear_1") == ["Net_1", "Linear_2", "Linear_3"]


def test_the_only_module_of_its_class_around_the_graph_in_both_is_one_and_other_texts_stay() -> None:
    assert renamed(Numbering(texts("Net_0")), "Net_0", same=("Net_0",)) == ["Net_0"]
    assert renamed(Numbering(texts("Net_0", "Net_1")), "Net_0", same=("Net_0",)) == ["Net_2"]
    assert Numbering(["aten::mm", f"{PREFIX}Net"]).renamed(["aten::mm", f"{PREFIX}Net"]) == {}
