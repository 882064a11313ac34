"""What a trace holds, in tracekit's own plain tables, whatever format it came from."""
