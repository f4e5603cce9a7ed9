"""A module that an executor trains: its weights come from the IPUs when somebody looks at them.

After a training call the newest weights are on the IPUs. The module, its parameters and its buffers are given classes
of their own that fetch them before they answer (:class:`Ties`), so training copies nothing, and whoever looks gets
what was trained. Copies and pickles are of the plain classes. Several executors may train modules with parameters in
common (the generator and the discriminator of a GAN): such a parameter fetches from each of them.

Source: poptorch: python/_poplar_executor.py, python/_impl.py, tests/weights_writing_test.py.
"""

from __future__ import annotations

import copy
import copyreg
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import torch

from ..errors import Error
from ..log import logger

_WRAPPED = (
    "This module has already been wrapped in 'poptorch.trainingModel': only one executor trains a module. Its "
    "destroy() gives the module back, which another one can then wrap."
)
_SHARED = (
    "A buffer of this module is part of another one that is being trained (models may share parameters only). Call "
    "destroy() of the other one first."
)


class Newest(Enum):
    """Where the newest weights are."""

    ON_HOST = "in the module"
    ON_IPUS = "on the IPUs"


class Trainer(Protocol):
    """An executor, as far as a module that it trains knows it."""

    def copyWeightsToHost(self) -> None:
        """Write the weights back to the module."""

    def destroy(self) -> None:
        """Forget the program."""


class Ties:
    """What ties a module to the executor that trains it (which it does not keep alive).

    Attributes:
        newest: where the newest weights are.
        calls: calls of the executor so far.
    """

    def __init__(self, executor: Trainer, module: torch.nn.Module) -> None:
        self._executor = weakref.ref(executor)
        self._module = module
        self._classes: dict[Any, type] = {}
        self._shared: list[torch.Tensor] = []
        self._loaded: dict[Ties, int] = {}
        self.newest = Newest.ON_HOST
        self.calls = 0

    @property
    def name(self) -> str:
        """The module's class."""
        return getattr(type(self._module), "_plain", type(self._module)).__name__

    @property
    def tied(self) -> bool:
        """Whether the module fetches its weights by itself."""
        return _ties_in(_TIES, self._module) is self

    def fetch(self) -> bool:
        """Bring the weights to the host if the IPUs have newer ones; whether they had."""
        executor = self._executor() if self.newest is Newest.ON_IPUS else None
        if executor is None:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        # This comes first: copying touches the tensors, and each of them asks here again.
        self.newest = Newest.ON_HOST
        executor.copyWeightsToHost()
        return True

    def note_call(self, newest: Newest) -> None:
        """A call of the executor is over."""
        self.newest = newest
        self.calls += 1

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
            Error: the module is tied already, or some of its buffers are.
        """
        if self._module in _TIES or isinstance(self._module, _Module):
            raise Error(_WRAPPED)
        parameters, buffers = list(self._module.parameters()), list(self._module.buffers())
        if any(isinstance(tensor, _State) for tensor in buffers):
            raise Error(_SHARED)
        for tensor in buffers:
            if type(tensor) is not torch.Tensor:
                raise Error(f"a buffer of the module is a {type(tensor).__name__}, expected a torch.Tensor")
        _TIES[self._module] = weakref.ref(self)
        for tensor in [*parameters, *buffers]:
            for peer in ties_of(tensor):
                peer._shared.append(tensor)
                self._shared.append(tensor)
            tensor.__class__ = _class_of(tensor, (*ties_of(tensor), self))
        self._module.__class__ = _class_of(self._module, (self,))

    def loosen(self) -> None:
        """Give them back the classes they had."""
        for thing in _things(self._module):
            ties = ties_of(thing)
            if self in ties:
                others = tuple(peer for peer in ties if peer is not self)
                thing.__class__ = _class_of(thing, others) if others else type(thing)._plain
        if self.tied:
            del _TIES[self._module]

    # -- parameters in common ----------------------------------------------------------------------------------------

    def others(self, tensor: torch.Tensor) -> list[Ties]:
        """What else a parameter is tied to."""
        return [peer for peer in ties_of(tensor) if peer is not self]

    def note_loaded(self) -> None:
        """The IPUs have the weights that the others have now."""
        self._loaded = {peer: peer.calls for tensor in self._shared for peer in self.others(tensor)}

    def behind(self) -> bool:
        """Whether another executor has trained shared parameters since they were loaded."""
        others = {peer for tensor in self._shared for peer in self.others(tensor)}
        return any(peer.calls > self._loaded.get(peer, 0) for peer in others)


def ties_of(thing: Any) -> tuple[Ties, ...]:
    """What fetches the newest weights for a module, a parameter or a buffer."""
    ties: tuple[Ties, ...] = getattr(type(thing), "_ties", ())
    return ties


def _class_of(thing: Any, ties: tuple[Ties, ...]) -> type:
    """The class of a thing that is tied so; that of another of its kind may be used again."""
    plain = type(thing)._plain if ties_of(thing) else type(thing)
    known = ties[0]._classes
    if (plain, ties) not in known:
        mixin = _Module if isinstance(thing, torch.nn.Module) else _State
        members = {"_ties": ties, "_plain": plain, "__module__": plain.__module__, "__doc__": plain.__doc__}
        known[plain, ties] = type(f"Poptorch{plain.__name__}", (mixin, plain), members)
    return known[plain, ties]


# Ties know their module, so a strong reference to them would keep it, and all of the user's program, forever.
_TiesOfModules: TypeAlias = "weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Ties]]"
_TIES: _TiesOfModules = weakref.WeakKeyDictionary()
_LOOSENED: _TiesOfModules = weakref.WeakKeyDictionary()


def _ties_in(ties: _TiesOfModules, module: torch.nn.Module) -> Ties | None:
    reference = ties.get(module)
    return None if reference is None else reference()


class _Module:
    """A module that looks for newer weights before it shows or uses its own."""

    _ties: ClassVar[tuple[Ties, ...]]
    _plain: ClassVar[type]

    def __getattribute__(self, name: str) -> Any:
        # Whatever reads a module's weights goes through one of these three names.
        if name in ("_parameters", "_buffers", "forward"):
            _fetch(type(self)._ties)
        return super().__getattribute__(name)

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Bring the weights to the host if the IPUs have newer ones; whether they had."""
        return _fetch(type(self)._ties)

    def destroy(self) -> None:
        """Release the IPUs and the program; the module is a plain one again."""
        for ties in type(self)._ties:
            ties.destroy()

    def _get_name(self) -> str:
        return type(self)._plain.__name__

    def __reduce_ex__(self, protocol: Any) -> Any:
        _fetch(type(self)._ties)
        # Protocol 2 puts constructor and arguments first. Both would name the tied class, the rest is the state.
        state = tuple(super().__reduce_ex__(2))[2:]
        return (cast(Any, copyreg)._reconstructor, (type(self)._plain, object, None), *state)


