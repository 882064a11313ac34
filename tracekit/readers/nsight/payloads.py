"""Binary payloads of NVTX ranges as JSON, decoded by the schemas that the report stores beside them.

For whoever exports with ``--include-blobs`` and not ``--include-json``: else the sizes of NCCL's collectives are lost.
The layout, as seen in exports of nsys 2026: 32 bytes with the numbers of domain and schema and the sizes of the payload
and of the whole, little-endian; then the payload. Only a single payload of plain integers is decoded.
"""

import json
import struct
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.nsight import tables as nsight
from tracekit.readers.source import ENCODED_TEXT, TableSource, has

_HEADER = struct.Struct("<IIIIQQ")
#: Types of integers in NVTX's header ``nvToolsExtPayload.h``, the last of them ``size_t``, as Python reads them.
_FORMATS = dict(zip((*range(3, 19), 22), "hHiIqQqQbBhHiIqQQ", strict=True))
_COLUMNS = ("domainId", "schemaId", "flags", "type", "name", "offset")


def with_json(events: pa.Table, source: TableSource) -> pa.Table:
    """Rows of NVTX_EVENTS with binary payloads as ``jsonText``, where they can be read and have no such text."""
    if "binaryData" not in events.column_names:
        return events
    schemas, blobs = _schemas(source), events.column("binaryData").combine_chunks()
    decoded = [None if blob is None else _json(blob, schemas) for blob in blobs.dictionary.to_pylist()]
    texts = pa.chunked_array([pa.array(decoded, pa.string()).take(blobs.indices)])
    rest = events.drop_columns(["binaryData"])
    if "jsonText" in rest.column_names:
        texts, rest = pc.coalesce(rest.column("jsonText").cast(pa.string()), texts), rest.drop_columns(["jsonText"])
    return rest.append_column("jsonText", texts.dictionary_encode().cast(ENCODED_TEXT))


#: By domain and schema, formats and offsets of integers by their names.
_Schemas = dict[tuple[int, int], dict[str, set[tuple[str, int]]]]


def payload_of(blob: bytes) -> tuple[tuple[int, int], bytes]:
    """The domain and schema of a binary payload, and its content; nothing if it is none."""
    if len(blob) < _HEADER.size:
        return (0, 0), b""
    domain, _, schema, _, size, whole = _HEADER.unpack_from(blob)
    fits = len(blob) == whole == _HEADER.size + size
    return (domain, schema), blob[_HEADER.size :] if fits else b""


def _json(blob: bytes, schemas: _Schemas) -> str | None:
    key, payload = payload_of(blob)
    if not payload or key not in schemas:
        return None
    fields = [(name, kind, at) for name, forms in schemas[key].items() for kind, at in forms]
    if any(at + struct.calcsize(kind) > len(payload) for _, kind, at in fields):
        return None
    return json.dumps({name: struct.unpack_from(kind, payload, at)[0] for name, kind, at in fields})


def _schemas(source: TableSource) -> _Schemas:
    """The integers in each schema. Each process writes its own; a schema of which two differ is left out."""
    schemas: defaultdict[tuple[int, int], dict[str, set[tuple[str, int]]]] = defaultdict(dict)
    table = nsight.PAYLOAD_ENTRIES
    rows = source.values(table.name, _COLUMNS) if has(source, table, *_COLUMNS) else []
    for domain, schema, flags, kind, name, offset in rows:
        at = offset or 0
        if kind in _FORMATS and not flags and isinstance(name, str) and isinstance(at, int) and at >= 0:
            schemas[domain, schema].setdefault(name, set()).add((f"<{_FORMATS[kind]}", at))
    return {key: known for key, known in schemas.items() if all(len(forms) == 1 for forms in known.values())}
