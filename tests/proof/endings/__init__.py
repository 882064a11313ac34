"""Checks that end in every way in which a check can end, each a module, as checks are."""
