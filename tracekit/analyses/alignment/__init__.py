"""Ranks on one axis: ``collectives`` of each report, ``clocks`` against one of them, ``meetings`` of ranks."""
