"""Modules have the paths of ``named_modules()`` at the end, in all calls: parts that ran first, late ones."""

import json
import sys

import pytest

import tracekit
from tests.capture.places import Place

pytestmark = pytest.mark.torch

TRUTH = """
import json, os, sys
import torch
from torch import nn

torch.manual_seed(0)
ran, x = [], torch.randn(2, 4)
hook = nn.modules.module.register_module_forward_pre_hook(lambda module, _: ran.append(module))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 4)
    def forward(self, x):
        return self.head(self.enc(x))

class Around(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
    def forward(self, x):
        return self.base(x)

class Adapter(Around):
    def __init__(self, base):
        super().__init__(base)
        self.lora = nn.ModuleDict({"default": nn.Linear(4, 4)})
    def forward(self, x):
        return self.base(x) + self.lora["default"](x)

class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def main():
    roots = program()
    names = {}
    for root in roots if isinstance(roots, tuple) else (roots,):
        for name, module in root.named_modules(prefix=type(root).__name__):
            names.setdefault(module, name)
    with open("truth.json", "w") as file:
        json.dump([names.get(module, "?") for module in ran], file)
    hook.remove()
    if "part" in globals():  # it outlives its whole
        ran.clear()
"""
PROGRAMS = {
    "parts are validated first": """
    net = Net()
    net.head(net.enc(x))
    for _ in range(3): net(x).sum().backward()
    return net
""",
    "features in the beginning": """
    class Cnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))
            self.top = nn.Linear(self.features(x).shape[1], 2)
        def forward(self, x):
            return self.top(self.features(x))
    net = Cnn()
    for _ in range(2): net(x)
    return net
""",
    "methods call parts": """
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.post = Net(), nn.Linear(4, 4)
        def decode(self, x):
            return [self.post(self.net(one)) for one in (x, x)]
    vae = Vae()
    for _ in range(3): vae.decode(x)
    return vae
""",
    "a method of a whole calls that of a part": """
    net = Net()
    net.encode = lambda x: net.enc(x)
    class Clip(Around):
        def embed(self, x):
            return self.base.encode(x)
    clip = Clip(net)
    clip.embed(x), clip(x), clip.embed(x)
    return clip
""",
    "a base model is wrapped": """
    net = Net()
    net(x)
    net.head = Adapter(net.head)
    net.enc[0] = Adapter(net.enc[0])
    whole = Around(Around(net))
    for _ in range(2): whole(x).sum().backward()
    return whole
""",
    "a part of two wholes": """
    enc = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    enc(x)
    class Other(Around):
        pass
    one, other = Around(enc), Other(enc)
    one(x)
    for _ in range(2): other(x), one(x)
    return one, other
""",
    "blocks": """
    net = Blocks()
    net(x)
    net.blocks.append(Net())
    net(x)
    net.blocks.insert(0, nn.Linear(4, 4))
    net(x), net(x)
    return net
""",
    "late parts, called from outside": """
    net, late = Blocks(), Net()
    net(x)
    late(x)
    net.blocks.append(late)
    net(x)
    late.extra = nn.Linear(4, 4)
    late.extra(x)
    return net
""",
    "a moved part": """
    net = Net()
    net(x)
    net.first = net.enc
    net.enc = nn.Identity()
    net.first(x), net(x)
    return net
""",
    "a part outlives its whole": """
    global part
    part = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    part(x)
    whole = Around(part)
    for _ in range(2): whole(x)
    return whole
""",
    "a model in a plain list": """
    class Student(Around):
        def __init__(self, teacher):
            super().__init__(nn.Linear(4, 4))
            self.teacher = [teacher]
        def forward(self, x):
            return self.base(x) - self.teacher[0](x)
    teacher = Net()
    student = Student(teacher)
    for _ in range(2): student(x)
    return student, teacher
""",
    "a schedule changes the momentum": """
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    for times, net[1].momentum in (1, 0.1), (2, None), (3, 0.05): net(x.repeat(times, 1))
    return net
""",
    "an export": """
    net = Net()
    torch.export.export(net, (x,))
    ran.clear()  # a trace is no run
    for _ in range(2): net(x)
    return net
""",
    "compiled": """
    net = Net()
    net(x)
    compiled = torch.compile(net, backend="eager")
    compiled.head(x)
    net(x)
    return net
""",
}


def calls(place: Place, body: str, *args: object) -> tuple[list[str], list[str]]:
    """What was recorded of a program, and what is true."""
    place.write(f"{TRUTH}\ndef program():{body}\nif __name__ == '__main__':\n    main()\n")
    outcome = place.capture("--force", "-o", "run.sqlite", *args)
    assert outcome.code == 0, outcome
    truth = json.loads((place.folder / "truth.json").read_text())
    table = tracekit.parse("run.sqlite", force=True).table("calls", ["module", "start_ns", "phase"]).to_pandas()
    table = table[table.phase == "forward"].sort_values("start_ns")
    return table.module.astype(str).tolist(), truth


@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_have_the_paths_that_their_modules_have_in_the_end(program: str, place: Place) -> None:
    recorded, truth = calls(place, PROGRAMS[program], "model.py")
    if program == "a part of two wholes":
        # What the second whole calls stands there, and is an alias of the first's.
        recorded = [name.replace("Other.base", "Around.base") for name in recorded]
    if program == "a model in a plain list":
        truth = [name.replace("Net", "Student.Net") for name in truth]
    if program == "a moved part":
        truth = [name for name in truth if name != "Net.enc"]
    assert recorded == truth


def test_a_part_that_ran_first_is_skipped_by_the_path_in_its_whole(place: Place) -> None:
    args = ("--skip", "Net.enc*", "--", sys.executable, "model.py")
    recorded, truth = calls(place, PROGRAMS["parts are validated first"], *args)
    assert recorded == [name for name in truth if not name.startswith("Net.enc")]


LOSSES = """
import torch
from torch import nn

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.MSELoss()
        self.register_buffer("weight", torch.ones(4, 4))
    def forward(self, x):
        return self.part(x, self.weight)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)
    def forward(self, x):
        return Loss()(self.up(x))

net, x = Net(), torch.ones(4, 4)
for _ in range(3):
    net(x), nn.CrossEntropyLoss(weight=torch.ones(4))(x, x)
for loss in Loss(), Loss():
    loss(x)
"""


def test_a_loss_that_is_made_anew_in_every_step_has_one_name(place: Place) -> None:
    place.write(LOSSES)
    assert place.capture("-o", "run.sqlite", "model.py").code == 0
    calls = tracekit.parse("run.sqlite").calls(["module", "start_ns"]).sort_values("start_ns")
    step = ["Net", "Net.up", "Net.Loss", "Net.Loss.part", "CrossEntropyLoss"]
    assert calls.module.tolist() == [*step * 3, "Loss", "Loss.part", "Loss_2", "Loss_2.part"]


COMPILED_ALONE = """
    global part
    net, _ = Net(), hook.remove()
    part = torch.compile(net.enc, backend="eager")
    part(x), net(x), part(x)
    return net
"""


def test_a_part_that_ran_compiled_before_its_whole_has_the_name_in_it(place: Place) -> None:
    recorded, _ = calls(place, COMPILED_ALONE, "model.py")
    assert recorded == ["Net.enc", "Net", "Net.enc", "Net.enc.0", "Net.enc.1", "Net.head", "Net.enc"]
