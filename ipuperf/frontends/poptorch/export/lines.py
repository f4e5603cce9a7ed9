"""The user's line of what an export makes, and errors that say it."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import torch

import ipuperf

from ..aten.lowering import ExportError
from ..errors import Error, UnsupportedError
from .module_state import overlap_of

#: The annotations of a node that say the line and the module it comes from.
LINE, MODULE = "ipuperf_line", "ipuperf_module"

_HIDDEN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(ipuperf.__file__) + os.sep)
#: (PyTorch Geometric puts an ``index_select`` of its own into PyTorch, which calls PyTorch's.)
_STAND_INS = (os.sep + "contextlib.py", os.path.join("torch_geometric", "hash_tensor.py"))
#: The function through which PyTorch runs every call of a module.
_CALL = torch.nn.Module._call_impl.__code__
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@cache
def is_user_file(name: str) -> bool:
    """Whether a file is neither PyTorch's nor ipuperf's own, nor one whose functions stand in for PyTorch's."""
    return not (name.startswith((*_HIDDEN, "<")) or name.endswith(_STAND_INS))


def calling_line() -> str:
    """``file:line`` of the innermost caller in the user's files."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def paths_of(model: torch.nn.Module) -> dict[int, str]:
    """The path of each module of ``model`` by its identity, such as ``blocks.3.fc``; the model's own is its class."""
    # A module with several paths has the first one, as parameters do.
    return {id(module): path or type(model).__name__ for path, module in model.named_modules()}


def calling_module(paths: Mapping[int, str]) -> str:
    """The path of the innermost module of ``paths`` that is being called; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL and (path := paths.get(id(frame.f_locals["self"]))) is not None:
            return path
        frame = frame.f_back
    return ""


def location_of(frames: Any) -> str:
    """``file:line`` of the innermost frame in the user's files, "" when there is none."""
    for frame in reversed(list(frames)):
        if is_user_file(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def is_raised_by_user(error: Exception) -> bool:
    """Whether the model's own code, or a library that it calls, raised this, and not PyTorch's export or ipuperf."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and is_user_file(frames[-1].filename)


def explained(error: Exception, at: str = "") -> ExportError:
    """What went wrong, with the user's line: ``at``, or that of the error."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    raised_at = ""
    while current is not None and current not in chain:
        chain.append(current)
        raised_at = location_of(traceback.extract_tb(current.__traceback__)) or raised_at
        current = current.__cause__ or current.__context__
    at = at or raised_at
    names = {type(e).__name__ for e in chain}
    text = " ".join(str(e) for e in chain)
    if any("DataDependent" in n or "Unbacked" in n for n in names) or "data-dependent" in text:
        file, _, line = at.rpartition(":")
        code = repr(linecache.getline(file, int(line)).strip()) if line.isdigit() else "something in forward"
        return ExportError(
            f"{at}: {code} depends on the value of a tensor; the program of an IPU is static: neither control "
            "flow nor a shape may depend on data: use torch.where, or make the value a Python number"
        )
    reason = str(error).strip().splitlines()
    headline = reason[0] if reason else ""
    return ExportError(f"{at}: the model cannot be exported: {type(error).__name__}: {headline}")


@contextmanager
def told_at(graph: torch.fx.Graph, module: torch.nn.Module) -> Iterator[None]:
    """What PyTorch says of a node of ``graph`` that it cannot make functional, with the user's line."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raised_at = re.search(r"While executing %(\w+)", str(error))
        nodes = [node for node in graph.nodes if raised_at and node.name == raised_at.group(1)]
        at = location_of_node(nodes[0]) if nodes else ""
        if "internal overlap" in str(error):
            raise UnsupportedError(
                f"{at}: a change in place of a view whose windows overlap (unfold, as_strided) is unsupported: an "
                "element that stands in several would have several values; change what it is a view of, or a clone()"
            ) from error
        shared = overlap_of(module)
        raise (UnsupportedError(shared) if shared else explained(error, at)) from error


def location_of_node(node: torch.fx.Node) -> str:
    """``file:line`` of the user's code that made a node."""
    location: str = tags_of(node).get(LINE, "")
    if location:
        return location
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    for name, line in reversed(frames):
        if is_user_file(name):
            return f"{name}:{line}"
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""


def tags_of(node: torch.fx.Node) -> Mapping[str, Any]:
    """The annotations of a node."""
    return node.meta.get("custom") or {}


@contextmanager
def unsupported_at(line: str) -> Iterator[None]:
    """The errors of what stands for a function say the user's line."""
    try:
        yield
    except UnsupportedError as error:
        if not line or line in str(error):
            raise
        raise UnsupportedError(f"{line}: {error}") from error
