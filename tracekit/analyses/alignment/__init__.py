"""Ranks on one axis.

``collectives`` reads what they did together, ``clocks`` finds what to add to the times of each report to get those of
one of them, ``meetings`` who met in each collective.
"""
