"""Numbers of modules in several traces of one process."""

from __future__ import annotations

from tracekit.markers.numbered import PREFIX, Numbering


def texts(*names: str) -> list[str]:
    return [f"{PREFIX}{name}" for name in names]


def renamed(numbering: Numbering, *names: str, same: tuple[str, ...] = ()) -> list[str]:
    new = numbering.renamed(texts(*names), texts(*same))
    return [new.get(text, text).removeprefix(PREFIX) for text in texts(*names)]


def test_equal_numbers_of_two_traces_are_different_modules() -> None:
    numbering = Numbering(texts("Linear_0", "Linear_3", "Sampler_0"))
    assert renamed(numbering, "Net_0", "Linear_0", "Linear_1") == ["Net_0", "Linear_4", "Linear_5"]


def test_traces_that_number_the_same_number_the_same_modules() -> None:
    numbering = Numbering(texts("Linear_0"))
    first = renamed(numbering, "Net_0", "Linear_0")
    assert first == renamed(numbering, "Net_0", "Linear_0") == ["Net_0", "Linear_1"]
    assert renamed(numbering, "Net_0", "Linear_0", "Linear_1") == ["Net_1", "Linear_2", "Linear_3"]


def test_the_only_module_of_its_class_around_the_graph_in_both_is_one() -> None:
    assert renamed(Numbering(texts("Net_0")), "Net_0", same=("Net_0",)) == ["Net_0"]
    assert renamed(Numbering(texts("Net_0", "Net_1")), "Net_0", same=("Net_0",)) == ["Net_2"]


def test_other_texts_stay() -> None:
    assert Numbering(["aten::mm", f"{PREFIX}Net"]).renamed(["aten::mm", f"{PREFIX}Net"]) == {}
