"""The array kit: NumPy and Arrow arrays, without any knowledge of traces.

``types`` names arrays by what they hold; ``columns`` and ``labels`` turn Arrow columns into NumPy; ``groups`` numbers
groups of rows and adds them up; ``lookups`` finds ids; ``codes`` numbers nested lists; ``intervals``, ``axis`` and
``lanes`` nest, lay end to end and stack intervals; ``slices`` sums and compares slices of one array; ``text`` writes
Arrow values as JSON, ``csv_text`` protects spreadsheets; ``without_pandas`` keeps pyarrow from importing pandas,
``kept_memory`` freed memory for the next array.
"""
