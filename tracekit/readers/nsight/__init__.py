"""What the tables of Nsight Systems mean: ``report`` makes a recording of them, with one module for each part.

Readers of the formats that hold these tables share it. It knows no file: tables come from a
:class:`~tracekit.readers.source.TableSource`.
"""
