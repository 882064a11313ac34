"""Clocks of several reports on one axis, by the collectives that their ranks share.

``collectives`` reads them and finds those of two streams that end together on one clock, ``matching`` the shift and
drift of the clocks under which they do, ``reports`` places every report on the clock of one of them and reports which
ranks met in each collective.
"""
