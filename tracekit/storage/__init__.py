"""Where reports and datasets lie: on this machine, or at a URL that fsspec knows (S3, GCS, Azure, SSH, HTTP).

``locations`` turns what a user wrote into paths, ``local_copies`` brings a file here, and ``failures`` says on one line
why something cannot be reached. ``left_behind`` has folders for what passes, and removes those of killed processes.
"""

from __future__ import annotations
