"""Records a command in all the Python processes that it starts, each by itself, into one report.

``command.py`` runs the command and joins what its processes recorded. ``startup/`` is put on their ``PYTHONPATH``, so
that Python runs ``startup/sitecustomize.py`` in each of them, which waits until the process imports torch and then
calls :func:`start_if_asked`. ``recording.py`` marks a process and ``window.py`` records it, ``ending.py`` notices its
end, ``pieces.py`` says which files it leaves, and ``request.py`` what it is asked for.
"""

from __future__ import annotations

from tracekit.capture.processes.recording import start_if_asked

__all__ = ["start_if_asked"]
