"""SQLite files as such.

``file`` opens them read-only; ``bulk`` reads large tables into Arrow, by ``pages`` and ``records`` from the file's own
pages where possible, otherwise by ``queries``. Knows nothing of profilers.
"""
