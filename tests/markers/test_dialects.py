"""The dialects of markers: texts next to what they mean."""

import json

import pytest

from tracekit.causes import BROKEN, DIMENSION_UNKNOWN, FIELD_CUT, FIELD_SKIPPED, NO_NAME, TOO_DEEP, TOO_LONG
from tracekit.markers.base import (
    Marker,
    ModuleMarker as Module,
    OperatorMarker as Operator,
    Param,
    PieceMarker as Piece,
    StepMarker as Step,
    Unreadable,
)
from tracekit.trace.decoding import decode


def said(text: str) -> Marker | None:
    decoded = decode([text])
    return decoded.markers[0] if decoded.markers else None


LAYER_DICTS = {
    "{'Module': 'top'}": Module("top", inputs=()),
    "{'Module': 'top.a', 'Inputs': [[8, 64], []]}": Module("top.a", inputs=((8, 64), ())),
    "{'Module': 'top.a', 'Inputs': [8, 64]}": Module("top.a", inputs=((8, 64),)),
    "{'Module': 'top.a', 'TrainableParams': {'weight': [64, 32], 'k_scale': [], 'b': (4,)}}": Module(
        "top.a", params=(Param("weight", (64, 32)), Param("k_scale", ()), Param("b", (4,))), inputs=()
    ),
    "{'Module': 'top.a', 'TrainableParams': {'w': {'shape': [2], 'dtype': 'bf16'}}}": Module(
        "top.a", params=(Param("w", (2,), "bf16"),), inputs=()
    ),
    "{'Module': 'top.a', 'Inputs': [[7, 8]], 'input_ids': [[7]], 'x y': [[1, 2], [3]]}": Module(
        "top.a", inputs=((7, 8),), kwargs={"input_ids": ((7,),), "x y": ((1, 2), (3,))}
    ),
    "{'Module': 'top.a', 'Outputs': [[7, 2048]]}": Module("top.a", outputs=((7, 2048),), only_result=True),
    ' {"Module": "top.a", "Inputs": [[8]]} ': Module("top.a", inputs=((8,),)),
    "{'Module': 'it\\'s.a'}": Module("it's.a", inputs=()),
    "{'Inputs': [[8]], 'Module': 'top.a'}": Module("top.a", inputs=((8,),)),
    # A keyword argument may be called so, and renames nothing.
    "{'Module': 'top.a', 'Inputs': [[8]], 'Module': [[3]]}": Module("top.a", inputs=((8,),)),
    "{'Module': 'top.a', 'Inputs': [[8]], 'Module': 'evil'}": Module("top.a", inputs=((8,),)),
    "{'Module': [[3]], 'Inputs': [[8]], 'Module': 'top.a'}": Module("top.a", inputs=((8,),)),
}

#: Our own markers keep keyword arguments apart, whatever they are called; in vLLM's they are keys like the others.
OUR_DICTS = {
    '{"Module": "top.a", "Class": "MLP", "TrainableParams": {"w": {"shape": [2], "dtype": "float32"}}, '
    '"Inputs": [[8]], "Types": ["float32 cuda:0"], "Kwargs": {"mask": [[8, 8]]}, '
    '"KwargTypes": {"mask": ["bool cuda:0"]}}': Module(
        "top.a",
        "MLP",
        params=(Param("w", (2,), "float32"),),
        inputs=((8,),),
        kwargs={"mask": ((8, 8),)},
        types=("float32 cuda:0",),
        kwarg_types={"mask": ("bool cuda:0",)},
    ),
    '{"Module": "top.a", "Class": "A", "Inputs": [], '
    '"Kwargs": {"Module": [[1]], "Outputs": [[2]], "Cut": [[3]]}}': Module(
        "top.a", "A", inputs=(), kwargs={"Module": ((1,),), "Outputs": ((2,),), "Cut": ((3,),)}
    ),
    '{"Module": "top.a", "Class": "A", "Outputs": [[8]], "Types": ["float32 cpu"]}': Module(
        "top.a", "A", outputs=((8,),), types=("float32 cpu",), only_result=True
    ),
    '{"Module": "top.a", "Class": "A", "Cut": "Inputs"}': Module("top.a", "A", cause=FIELD_CUT),
    '{"Module": "top.a", "Class": "A", "Cut": "Outputs"}': Module("top.a", "A", only_result=True, cause=FIELD_CUT),
    "{'Module': 'top.a', 'Kwargs': [[8]], 'Types': [[2], [3]], 'KwargTypes': [[4]], 'Cut': [[1]]}": Module(
        "top.a", inputs=(), kwargs={"Kwargs": ((8,),), "Types": ((2,), (3,)), "KwargTypes": ((4,),), "Cut": ((1,),)}
    ),
    '{"Module": "top.a", "Class": "A", "Phase": "backward"}': Module("top.a", "A", phase="backward"),
    "{'Module': 'top.a', 'Phase': [[8]]}": Module("top.a", inputs=(), kwargs={"Phase": ((8,),)}),
    '{"Step": 12, "Name": "train", "Kind": "train", "BatchSize": 8, "Tokens": 4096}': Step(
        "train", "train", index=12, batch_size=8, tokens=4096
    ),
    '{"Step": -1, "Name": "it", "Kind": "odd", "BatchSize": true, "Tokens": 1e3}': Step("it"),
    '{"Piece": "submod_2", "Graph": 1, "Size": 16, "Code": "9-32", "How": "replayed"}': Piece(
        "submod_2", "replayed", graph=1, size=16, code="9-32"
    ),
    "{'Piece': 'attn', 'How': 'eager'}": Piece("attn", "eager"),
    '{"Piece": "a", "Graph": -1, "Size": 1e3, "Code": 9, "How": "compiled"}': Piece("a", "compiled"),
}

