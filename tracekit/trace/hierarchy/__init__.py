"""The hierarchy of modules, and where each call stands in it.

``modules`` shows the way: ``places`` gives every call its path, ``namesakes`` tells modules of one path apart by their
``facts`` and ``contradictions``, ``planting`` makes a tree of the modules of each process, ``forests`` one hierarchy of
all trees, with ``siblings`` in order.
"""
