"""Fetching the MNIST files over https, checked against known checksums.

The mirrors are the two hosts that torchvision's ``MNIST`` names, asked over https, and the MD5 sums are those that
torchvision checks against (they agree with the files published by the authors of MNIST).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

from ipuperf.datasets.errors import DatasetError

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://yann.lecun.com/exdb/mnist/")
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
TIMEOUT_SECONDS = 10.0
_CHUNK_BYTES = 1 << 16
_LARGEST_BYTES = 64 << 20  # six times the largest file: a mirror that sends more sends something else


def download_files(
    folder: Path,
    *,
    mirrors: Sequence[str] = MIRRORS,
    checksums: Mapping[str, str] = CHECKSUMS,
    timeout: float = TIMEOUT_SECONDS,
) -> None:
    """Put every file named in ``checksums`` (name -> MD5 in hex) into ``folder``, trying the ``mirrors`` in order.

    A file that is already there with the right checksum is kept. A file is written only after its checksum was verified,
    under a temporary name that is then moved into place. Raises :class:`DatasetError` that names each URL tried and what
    went wrong there; ``timeout`` (seconds) holds for each connection and each read.
    """
    for name, checksum in checksums.items():
        target = folder / name
        if not (target.is_file() and _md5(target.read_bytes()) == checksum):
            _write(target, _fetch_verified(name, checksum, mirrors, timeout))


def _fetch_verified(name: str, checksum: str, mirrors: Sequence[str], timeout: float) -> bytes:
    """The content of file ``name`` from the first mirror that delivers it with the right checksum."""
    failures = []
    for mirror in mirrors:
        url = mirror + name
        try:
            content = _fetch(url, name, timeout)
        except (OSError, HTTPException) as error:
            failures.append(f"{url}: {getattr(error, 'reason', None) or error}")
            continue
        found = _md5(content)
        if found == checksum:
            return content
        failures.append(f"{url}: MD5 {found} of {len(content)} bytes found, expected {checksum}")
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


def _write(target: Path, content: bytes) -> None:
    """Write through a temporary name in the same folder, so that no reader ever sees half a file."""
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise DatasetError(f"{target}: cannot be written ({error})") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
