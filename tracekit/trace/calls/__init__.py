"""Ranges with module markers as calls of modules.

``calls`` shows the way: ``call_ends`` finds where each range ended and which range only ends a call, ``trees`` finds
which calls are part of which.
"""
