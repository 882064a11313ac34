"""Iterations of training or serving.

``steps`` takes the marked ones, or those of training; for processes without either, ``loops`` finds the models that
a process calls, and the one whose calls are the iterations.
"""
