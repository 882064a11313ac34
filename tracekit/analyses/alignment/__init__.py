"""Clocks of several reports on one axis, by the collectives that their ranks share.

``collectives`` reads them, ``pairs`` finds those of two streams that end together on one clock, ``matching`` the shift
of the clocks under which they do, ``lines`` bounds its offset and drift, ``reports`` places every report on the clock
of one of them, and ``groups`` says which ranks met in each collective.
"""
