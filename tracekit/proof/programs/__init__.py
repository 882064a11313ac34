"""The programs that checks record: small models whose calls, products and replays are known beforehand.

They import torch, and run on a GPU if there is one. Each leaves what it knows of itself as JSON (``observed.py``).
"""
