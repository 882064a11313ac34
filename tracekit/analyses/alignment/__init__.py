"""Ranks on one axis.

``collectives`` reads what they did together, ``clock_offsets`` finds what to add to the times of one report to get
those of another, ``clocks`` does so for all reports, ``meetings`` finds who met in each collective.
"""
