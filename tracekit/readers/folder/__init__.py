"""Folders with a file for each table, Parquet or Arrow, as such.

``files`` opens them; ``tables`` reads declared columns. Knows nothing of profilers.
"""
