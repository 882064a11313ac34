"""SQLite files as such.

``file`` opens them read-only and reads large tables into Arrow: where possible out of the file's own ``pages``, by
``records``, otherwise by queries. It does not know profilers.
"""
