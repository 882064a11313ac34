"""JSON as some releases of Kineto write it, made valid: they do not escape names, and write numbers that JSON lacks."""

from __future__ import annotations

import json
import re

#: The name of an annotation, in which quotes and backslashes may stand as they are. It ends before the next event.
_NAME = re.compile(rb'("cat": ?"\w*user_annotation",\s*"name": ?")((?:(?!"cat": ?").)*?)(",\s*"pid": ?)')
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?')


def mended(text: bytes) -> bytes:
    """The text with names escaped, other bytes than UTF-8 replaced, and null for numbers that are none."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode()
    text = _NAME.sub(_escaped, text)
    text = _NO_NUMBER.sub(rb"\1null", text)
    return _ESCAPE.sub(lambda escape: rb"\\" if len(escape[0]) == 1 else escape[0], text)


def _escaped(match: re.Match[bytes]) -> bytes:
    """A name as JSON; one that is valid stays as it is."""
    name = match[2]
    try:
        json.loads(b'"' + name + b'"')
    except ValueError:
        name = json.dumps(name.decode("utf-8", "replace"))[1:-1].encode()
    return match[1] + name + match[3]
