"""NVIDIA Nsight Systems: its files and its program.

``tables`` declares the tables of its exports, once; ``file`` writes a SQLite file of them; ``nsys`` finds the program
and records with it; ``exporting`` exports its reports. It does not know recordings: readers make those.
"""
