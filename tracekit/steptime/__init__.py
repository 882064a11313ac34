"""The wall clock of steps: how it divides (``budget``), what changes it (``whatif``, ``findings``)."""
