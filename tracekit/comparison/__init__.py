"""What differs between two runs (``difference``) or over many (``trend``), by more than noise."""
