"""A dataset as one HTML page that opens from disk and loads nothing else.

``document`` gathers the answers of analyses as plain data, part by part of the page, and embeds that
data with the template, styles and scripts in ``assets``, which draw it in the browser. Every figure on the page comes
from an analysis, or is a sum of such figures. Rows beyond the limits are left out, smallest first, and counted.
"""

import base64
import hashlib


def digest(text: str) -> str:
    """How a Content-Security-Policy names a script or style that is allowed."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
