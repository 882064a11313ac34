"""A dataset as one page to look at: a single HTML file that opens from disk and loads nothing.

``contents`` gathers what analyses answer as plain data, a file for each part of the page; ``document`` puts it together
with the template, the styles and the scripts in ``assets``, which draw it. Every figure on the page is one of an
analysis, or a sum of such; what is too much for a page is left out by size, counted and named.
"""

from __future__ import annotations
