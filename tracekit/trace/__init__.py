"""Evidence about a program, found in a recording: markers, calls, the hierarchy of modules, steps and launches.

``decoding`` reads marker texts, ``launching`` joins device work to its launch, ``calls`` nests the marked ranges,
``hierarchy`` gives them their places, ``steps`` finds the iterations, ``projection`` projects ranges onto the device.
Start reading at ``evidence``, which calls them in order. Attribution decides from it; this package decides nothing.
"""
