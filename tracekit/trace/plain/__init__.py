"""Plain ranges as nodes of a hierarchy: which of them, under which names, from when to when."""

from tracekit.trace.plain.keys import HierarchyKey, Work, choose_hierarchy

__all__ = ["HierarchyKey", "Work", "choose_hierarchy"]
