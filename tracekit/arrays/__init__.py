"""The array kit: NumPy and Arrow without knowing traces.

``types`` names arrays by what they hold, ``columns`` turns Arrow columns into them, ``intervals`` nests what begins and
ends, ``slices`` sums and compares many pieces of one array, ``labels`` and ``codes`` make numbers of words and nested
lists, ``text`` makes JSON text of Arrow values. Nothing here knows what a kernel or a range is.
"""
