"""Device work of a dataset, one report at a time, summed by module, phase and group."""