OTHER_DIALECTS = {
    "blocks.0.attn in=[[1, 4096, 3072]]": Module("blocks.0.attn", inputs=((1, 4096, 3072),)),
    "attn in=[]": Module("attn", inputs=()),
    "Torch Compiled Module (input):Llama": Module("Llama", class_name="Llama", class_only=True),
    "{'Module': 'Torch Compiled Module (input):Llama', 'Inputs': [[8]]}": Module(
        "Llama", class_name="Llama", class_only=True, inputs=((8,),)
    ),
    "{'Module': 'Torch Compiled Module (output):Llama', 'Outputs': [[8]]}": Module(
        "Llama", class_name="Llama", class_only=True, outputs=((8,),), only_result=True
    ),
    "{'mod': 'torch', 'op': 'norm', 'args': [{'name': '', 'type': 'tensor', 'shape': (8, 2), "
    "'dtype': 'float16'}, {'name': 'p', 'type': 'int', 'value': 2}]}": Operator("norm", "torch", ((8, 2),)),
    "{'traceMarker': ['net.py:12', 'a.py:3']}": Operator(None, stack=("net.py:12", "a.py:3")),
    "ProfilerStep#12": Step("ProfilerStep#12", index=12),
    "step[DECODE bs=32]": Step("step[DECODE bs=32]", "decode", batch_size=32, tokens=32),
    "step[MIXED bs=2 c_sq=2048 g_sq=64]": Step("step[MIXED bs=2 c_sq=2048 g_sq=64]", "mixed", None, 2, 2112),
    "step[DECODE bs=64 g_sq=128]": Step("step[DECODE bs=64 g_sq=128]", "decode", None, 64, 128),
    "prefill[bs=2 tok=147 ctx=[78, 69]]": Step("prefill[bs=2 tok=147 ctx=[78, 69]]", "prefill", None, 2, 147),
    "decode[bs=117/128 tok=117 d=117]": Step("decode[bs=117/128 tok=117 d=117]", "decode", None, 117, 117),
    "decode[bs=9 tok=12 p=2 d=7]": Step("decode[bs=9 tok=12 p=2 d=7]", "mixed", None, 9, 12),
    "step[EXTEND bs=15 toks=15360]": Step("step[EXTEND bs=15 toks=15360]", "prefill", batch_size=15, tokens=15360),
    "execute_context_2(512)_generation_3(3)": Step("execute_context_2(512)_generation_3(3)", "mixed", None, 5, 515),
}

#: Fields that are not of the expected form are left out; the module stays known.
ODD_FIELDS = {
    "{'Module': 'a', 'Inputs': [[True, 8]]}": Module("a", inputs=None, cause=FIELD_SKIPPED),
    "{'Module': 'a', 'Inputs': [[99999999999999999999]]}": Module("a", inputs=None, cause=FIELD_SKIPPED),
    "{'Module': 'a', 'TrainableParams': 7}": Module("a", inputs=(), cause=FIELD_SKIPPED),
    "{'Module': 'a', 'TrainableParams': {'w': 'big', 'b': [4]}}": Module(
        "a", params=(Param("b", (4,)),), inputs=(), cause=FIELD_SKIPPED
    ),
}

