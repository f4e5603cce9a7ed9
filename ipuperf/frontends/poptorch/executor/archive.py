"""Files of executables and of the cache: a zip with one JSON document and the bytes of tensors.

``document.json`` begins with what the file is and who wrote it: ``format``, ``kind`` and ``versions`` (of the format,
of ipuperf and of PyTorch). ``tensors/N`` holds the bytes of tensor N, whose type and shape the document lists. A
checksum of every member is part of the zip.
"""

from __future__ import annotations

import functools
import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ipuperf.base.version import __version__
from ipuperf.runtime.program_store import digest_of_sources
from ipuperf.trace import replacing

from ..errors import Error

FORMAT = "ipuperf.poptorch"
#: Of the format: a change that older files do not follow adds one.
_NUMBER = 1
_DOCUMENT, _TENSORS = "document.json", "tensors/"
# A fixed time in the zip, so that equal content gives equal bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


class FileError(Error):
    """A file that is none of ours, is damaged, or was written by another version; the message names it."""


def versions() -> dict[str, str]:
    """What a file has to agree with to be read."""
    return {"format": str(_NUMBER), "ipuperf": f"{__version__} {_own_code()}", "torch": torch.__version__}


@functools.cache
def _own_code() -> str:
    """A digest of the sources of the front end."""
    return digest_of_sources([Path(__file__).parents[1]])


def write(path: str | os.PathLike[str], kind: str, content: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Write a file whole or not at all; equal content gives equal bytes."""
    listed = [
        {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "meta": t.device.type == "meta"}
        for t in tensors
    ]
    head = {"format": FORMAT, "kind": kind, "versions": versions(), "tensors": listed, "content": content}
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        file.writestr(zipfile.ZipInfo(_DOCUMENT, _TIME), json.dumps(head), zipfile.ZIP_DEFLATED, 1)
        for number, tensor in enumerate(tensors):
            if tensor.device.type != "meta":
                flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                file.writestr(zipfile.ZipInfo(f"{_TENSORS}{number}", _TIME), flat.numpy().tobytes())


def read(path: str | os.PathLike[str], kind: str) -> tuple[Any, list[torch.Tensor]]:
    """The content and the tensors of a file.

    Raises:
        FileNotFoundError: there is none.
        FileError: not a file of this kind, damaged, or of another version.
    """
    try:
        with zipfile.ZipFile(path) as file:
            head = json.loads(file.read(_DOCUMENT))
            if not isinstance(head, Mapping) or head.get("format") != FORMAT:
                raise FileError(f"{path}: not a file of PopTorch programs written by ipuperf")
            if head.get("versions") != versions():
                raise FileError(f"{path}: written by another version: {_differences(head.get('versions'))}")
            if head.get("kind") != kind:
                raise FileError(f"{path}: holds a {head.get('kind')}, expected a {kind}")
            return head["content"], [_tensor(file, n, listed) for n, listed in enumerate(head["tensors"])]
    except FileNotFoundError:
        raise
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError) as error:
        raise FileError(
            f"{path}: not a file of PopTorch programs written by ipuperf, or damaged ({type(error).__name__}: {error})"
        ) from error


def _tensor(file: zipfile.ZipFile, number: int, listed: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape = getattr(torch, listed["dtype"]), tuple(listed["shape"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"tensor {number} of type {dtype}")
    if listed["meta"]:
        return torch.empty(shape, dtype=dtype, device="meta")
    # torch.frombuffer refuses an empty buffer.
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    # A bytearray can be written to, as a tensor can.
    return torch.frombuffer(bytearray(file.read(f"{_TENSORS}{number}")), dtype=torch.uint8).view(dtype).reshape(shape)


def _differences(stated: Any) -> str:
    known = stated if isinstance(stated, Mapping) else {}
    current = versions()
    changed = [name for name in current if known.get(name) != current[name]]
    return ", ".join(f"{name} {known.get(name)} (here {current[name]})" for name in changed)
