"""Tests of the piecewise compiled backend; all of them need torch."""
