"""Functions that a program wants called before and after a model is compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], Any]


class CompileHooks:
    """The hooks registered; the executor calls :meth:`before` and :meth:`after` around each compilation."""

    _before: ClassVar[OrderedDict[int, Hook]] = OrderedDict()
    _after: ClassVar[OrderedDict[int, Hook]] = OrderedDict()

    @classmethod
    def before(cls) -> None:
        """Call the hooks of :func:`registerPreCompileHook` in order."""
        for hook in list(cls._before.values()):
            hook()

    @classmethod
    def after(cls) -> None:
        """Call the hooks of :func:`registerPostCompileHook` in order."""
        for hook in list(cls._after.values()):
            hook()


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Have ``hook()`` called before each compilation, until ``remove()`` of the result. RuntimeError: not callable."""
    return _register("Pre-compile", CompileHooks._before, hook)


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Have ``hook()`` called after each compilation, until ``remove()`` of the result. RuntimeError: not callable."""
    return _register("Post-compile", CompileHooks._after, hook)


def _register(name: str, hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{name} hook must be callable")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
