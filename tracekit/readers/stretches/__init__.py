"""A report in stretches: parts that can be worked on one after the other as if each were a report, in bounded memory.

A stretch is a time of one process, or of several small ones. ``survey`` finds the places at which to cut, ``cuts``
chooses among them, ``dealing`` writes the rows of each stretch to disk, ``source`` hands them to the reader of reports.
"""
