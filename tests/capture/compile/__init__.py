"""Tests of the piecewise compiled backend."""
