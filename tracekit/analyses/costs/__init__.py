"""What modules cost beside time: FLOPs and bytes of calls, and their sums by module."""
