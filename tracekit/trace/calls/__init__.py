"""Ranges with module markers as calls of modules.

``calls`` shows the way: ``spans`` are the marked ranges, ``second_ranges`` tells the range that closes a call from a
call, ``columns`` makes calls of them, ``doubled`` finds calls that two sets of hooks marked. ``endings`` finds where
each range ended, by ``unwinding`` what was pushed and popped on threads on which forwards raised.
"""
