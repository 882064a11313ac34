"""Ranges with module markers as calls of modules.

``calls`` strings it together: ``endings`` finds where each range ended, by ``unwinding`` what threads on which forwards
raised pushed and popped; ``second_ranges`` tells the range that closes a call from a call; ``doubled`` finds calls that
two sets of hooks marked.
"""
