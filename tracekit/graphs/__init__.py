"""CUDA graphs: which launch of a graph capture became which node, and so where replayed work comes from.

``nodes`` finds what each node is a copy of, ``captures`` when a thread captured and what went into the graph. The
places of nodes are found by descent (``by_descent``) or, where the records of nodes came late, by order (``by_order``,
with ``instances`` of what replays together and ``pairing`` of these with captures). Knows no modules.
"""
