"""NVTX payloads as nsys exports them: blobs and rows of the schema tables for small exports."""

from __future__ import annotations

import struct
from typing import Any

from tests.unit.readers.exports import DDL, Row, pushed

BLOB = {"NVTX_EVENTS": DDL["NVTX_EVENTS"] + ", binaryData TEXT"}
TABLES = {
    **BLOB,
    "NVTX_PAYLOAD_SCHEMAS": "domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, "
    "flags INTEGER, numEntries INTEGER, payloadSize INTEGER, alignTo INTEGER",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, "
    "idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT, "
    "arrayOrUnionDetail INTEGER, offset INTEGER",
    "NVTX_PAYLOAD_ENUMS": "domainId INTEGER, schemaId INTEGER, name TEXT, numEntries INTEGER, "
    "size INTEGER",
    "NVTX_PAYLOAD_ENUM_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, "
    "idx INTEGER NOT NULL, name TEXT, value INTEGER, isFlag INTEGER",
}
"""DDL of exports made with ``--include-blobs=true``."""


def blob(schema: int, payload: bytes, domain: int = 1, place: int = 32) -> bytes:
    """What stands in ``binaryData``."""
    return struct.pack("<QQQQ", domain, schema, len(payload), place) + payload


def schema(number: int, name: str | None = None, kind: int = 1, **more: Any) -> Row:
    """A row of ``NVTX_PAYLOAD_SCHEMAS``."""
    return {"domainId": 1, "schemaId": number, "name": name, "type": kind, **more}


def entries(number: int, *fields: tuple[Any, ...]) -> list[Row]:
    """Rows of ``NVTX_PAYLOAD_SCHEMA_ENTRIES`` from (name, type[, offset[, flags[, detail]]])."""
    rows = []
    for index, given in enumerate(fields):
        name, kind, offset, flags, detail = (*given, *(None,) * (5 - len(given)))
        rows.append(
            {"domainId": 1, "schemaId": number, "idx": index, "flags": flags, "type": kind,
             "name": name, "arrayOrUnionDetail": detail, "offset": offset}
        )  # fmt: skip
    return rows


def attached(name: str, start: int, end: int, data: bytes | None, **more: Any) -> Row:
    """A push/pop range of domain 1 with a payload."""
    return pushed(name, start, end, domainId=1, binaryData=data, **more)


COMM, SIZE = ("NCCL communicator ID", 18), ("Message size [bytes]", 22, 8)
NCCL_SCHEMAS = [schema(16777223, payloadSize=24), schema(16777225, payloadSize=24)]
NCCL_ENTRIES = [
    *entries(16777223, COMM, SIZE, ("Reduction operation", 16777232, 16)),
    *entries(16777225, COMM, SIZE, ("Peer rank", 5, 16)),
]
"""Schemas of NCCL as the corpus has them: all-reduce, and send or receive."""


def all_reduce(communicator: int, size: int, operation: int = 0) -> bytes:
    """Payload of ``ncclAllReduce``."""
    return blob(16777223, struct.pack("<QQii", communicator, size, operation, 0))


def send(communicator: int, size: int, peer: int) -> bytes:
    """Payload of ``ncclSend`` and ``ncclRecv``."""
    return blob(16777225, struct.pack("<QQii", communicator, size, peer, 0))
