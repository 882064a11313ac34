"""What the programs do, in numbers that the checks know, too. It does not import torch."""

from __future__ import annotations

#: ``chain``: how often the model is called before and while it is recorded.
WARMUP, STEPS = 2, 3
#: ``replayed``: the names of steps, which say what a step does.
EAGER, CAPTURE, REPLAY = "eager", "capture", "replay"
#: Calls of the model in a step of each kind. Before a graph capture the model runs once on the same stream.
CALLS_IN = {EAGER: 1, CAPTURE: 2, REPLAY: 0}
#: Steps before the recording, of which the first prepares, and recorded ones.
IN_WARMUP = (EAGER, EAGER, CAPTURE), (EAGER, REPLAY, REPLAY)
IN_WINDOW = (EAGER, EAGER), (CAPTURE, EAGER, REPLAY, REPLAY)
#: ``pieces``: layers with attention; steps that compile, and steps that capture (the first) and replay.
LAYERS, COMPILING, PIECEWISE = 2, 1, 4
#: ``workers``: calls of the model in each process.
WORKERS = (2, 3)
#: ``script``, as checks run it, and ``gathering``: calls of the model.
SCRIPT, GATHERING = 3, 3
