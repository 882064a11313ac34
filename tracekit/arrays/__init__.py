"""The array kit: NumPy and Arrow arrays, without any knowledge of traces.

``types`` names arrays by what they hold; ``columns`` turns Arrow columns into NumPy; ``codes`` numbers words and
nested lists, and finds ids; ``groups`` numbers groups of rows and adds them up; ``intervals`` nests intervals, stacks
them and lays them end to end; ``slices`` sums and compares slices of one array; ``text`` writes Arrow values as JSON;
``own_process`` keeps freed memory for the next array, and pyarrow from importing pandas.
"""
