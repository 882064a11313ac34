"""Where each call stands among the modules.

``modules`` strings it together: ``facts`` is what markers say of a module, ``contradictions`` and ``namesakes`` tell
modules of one path apart, ``planting`` makes a tree of each process's modules, ``forests`` one hierarchy of all trees,
with ``siblings`` in their order.
"""
