"""Iterations of training or serving.

``steps`` takes the marked ones, or those of training; for processes without either, ``loops`` finds the cycles of what
they call.
"""
