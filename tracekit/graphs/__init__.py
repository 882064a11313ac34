"""CUDA graphs: which launch of a graph capture became which node, and so where replayed work comes from.

``nodes`` gives the descent of every node; ``graph_captures`` (from ``windows`` and ``submissions``) what went into a
graph. ``by_descent`` places nodes by their descent; ``by_order`` completes these ``origins`` where nodes were recorded
late or not at all, with ``instances``, ``graph_records``, ``late`` and ``pairing``. ``whole_graphs`` finds the graph
captures of graphs that were traced as a whole. Knows no modules.
"""
