"""Rows of a report, whatever wrote it: ids and strings, times, ranks.

What several readers do to the rows of their tables. Knows no format.
"""
