"""SQLite files as such, opened read-only, and their large tables as Arrow. It does not know profilers."""
