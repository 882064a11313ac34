"""What a trace holds, in tracekit's own plain tables, whatever format it came from.

``tables`` declares them and the :class:`~tracekit.recording.tables.Recording`, ``axis`` lays its threads end to end on
one axis, ``provenance`` records where it came from and what it lacks. Readers fill it, everything after them reads it.
"""
