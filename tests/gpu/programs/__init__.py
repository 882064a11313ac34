"""The programs that measures run. Each leaves its figures as ``tracekit/proof/programs/observed.py`` does."""
