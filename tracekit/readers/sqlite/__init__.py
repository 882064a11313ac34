"""SQLite files as such.

``file`` opens and checks them, read-only; ``bulk`` and ``queries`` bring large tables straight into Arrow; ``pages``
and ``records`` read the file's own pages where that is faster. Knows no report.
"""
