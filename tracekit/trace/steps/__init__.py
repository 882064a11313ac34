"""Iterations of training or serving.

``steps`` takes those that somebody marked; where nobody did, ``roots`` finds the models that a process calls, and
``leading`` the one whose calls are the iterations.
"""
