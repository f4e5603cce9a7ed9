"""Exports that are kept by their content: in the process, and on disk (``Options.enableExecutableCaching`` and
``POPTORCH_CACHE_DIR``).

An export is the greatest part of a compilation. It depends on the module's code, its attributes, the shapes of its
arguments and the versions of PyTorch and ipuperf (:mod:`~ipuperf.poptorch.export.content`), not on the strategy, the
accumulation, the replicas, the optimiser or the machine: programs that differ in these are lowered from one export. A
file of another version or a damaged one is written anew. Several processes may use one folder: files appear whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..executor import archive
from ..log import logger
from .checks import hooks_of_all_modules
from .codec import NotStorable, lasting, restored, stored
from .content import UnknownContent, digest_of
from .reuse import Newest
from .trace import Traced

_KIND = "export"
_KEPT: Newest[Traced] = Newest()


def cached(
    folder: str | None,
    module: torch.nn.Module,
    arguments: Any,
    tensors: Sequence[torch.Tensor],
    training: bool,
    trace: Callable[[], Traced],
) -> Traced:
    """``trace()``, or what it gave for the same content, in this process or (with a folder) another.

    Args:
        folder: where exports are kept; None: nowhere. It is made where it does not exist.
        arguments: structure of the arguments.
        tensors: those in it, of which only shapes and types count.
        training: whether the export is that of a training program.
    """
    try:
        kinds = [(tuple(t.shape), t.stride(), t.dtype, t.device.type) for t in tensors]
        # Hooks of all modules run in forward as well.
        digest = digest_of(module, arguments, kinds, training, hooks_of_all_modules())
    except UnknownContent as error:
        if folder is not None:
            name = type(module).__name__
            logger.warning("The export of %s is not kept in %s: it depends on %s", name, folder, error)
        return trace()
    key, path = digest.encode(), None if folder is None else Path(folder, f"{digest}.poptorch")
    traced = _KEPT.get(key)
    if traced is not None:
        # The export may have been made before there was a folder.
        if path is not None and not path.exists():
            _write(path, traced)
        return traced
    traced = None if path is None else _read(path)
    if traced is not None:
        # Its constants are the file's: the module cannot change them.
        _KEPT.put(key, traced)
    else:
        # Random numbers that forward draws on the host become constants: another export has others.
        drawn = _drawn()
        traced = trace()
        if _drawn() != drawn and not _repeated(traced, trace):
            logger.debug("The export is not kept: it depends on random numbers of Python or NumPy")
            return traced
        if path is not None:
            _write(path, traced)
        with suppress(NotStorable):  # what no file could hold is not kept either
            _KEPT.put(key, lasting(traced))
    return traced


def _drawn() -> tuple[Any, ...]:
    """The state of the random numbers that would be constants of an export."""
    kind, numbers, *remainder = np.random.get_state(legacy=True)  # noqa: NPY002
    return random.getstate(), kind, np.asarray(numbers).tobytes(), remainder


def _repeated(traced: Traced, trace: Callable[[], Traced]) -> bool:
    """Whether another export, with other random numbers, is the same: layers that may be dropped draw one also where
    none is. The program's own random numbers go on as if there had been one export."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        (text, numbers), (second_text, others) = (_content(export) for export in (traced, trace()))
    except NotStorable:
        return False
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
    return text == second_text and all(torch.equal(a, b) for a, b in zip(numbers, others, strict=True))


def _content(traced: Traced) -> tuple[str, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []
    return repr(stored(traced, tensors)), tensors


def forget() -> None:
    """Exports are no longer kept in this process."""
    _KEPT.clear()


def _read(path: Path) -> Traced | None:
    try:
        content, tensors = archive.read(path, _KIND)
        traced = restored(content, tensors)
    except FileNotFoundError:
        return None
    except archive.FileError as error:
        logger.info("%s; it is written anew", error)
        return None
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        logger.info("%s cannot be read (%s: %s); it is written anew", path, type(error).__name__, error)
        return None
    logger.debug("The export was loaded from %s", path)
    return traced


def _write(path: Path, traced: Traced) -> None:
    tensors: list[torch.Tensor] = []
    try:
        content = stored(traced, tensors)
    except NotStorable as error:
        logger.info("The export is not kept in %s: it has %s", path.parent, error)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        archive.write(path, _KIND, content, tensors)
    except OSError as error:
        logger.warning("The export cannot be kept in %s: %s", path.parent, error)
