"""Where reports and datasets lie: on this machine, or at a URL that fsspec knows (S3, GCS, Azure, SSH, HTTP).

``locations`` turns what a user wrote into paths, asks a store several things at a time, and reports on one line why
something cannot be reached. ``local_copies`` copies a report to this machine, and has temporary folders.
"""
