"""Ranges with module markers as calls of modules.

``calls`` shows the way: ``range_ends`` finds where each range ended, ``end_markers`` finds the range that closes a call
from a call, ``trees`` finds which calls are part of which.
"""