#: A dimension that is no number is lost, the others are not.
SYMBOLIC = {
    "{'Module': 'a', 'Inputs': [[s0, 4096], [8]]}": Module("a", inputs=((None, 4096), (8,)), cause=DIMENSION_UNKNOWN),
    "{'Module': 'a', 'Inputs': ['batch', 16]}": Module("a", inputs=((None, 16),), cause=DIMENSION_UNKNOWN),
    '{"Module": "a", "Inputs": [[null, "2*s0 + 1", 16]]}': Module(
        "a", inputs=((None, None, 16),), cause=DIMENSION_UNKNOWN
    ),
    "{'Module': 'a', 'Inputs': [[8]], 'mask': [[2*s0 + 1, Max(1, s1)]]}": Module(
        "a", inputs=((8,),), kwargs={"mask": ((None, None),)}, cause=DIMENSION_UNKNOWN
    ),
    "{'Module': 'a', 'Inputs': [[8]], 'names': ['x', 'y']}": Module("a", inputs=((8,),), cause=FIELD_SKIPPED),
    "{'Module': 'a', 'Inputs': [[f.x(8), 8]]}": Module("a", cause=BROKEN),
}

UNREADABLE = {
    "{'Module': [[8]], 'Inputs': []}": Unreadable(NO_NAME),
    "{'Module': None}": Unreadable(NO_NAME),
    "{'Module': 'a..b'}": Unreadable(NO_NAME),
    "{'Module': '" + "a." * 128 + "b'}": Unreadable(NO_NAME),
    "{'Module': 'top": Unreadable(BROKEN),
    "{'Module': __import__('os').system('true')}": Unreadable(BROKEN),
    "{'Module': 'a', 'Inputs': [[8, ": Module("a", cause=BROKEN),
    "{'Module': 'a', 'x': __import__('os')}": Module("a", cause=BROKEN),
    "{'Module': 'a', 'x': '" + "y" * 100_000 + "'}": Module("a", cause=TOO_LONG),
    "{'Module': '" + "y" * 100_000 + "'}": Unreadable(TOO_LONG),
    "{'Module': 'a', 'x': " + "[" * 10_000 + "]" * 10_000 + "}": Module("a", cause=TOO_DEEP),
    "a.b in=[" + "[" * 10_000 + "]" * 10_000 + "]": Module("a.b", cause=TOO_DEEP),
}

#: What merely looks like a marker.
PLAIN = """
aten::linear, op_id = 12
{ForeignNode['Module': 'x']}
{"model_config": {"emit_nvtx": true}}
__import__('os')
Module: 'a'
{'mod': 'torch'}
{'traceMarker': 7}
{'traceMarker': ['cut
loss in=[later]
a b in=[[1]]
Torch Compiled Module (input):
ProfilerStep#x
step[]
{"Step": 12
execute_context_many
step[3]
"""

#: Modules by class and number, which have no path of their own.
OF_TORCH = {
    "nn.Module: Linear_3": Module("Linear_3", "Linear", class_only=True, numbered=True),
    "nn.Module: A_0 (b_1 (c.py(3)))": Module(
        "A_0", "A", static_params='{"forward": "b_1 (c.py(3))"}', class_only=True, numbered=True
    ),
    "nn.Module: Linear": Unreadable(NO_NAME),
    "an nn.Module: Linear_3": None,
}
TEXTS = LAYER_DICTS | OUR_DICTS | OTHER_DIALECTS | ODD_FIELDS | SYMBOLIC | UNREADABLE | OF_TORCH
TEXTS |= dict.fromkeys(PLAIN.split("\n"))


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:60])
def test_text_says_what_stands_beside_it(text: str) -> None:
    assert said(text) == TEXTS[text]


def test_keyword_arguments_keep_their_order() -> None:
    marker = said("{'Module': 'a', 'y': [[1]], 'x': [[2]], 'z': [[3]], 'StaticParams': {'p': inf}}")
    assert isinstance(marker, Module)
    assert list(marker.kwargs) == ["y", "x", "z"]


def test_static_params_of_every_kind_are_kept_as_json() -> None:
    marker = said(
        "{'Module': 'a', 'StaticParams': {'k': (3, 3), 'p': 0.5, 'm': -inf, 'ok': True, 'n': None, "
        "'s': 'zeros', 'd': {'x': [inf, -1, nan]}}}"
    )
    assert isinstance(marker, Module)
    assert marker.static_params is not None
    expected = {"k": [3, 3], "p": 0.5, "m": "-inf", "ok": True, "n": None, "s": "zeros"}
    expected["d"] = {"x": ["inf", -1, "nan"]}
    assert json.loads(marker.static_params) == expected
    assert marker.cause is None
