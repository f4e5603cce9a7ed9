"""Functions that a program wants called before and after a model is compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.hooks import RemovableHandle

from ipuperf.runtime.run_context import RUN

Hook = Callable[[], Any]


class CompileHooks:
    """The hooks registered in this process (``RUN.of(CompileHooks)``): called in order around each compilation."""

    def __init__(self) -> None:
        self.before: OrderedDict[int, Hook] = OrderedDict()
        self.after: OrderedDict[int, Hook] = OrderedDict()


def call_hooks(hooks: Mapping[int, Hook]) -> None:
    """Call all of them in order; one may remove itself."""
    for hook in list(hooks.values()):
        hook()


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Have ``hook()`` called before each compilation, until ``remove()`` of the result. RuntimeError: not callable."""
    return _register("Pre-compile", RUN.of(CompileHooks).before, hook)


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Have ``hook()`` called after each compilation, until ``remove()`` of the result. RuntimeError: not callable."""
    return _register("Post-compile", RUN.of(CompileHooks).after, hook)


def _register(name: str, hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{name} hook must be callable")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
