"""The tables of a report's stretches as those of the report: row by row what the report as a whole would give.

``parts`` is what a stretch leaves, ``ids`` numbers rows anew, ``hierarchy`` joins the modules, ``coverage`` adds up the
counts, ``merging`` writes the tables. Memory grows with none of the large tables; ids wait on disk.
"""
