"""Download the MNIST files over https and check them against known checksums.

The mirrors are the two hosts that torchvision's ``MNIST`` names. The checksums are the published MD5 sums of the
*unpacked* files: repacking the same images changes the sum of a ``.gz`` file but not of its content.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import tempfile
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

from ipuperf.tools.errors import DatasetError

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://yann.lecun.com/exdb/mnist/")
UNPACKED_MD5 = {
    "train-images-idx3-ubyte.gz": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte.gz": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte.gz": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte.gz": "27ae3e4e09519cfbb04c329615203637",
}
TIMEOUT_SECONDS = 10.0
_CHUNK_BYTES = 1 << 16
_LARGEST_BYTES = 64 << 20  # the largest unpacked file has 47,040,016 bytes; anything larger is another file


def download_files(
    folder: Path,
    *,
    mirrors: Sequence[str] = MIRRORS,
    checksums: Mapping[str, str] = UNPACKED_MD5,
    timeout: float = TIMEOUT_SECONDS,
) -> None:
    """Put every file named in ``checksums`` into ``folder``, trying the ``mirrors`` in order.

    ``checksums`` maps the name of a gzip file to the MD5 (hex) of its unpacked content. A file that already has the
    right content is kept. Content is verified first, then written under a temporary name and moved into place.
    ``timeout`` (seconds) holds for each connection and each read. Raises :class:`DatasetError`, which names each URL
    tried and its problem.
    """
    for name, checksum in checksums.items():
        target = folder / name
        if not (target.is_file() and _complaint(target.read_bytes(), checksum) is None):
            _write(target, _fetch_verified(name, checksum, mirrors, timeout))


def _fetch_verified(name: str, checksum: str, mirrors: Sequence[str], timeout: float) -> bytes:
    """The content of file ``name`` from the first mirror that delivers it undamaged."""
    failures = []
    for mirror in mirrors:
        url = mirror + name
        try:
            content = _fetch(url, name, timeout)
            complaint = _complaint(content, checksum)
        except (OSError, HTTPException) as error:
            complaint = str(getattr(error, "reason", None) or error or type(error).__name__)
        if complaint is None:
            return content
        failures.append(f"{url}: {complaint}")
    raise DatasetError(" / ".join(failures) or f"{name}: no mirrors given")


def _fetch(url: str, name: str, timeout: float) -> bytes:
    """The bytes behind ``url``, with a progress bar where standard error is a terminal."""
    from tqdm import tqdm

    content = bytearray()
    with urllib.request.urlopen(url, timeout=timeout) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        with tqdm(total=total, unit="B", unit_scale=True, desc=name, disable=None) as bar:
            while chunk := response.read(_CHUNK_BYTES):
                content += chunk
                bar.update(len(chunk))
                if len(content) > _LARGEST_BYTES:
                    raise OSError(f"more than {_LARGEST_BYTES} bytes sent, expected an MNIST file")
    return bytes(content)


def _complaint(content: bytes, checksum: str) -> str | None:
    """Say what is wrong with this gzip file; ``None`` if it unpacks to data with that MD5."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            # A small file may unpack to a huge one, so reading ends at the limit.
            unpacked = stream.read(_LARGEST_BYTES)
    except (EOFError, OSError, zlib.error) as error:
        return f"{len(content)} bytes found that are not a whole gzip file ({error})"
    actual_checksum = hashlib.md5(unpacked, usedforsecurity=False).hexdigest()
    return (
        None
        if actual_checksum == checksum
        else f"MD5 {actual_checksum} of the unpacked {len(unpacked)} bytes found, expected {checksum}"
    )


def _write(target: Path, content: bytes) -> None:
    """Write under a temporary name in the same folder, so that no reader ever sees half a file."""
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # ``mkstemp`` makes files that only their owner may read.
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise DatasetError(f"{target}: cannot be written ({error})") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
