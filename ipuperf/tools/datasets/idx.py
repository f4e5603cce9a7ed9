"""Reading IDX files, the format in which MNIST is distributed.

An IDX file is: two zero bytes, one byte that says the element type, one byte that says the number of dimensions, one
big-endian uint32 per dimension (outermost first), then the elements in row-major order, big-endian. Files may be
gzip-compressed; that is recognised by the content, not by the name.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from ipuperf.base.kinds import checked
from ipuperf.tools.errors import DatasetError

_ELEMENT_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_DIMENSIONS = 32  # the limit of numpy 1.x arrays
_CHUNK_BYTES = 1 << 20
_CHECKED_BYTES = 1 << 28  # MNIST's largest file holds 47 MB


@checked()
def read_idx(path: str | Path) -> np.ndarray:
    """Return the array in the IDX file at ``path`` (plain or gzip), writable and in native byte order.

    Raises :class:`DatasetError` if the file is missing, is not IDX, is cut short, has bytes after its last element, or
    if its gzip stream is damaged. However large the header claims the array to be, no more memory is allocated than the
    file fills.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if compressed:
                with gzip.GzipFile(fileobj=raw) as stream:
                    return _parse_packed(path, stream)
            return _parse(path, raw)
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file, expected an IDX file (plain or gzip)") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetError(
            f"{path}: the gzip stream is damaged or cut short ({error}); fetch the file again"
        ) from error
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read as an IDX file ({error.strerror or error})") from error


def _parse_packed(path: Path, stream: gzip.GzipFile) -> np.ndarray:
    """Parse as :func:`_parse`. If that fails, unpack the rest of the stream (up to :data:`_CHECKED_BYTES`).

    The end of the stream has its checksum. A header or length that looks wrong may be damage, which gzip's error then
    reports.
    """
    try:
        return _parse(path, stream)
    except DatasetError:
        for _ in range(_CHECKED_BYTES // _CHUNK_BYTES):
            if not stream.read(_CHUNK_BYTES):
                break
        raise


def _parse(path: Path, stream: IO[bytes] | gzip.GzipFile) -> np.ndarray:
    """Check header, elements and end of one IDX stream and return its array."""
    magic = _read(stream, 4)
    if len(magic) < 4:
        raise DatasetError(f"{path}: {len(magic)} bytes found, expected at least the 4 bytes of an IDX magic number")
    zero, code, dimensions = struct.unpack(">HBB", magic)
    if zero != 0 or code not in _ELEMENT_TYPES:
        known = ", ".join(f"0x{known:02x}" for known in _ELEMENT_TYPES)
        raise DatasetError(
            f"{path}: magic number 0x{magic.hex()} found, expected 0x0000TTDD with element type TT one of {known}"
        )
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise DatasetError(f"{path}: {dimensions} dimensions found in the header, expected 1 to {_MAX_DIMENSIONS}")
    header = _read(stream, 4 * dimensions)
    if len(header) < 4 * dimensions:
        raise DatasetError(
            f"{path}: {len(header)} bytes of sizes found, expected {4 * dimensions} for {dimensions} dimensions"
        )
    shape = struct.unpack(f">{dimensions}I", header)
    dtype: np.dtype[Any] = np.dtype(_ELEMENT_TYPES[code])
    expected = math.prod(shape) * dtype.itemsize
    body = _read(stream, expected)
    if len(body) < expected:
        raise DatasetError(
            f"{path}: {len(body)} bytes of elements found, expected {expected} for shape {shape} of {dtype.name}: "
            "the file is cut short"
        )
    # For a gzip stream this read also checks the checksum at the end.
    if stream.read(1):
        raise DatasetError(
            f"{path}: bytes found after the last element, expected exactly {expected} bytes of elements "
            f"for shape {shape} of {dtype.name}"
        )
    # A bytearray gives a writable array without a copy.
    array = np.frombuffer(body, dtype=dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _read(stream: IO[bytes] | gzip.GzipFile, count: int) -> bytearray:
    """Read at most ``count`` bytes, fewer only at the end of the stream; in chunks, as a header may lie about sizes."""
    data = bytearray()
    while len(data) < count:
        chunk = stream.read(min(_CHUNK_BYTES, count - len(data)))
        if not chunk:
            break
        data += chunk
    return data
