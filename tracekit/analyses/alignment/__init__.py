"""Clocks of several reports on one axis, by the collectives that their ranks share.

``collectives`` reads them, ``matching`` finds which of two reports are the same, ``lines`` bounds the offset and drift
between two clocks, ``clocks`` places every report on the clock of one of them, and ``groups`` says which ranks met in
each collective.
"""
