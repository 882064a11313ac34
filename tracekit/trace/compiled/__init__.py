"""Compiled graphs: their kernel maps, their runs, and which kernels of a map each run launched."""
