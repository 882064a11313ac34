"""Iterations of training or serving.

``steps`` takes the marked ones; for processes that mark none, ``roots`` finds the models that a process calls, and
``leading`` the one whose calls are the iterations.
"""
