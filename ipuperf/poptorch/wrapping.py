"""A module that an executor trains: its weights come from the IPUs when somebody looks at them.

After a training call the newest weights are on the IPUs. The module, its parameters and its buffers are given classes
of their own that fetch them before they answer (:class:`Ties`), so training copies nothing, and whoever looks gets
what was trained. Copies and pickles are of the plain classes.

Source: poptorch: python/_poplar_executor.py, python/_impl.py, tests/weights_writing_test.py.
"""

from __future__ import annotations

import copy
import copyreg
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .errors import Error
from .log import logger

if TYPE_CHECKING:
    from .executor import PoplarExecutor

_WRAPPED = (
    "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to unwrap before "
    "wrapping again."
)
_SHARED = (
    "Parameters or buffers of the model belong to another one that has been wrapped in 'poptorch.trainingModel'. Call "
    "destroy() on that model before wrapping this one."
)


class Ties:
    """What ties a module to the executor that trains it (which it does not keep alive).

    Attributes:
        dirty: the IPUs have newer weights than the module.
    """

    def __init__(self, executor: PoplarExecutor, module: torch.nn.Module) -> None:
        self._executor = weakref.ref(executor)
        self._module = module
        self._classes: dict[type, type] = {}
        self.dirty = False

    @property
    def tied(self) -> bool:
        """Whether the module fetches its weights by itself."""
        return _TIES.get(self._module) is self

    def fetch(self) -> bool:
        """Bring the weights to the host if the IPUs have newer ones; whether they had."""
        executor = self._executor() if self.dirty else None
        if executor is None:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        self.dirty = False
        executor.copyWeightsToHost()
        return True

    def destroy(self) -> None:
        """Destroy the executor, or loosen the ties of one that is gone."""
        executor = self._executor()
        if executor is None:
            self.loosen()
        else:
            executor.destroy()

    # -- classes -----------------------------------------------------------------------------------------------------

    def tie(self) -> None:
        """Give the module, its parameters and its buffers their classes.

        Raises:
            Error: the module is tied already, or some of its parameters or buffers are.
        """
        if self._module in _TIES or isinstance(self._module, _Module):
            raise Error(_WRAPPED)
        states = [*self._module.parameters(), *self._module.buffers()]
        if any(isinstance(tensor, _State) for tensor in states):
            raise Error(_SHARED)
        for tensor in states:
            if not isinstance(tensor, torch.nn.Parameter) and type(tensor) is not torch.Tensor:
                raise Error(f"All buffers must be an instance of torch.Tensor (got {type(tensor).__name__})")
        _TIES[self._module] = self
        for tensor in states:
            tensor.__class__ = self._class_of(tensor)
        self._module.__class__ = self._class_of(self._module)

    def loosen(self) -> None:
        """Give them back the classes they had."""
        for thing in _things(self._module):
            if type(thing) in self._classes.values():
                thing.__class__ = type(thing)._plain
        if self.tied:
            del _TIES[self._module]

    def _class_of(self, thing: Any) -> type:
        plain = type(thing)
        if plain not in self._classes:
            mixin = _Module if isinstance(thing, torch.nn.Module) else _State
            members = {"_ties": self, "_plain": plain, "__module__": plain.__module__, "__doc__": plain.__doc__}
            self._classes[plain] = type(f"Poptorch{plain.__name__}", (mixin, plain), members)
        return self._classes[plain]


_TIES: weakref.WeakKeyDictionary[torch.nn.Module, Ties] = weakref.WeakKeyDictionary()
_LOOSENED: weakref.WeakKeyDictionary[torch.nn.Module, Ties] = weakref.WeakKeyDictionary()


class _Module:
    """A module that looks for newer weights before it shows or uses its own."""

    _ties: ClassVar[Ties]
    _plain: ClassVar[type]

    def __getattribute__(self, name: str) -> Any:
        if name in ("_parameters", "_buffers", "forward"):
            type(self)._ties.fetch()
        return super().__getattribute__(name)

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Bring the weights to the host if the IPUs have newer ones; whether they had."""
        return type(self)._ties.fetch()

    def destroy(self) -> None:
        """Release the IPUs and the program; the module is a plain one again."""
        type(self)._ties.destroy()

    def _get_name(self) -> str:
        return type(self)._plain.__name__

    def __reduce_ex__(self, protocol: Any) -> Any:
        type(self)._ties.fetch()
        rest = tuple(super().__reduce_ex__(2))[2:]
        return (copyreg._reconstructor, (type(self)._plain, object, None), *rest)  # type: ignore[attr-defined]


class _State:
    """A parameter or buffer of such a module."""

    _ties: ClassVar[Ties]
    _plain: ClassVar[type]

    def __getattribute__(self, name: str) -> Any:
        type(self)._ties.fetch()
        return super().__getattribute__(name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Operations on it read the newest numbers; their results are plain tensors."""
        cls._ties.fetch()
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def _bare(self) -> torch.Tensor:
        """A plain tensor or parameter with this one's memory."""
        tensor = self.detach()
        if issubclass(type(self)._plain, torch.nn.Parameter):
            return torch.nn.Parameter(tensor, self.requires_grad)
        return tensor

    def __copy__(self) -> torch.Tensor:
        return self._bare()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            memo[id(self)] = copy.deepcopy(self._bare(), {})
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._bare().__reduce_ex__(protocol)


def _things(module: torch.nn.Module) -> list[Any]:
    """Modules, parameters and buffers of a module."""
    return [*module.modules(), *module.parameters(), *module.buffers()]


def fetch_weights(module: torch.nn.Module) -> None:
    """Bring the newest weights of a module, or of one around it, to the host."""
    for thing in _things(module):
        ties = getattr(type(thing), "_ties", None)
        if isinstance(ties, Ties):
            ties.fetch()


@contextmanager
def plain(module: torch.nn.Module) -> Iterator[None]:
    """Within, the module and all it holds have their plain classes; the newest weights are on the host."""
    fetch_weights(module)
    kept = [(thing, type(thing)) for thing in _things(module) if isinstance(thing, _Module | _State)]
    try:
        for thing, kind in kept:
            thing.__class__ = kind._plain
        yield
    finally:
        for thing, kind in kept:
            thing.__class__ = kind


def unwrap(module: torch.nn.Module) -> None:
    """Loosen the ties of a module that has some, its newest weights on the host, until :func:`rewrap`."""
    ties = _TIES.get(module)
    if ties is not None:
        ties.fetch()
        ties.loosen()
        _LOOSENED[module] = ties


def rewrap(module: torch.nn.Module) -> None:
    """Tie a module again that :func:`unwrap` has loosened."""
    ties = _LOOSENED.pop(module, None)
    if ties is not None and ties._executor() is not None:
        ties.tie()
