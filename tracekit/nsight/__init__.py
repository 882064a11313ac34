"""NVIDIA Nsight Systems: its files and its program.

``tables`` declares the tables of its SQLite exports, once; ``file`` writes such a file; ``nsys`` finds and runs the
program. Knows nothing of recordings: readers make those.
"""
