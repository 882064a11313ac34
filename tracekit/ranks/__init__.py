"""What ranks do together: ``collectives``, ``clocks`` on one axis, ``meetings``, ``communication``."""
