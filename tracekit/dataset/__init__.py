"""A dataset: a folder of Parquet tables and a manifest.

``opening`` reads it, ``writing`` writes one for a trace, ``joining`` makes one of those of several reports or of the
processes of one, and ``per_report_modules`` finds the modules that they share. Knows no reports.
"""
