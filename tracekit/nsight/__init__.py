"""NVIDIA Nsight Systems: its files and its program. It does not know recordings: readers make those."""