class _State:
    """A parameter or buffer of such a module."""

    _ties: ClassVar[tuple[Ties, ...]]
    _plain: ClassVar[type]

    def __getattribute__(self, name: str) -> Any:
        _fetch(type(self)._ties)
        return super().__getattribute__(name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Operations on it read the newest numbers; their results are plain tensors."""
        _fetch(cls._ties)
        # Otherwise results would be of this class as well and fetch with every use.
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def _bare(self) -> torch.Tensor:
        """A plain tensor or parameter with this one's memory."""
        tensor: torch.Tensor = self.detach()
        if issubclass(type(self)._plain, torch.nn.Parameter):
            return torch.nn.Parameter(tensor, self.requires_grad)
        return tensor

    def __copy__(self) -> torch.Tensor:
        return self._bare()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            # The bare tensor lives for this call only, so its id must not enter the shared memo.
            memo[id(self)] = copy.deepcopy(self._bare(), {})
        copied: torch.Tensor = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._bare().__reduce_ex__(protocol)


def _fetch(ties: tuple[Ties, ...]) -> bool:
    """Bring the newest weights of each of them to the host; whether there were any."""
    return sum(tie.fetch() for tie in ties) > 0


def _things(module: torch.nn.Module) -> list[Any]:
    """Modules, parameters and buffers of a module."""
    return [*module.modules(), *module.parameters(), *module.buffers()]


def fetch_weights(module: torch.nn.Module) -> None:
    """Bring the newest weights of a module, or of one around it, to the host."""
    for thing in _things(module):
        _fetch(ties_of(thing))


@contextmanager
def plain(module: torch.nn.Module) -> Iterator[None]:
    """Within, the module and all it holds have their plain classes; the newest weights are on the host."""
    fetch_weights(module)
    classes = [(thing, type(thing)) for thing in _things(module) if isinstance(thing, _Module | _State)]
    try:
        for thing, kind in classes:
            thing.__class__ = kind._plain
        yield
    finally:
        for thing, kind in classes:
            thing.__class__ = kind


def unwrap(module: torch.nn.Module) -> None:
    """Loosen the ties of a module that has some, its newest weights on the host, until :func:`rewrap`."""
    ties = _ties_in(_TIES, module)
    if ties is not None:
        ties.fetch()
        ties.loosen()
        _LOOSENED[module] = weakref.ref(ties)


def rewrap(module: torch.nn.Module) -> None:
    """Tie a module again that :func:`unwrap` has loosened."""
    ties = _ties_in(_LOOSENED, module)
    _LOOSENED.pop(module, None)
    if ties is not None and ties._executor() is not None:
        ties.tie()
