"""CUDA graphs: which launch of a graph capture became which node, and so where replayed work comes from.

``captures`` gives clone chains, what went into a graph, and the places of nodes by their clone chains. ``by_order``
completes these by the order of launches. ``whole_graphs`` finds the graph captures of graphs that were traced as a
whole. Knows no modules.
"""
