"""Write the protobuf wire format by hand: the few message fields a Perfetto trace needs, without a dependency.

Wire format: a field is a tag ``number << 3 | type`` and a value; type 0 is a varint (seven bits a byte, lowest first,
the top bit says that more follow), type 1 is eight bytes little endian, type 2 is a length and that many bytes.
"""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    """A number from 0 to 2**64 - 1; negative int64 are written as their two's complement, as protobuf does."""
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"varint {value}: does not fit 64 bits")
    value &= 0xFFFFFFFFFFFFFFFF
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def uint(field: int, value: int) -> bytes:
    """A field of type int32, int64, uint32, uint64, bool or enum."""
    return varint(field << 3) + varint(value)


def blob(field: int, value: bytes) -> bytes:
    """A field of type bytes or a nested message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field of type string."""
    return blob(field, value.encode())


def fixed64(field: int, value: int) -> bytes:
    """Field of type fixed64."""
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    """A field of type double."""
    return varint(field << 3 | 1) + struct.pack("<d", value)
