"""Stage 3: what a recording says of a program: markers decoded, calls, hierarchy, steps, launches; together, evidence.

``decoding`` reads the texts, ``launching`` joins device work to its launch, ``calls`` nests the marked ranges,
``hierarchy`` gives them their places, ``steps`` finds the iterations, ``projection`` carries host intervals over to the
device. ``evidence`` strings them together. Attribution decides from it; nothing here does.
"""
