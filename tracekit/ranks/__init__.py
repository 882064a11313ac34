"""What ranks do together: ``collectives``, ``communication``, and ``meetings`` on one clock."""
