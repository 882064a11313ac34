"""Trees of modules as named_modules would list them, and the texts that programs leave in NVTX."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from random import Random

from tests.simulator.events import Call, Step
from tests.simulator.plan import Plan

LEAVES = ("fc1", "fc10", "fc", "norm", "qkv_proj", "o_proj", "act", "embed_tokens", "norm_f")
BRANCHES = ("self_attn", "mlp", "model", "block", "experts", "encoder")
STATICS: tuple[dict[str, object], ...] = (
    {},
    {"stride": (1, 1), "padding": "same", "bias": True},
    {"eps": 1e-05, "filter_dim": (3, 3), "transposed": False, "p": 0.0},
    {"text": "it's {braced}", "none": None},
)


@dataclass(slots=True, eq=False, kw_only=True)
class Module:
    """A module under the name it was registered by first."""

    path: str
    called: bool = True  # a container like ``layers`` is never called itself; its children are called past it
    children: list[Module] = field(default_factory=list)
    shared: list[Module] = field(default_factory=list)  # modules registered elsewhere first that this one calls too
    recursive: bool = False
    params: dict[str, tuple[int, ...]] = field(default_factory=dict)
    static: dict[str, object] = field(default_factory=dict)
    launches: int = 1
    number: int = 0  # which of several models of one prefix it is of
    takes_tensors: bool = True
    gives_tensors: bool = True

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def callees(self) -> list[Module]:
        found: list[Module] = []
        for child in self.children:
            found.extend([child] if child.called else child.callees())
        return found + self.shared

    def tree(self) -> list[Module]:
        return [self] + [below for child in self.children for below in child.tree()]


def model(rng: Random, plan: Plan, root: str) -> Module:
    """A model of about ``plan.modules`` modules below ``root``."""
    top = _module(rng, root)
    branches = [top]
    while len(top.tree()) < plan.modules:
        parent = rng.choice(branches)
        grown = _grow(rng, parent)
        branches.extend(module for module in grown if module.name not in LEAVES and module.called)
    if plan.shared:
        _share(rng, top)
    if plan.recursive:
        parent = rng.choice([module for module in top.tree() if module.called])
        cell = _module(rng, f"{parent.path}.cell0")
        cell.recursive = True
        cell.children = [_module(rng, f"{cell.path}.lin")]
        parent.children.append(cell)
    for module in top.tree() if plan.no_tensors else ():
        module.takes_tensors = rng.random() >= plan.no_tensors
        module.gives_tensors = rng.random() >= plan.no_tensors
    return top


def namesake(rng: Random, top: Module) -> Module:
    copies = {id(one): replace(one, number=1, children=[], shared=[]) for one in top.tree()}
    called = [one for one in top.tree() if one.called]
    other = rng.choice(called)
    for one in top.tree():
        copy = copies[id(one)]
        copy.children = [copies[id(child)] for child in one.children]
        copy.shared = [copies[id(module)] for module in one.shared]
        if one is other or (one.called and rng.random() < 0.3):
            copy.params = {"weight": (24, rng.choice((8, 16)))}
        elif one.called and one.static and rng.random() < 0.2:
            copy.static = {"eps": 1e-06}
    if not other.params:
        other.params = {"weight": (48, 8)}
    return copies[id(top)]


def _grow(rng: Random, parent: Module) -> list[Module]:
    taken = {child.name for child in parent.children}
    if rng.random() < 0.3 and "layers" not in taken:
        layers = Module(path=f"{parent.path}.layers", called=False)
        numbers = rng.choice([[0, 1, 2], [0, 1, 10], [1, 11]])
        layers.children = [_module(rng, f"{layers.path}.{index}") for index in numbers]
        parent.children.append(layers)
        return layers.children
    free = [name for name in (*LEAVES, *BRANCHES) if name not in taken]
    if not free:
        return []
    child = _module(rng, f"{parent.path}.{rng.choice(free)}")
    parent.children.append(child)
    return [child]


def _module(rng: Random, path: str) -> Module:
    params = {"weight": (rng.choice((8, 16, 4096)), 8), "k_scale": (), "bias": (8,)}
    chosen = rng.sample(sorted(params), rng.randrange(4))
    chosen_params = {name: params[name] for name in chosen}
    return Module(path=path, params=chosen_params, static=rng.choice(STATICS), launches=rng.choice((0, 1, 1, 2, 3)))


def _share(rng: Random, top: Module) -> None:
    called = [module for module in top.tree() if module.called]
    first, *others = rng.sample(called, min(3, len(called)))
    shared = _module(rng, f"{first.path}.rotary_emb")
    shared.children = [_module(rng, f"{shared.path}.{name}") for name in rng.sample(LEAVES, rng.randrange(3))]
    if rng.random() < 0.5:
        _grow(rng, shared)
    first.children.append(shared)
    for other in others:
        other.shared.append(shared)


PLAIN = (
    *("forward", "aten::linear, op_id = 990347", "ncclAllReduce", "cudaMalloc retry", "loss.backward"),
    *("a range of the user's own", "Optimizer of the user"),
    "{ForeignNode[conv1.weight + (Unnamed Layer* 0) [Shuffle]...(Unnamed Layer* 9)]}",
    *('{"model_config": {"emit_nvtx": true}}', "{'Modul': 'top.fc1'}", "höhe ≥ 3, 模型", "", None),
)
DOMAINS = ("NCCL", "CCCL", "MPI")


def marker(call: Call, dialect: str, *, second: bool = False) -> str:
    """The text of a call's range, or of the second range that tells its outputs."""
    if dialect == "compact":
        shapes = [list(shape) for shape in call.inputs]
        return f"{call.module.path} in={shapes}"
    fields: dict[str, object] = {"Module": call.module.path}
    if call.module.params:
        fields["TrainableParams"] = {name: list(shape) for name, shape in call.module.params.items()}
    told = {"Outputs": call.outputs} if second else {"Inputs": call.inputs, **call.kwargs}
    fields |= {name: [list(shape) for shape in shapes] for name, shapes in told.items() if shapes}
    if call.module.static:
        fields["StaticParams"] = call.module.static
    return json.dumps(fields) if dialect == "json" else str(fields)


def plain(rng: Random, sequence: int) -> str | None:
    """A text that is no marker. ``sequence`` is new each time, so that no backward range finds a forward one."""
    return rng.choice((*PLAIN, f"aten::addmm, seq = {sequence}", f"aten::mul, seq = {sequence}, op_id = 7"))


def step(rng: Random, style: str, index: int) -> Step:
    if style == "torch":
        return Step(f"ProfilerStep#{index}", None)
    if style == "sglang":
        word, kind = rng.choice((("DECODE", "decode"), ("EXTEND", "prefill")))
        return Step(f"step[{word} bs={rng.choice((1, 32))}]", kind)
    context, generation = rng.choice(((1, 0), (0, 8), (2, 3)))
    kind = "mixed" if context and generation else "prefill" if context else "decode"
    return Step(f"execute_context_{context}({context * 10})_generation_{generation}({generation})", kind)
