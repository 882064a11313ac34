"""Records a command in all the Python processes that it starts, into one report.

``command.py`` runs the command and joins what its processes recorded. ``startup/`` is put on their ``PYTHONPATH``, so
that Python runs ``startup/sitecustomize.py`` in each of them, which waits until the process imports torch and then
calls :func:`start_if_asked`. ``recording.py`` marks and records a process until its end.
"""

from tracekit.capture.processes.recording import start_if_asked

__all__ = ["start_if_asked"]
