"""A dataset as one HTML page that opens from disk and loads nothing else.

``document`` gathers the answers of analyses as plain data, part by part of the page, and embeds that
data with the template, styles and scripts in ``assets``, which draw it in the browser. Every figure on the page comes
from an analysis, or is a sum of such figures. Rows beyond the limits are left out, smallest first, and counted.
"""
