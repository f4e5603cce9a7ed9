"""Marking the parts of a model: ``Block``, ``BeginBlock``, ``BlockFunction``, and the protocol behind them.

Outside of compilation ``Block._stages_manager`` is ``None`` and every mark is a no-op, so a marked model runs natively
in PyTorch. While a model is being exported it is a :class:`StagesManager`; :func:`record_blocks` puts one in place and
gives the :class:`BlockRecorder` whose ``current`` tags each op. Semantics (``docs/reference/pipelines.md`` 1.1):
leaving a ``Block`` leaves *no* block active, also inside another block; ``BeginBlock`` starts a block and never ends
it.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import torch

from ipuperf.runtime.replacing import replaced

from .errors import Error, require

BEFORE_FIRST_BLOCK = -1
NO_ACTIVE_BLOCK = "No active Block, all the ops must belong to a Block"

_Module = TypeVar("_Module", bound=Callable[..., Any])


class BlockUse(NamedTuple):
    """One entry into a block: its id and the ``ipu_id`` given with it (None: not given)."""

    user_id: str
    ipu_id: int | None


class StagesManager(Protocol):
    """What ``Block`` and its relatives talk to while a model is compiled."""

    def beginStage(self, user_id: str | None, ipu_id: int | None) -> None:
        """A block begins; ``None`` as ``user_id`` asks for the next automatic id."""

    def endStage(self) -> None:
        """The active block ends and none follows."""

    def nextAutoId(self) -> str:
        """``"0"``, ``"1"`` ... counted since the last :meth:`resetAutoId`."""

    def resetAutoId(self) -> None:
        """Begin automatic ids at ``"0"`` again."""


class BlockRecorder:
    """The :class:`StagesManager` of an export: remembers every entry into a block in program order.

    Attributes:
        uses: the entries so far; an entry into the block that is already active adds none.
        current: index into ``uses`` of the active entry, :data:`BEFORE_FIRST_BLOCK` before the first, or None when a
            ``with Block`` has ended and no other block has begun.
        bodies: names of the bodies of conditionals that are being recorded, the innermost one last.
        multi_convs: the ``MultiConv`` scopes that were entered.
        multi_conv: index of the one that is being recorded, or None.
        training: whether the program trains.
    """

    def __init__(self, training: bool = False) -> None:
        self.uses: list[BlockUse] = []
        self.current: int | None = BEFORE_FIRST_BLOCK
        self.bodies: list[str] = []
        self.multi_convs: list[Any] = []
        self.multi_conv: int | None = None
        self.training = training
        self._next_auto_id = 0
        self._conditionals = 0

    def begin(self) -> None:
        """A call of the model begins: nothing has been recorded of it."""
        self.uses.clear()
        self.current = BEFORE_FIRST_BLOCK
        self.bodies.clear()
        self.multi_convs.clear()
        self.multi_conv = None
        self._conditionals = 0

    def conditional(self) -> int:
        """The number of a new conditional."""
        self._conditionals += 1
        return self._conditionals - 1

    @contextmanager
    def body(self, name: str) -> Iterator[None]:
        """What is recorded within is in the body of this name."""
        self.bodies.append(name)
        try:
            yield
        finally:
            self.bodies.pop()

    def beginStage(self, user_id: str | None, ipu_id: int | None) -> None:
        """See :class:`StagesManager`."""
        use = BlockUse(self.nextAutoId() if user_id is None else str(user_id), ipu_id)
        if self.current is not None and self.current >= 0 and self.uses[self.current] == use:
            return
        self.uses.append(use)
        self.current = len(self.uses) - 1

    def endStage(self) -> None:
        """See :class:`StagesManager`."""
        self.current = None

    def nextAutoId(self) -> str:
        """See :class:`StagesManager`."""
        self._next_auto_id += 1
        return str(self._next_auto_id - 1)

    def resetAutoId(self) -> None:
        """See :class:`StagesManager`."""
        self._next_auto_id = 0

    def tag(self, op: str = "") -> int:
        """The tag of an op met now: an index into ``uses`` or :data:`BEFORE_FIRST_BLOCK`.

        Raises :class:`~.errors.Error` with upstream's words if no block is active.
        """
        if self.current is None:
            raise Error(f"{NO_ACTIVE_BLOCK}{f' (op {op})' if op else ''}")
        return self.current


@contextmanager
def record_blocks(training: bool = False) -> Iterator[BlockRecorder]:
    """Let blocks be recorded for the duration of the ``with`` statement (compilation of one model)."""
    recorder = BlockRecorder(training)
    with replaced(Block, _stages_manager=recorder):
        yield recorder


def recorder() -> BlockRecorder | None:
    """What records the model that is being exported, None outside of an export."""
    manager = Block._stages_manager
    return manager if isinstance(manager, BlockRecorder) else None


def isRunningOnIpu() -> bool:
    """True while a model is compiled for IPUs, False when the same code runs natively in PyTorch."""
    return Block._stages_manager is not None


class Block:
    """``with poptorch.Block("encoder", ipu_id=0):`` the ops inside belong to this block.

    Args:
        user_id: blocks of one id are one block; None takes the next automatic id.
        ipu_id: IPU of the replica, used unless the block's ``Stage`` names one.
    """

    _stages_manager: ClassVar[StagesManager | None] = None

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        _check_ids(user_id, ipu_id)
        self._user_id = user_id
        self._ipu_id = ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Begin automatic ids at ``"0"``; called first in ``forward``."""
        if Block._stages_manager is not None:
            Block._stages_manager.resetAutoId()

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until another begins."""
        _check_ids(user_id, ipu_id)
        if Block._stages_manager is not None:
            Block._stages_manager.beginStage(user_id, ipu_id)

    def __enter__(self) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __exit__(self, *exception: object) -> None:
        if Block._stages_manager is not None:
            Block._stages_manager.endStage()


class _BlockHook:
    """Forward pre-hook that begins a block; it keeps the automatic id it got the first time."""

    def __init__(self, user_id: str | None, ipu_id: int | None) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin the block if a model is being compiled."""
        if Block._stages_manager is not None:
            # The id stays with the hook, so that a later trace records the same block.
            if self._user_id is None:
                self._user_id = Block._stages_manager.nextAutoId()
            Block._stages_manager.beginStage(self._user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


def BeginBlock(layer_to_call: _Module, user_id: str | None = None, ipu_id: int | None = None) -> _Module:
    """Let a block begin whenever ``layer_to_call`` is called; it lasts until another begins.

    A module gets a forward pre-hook and is returned itself; another callable is wrapped. Raises :class:`~.errors.Error`
    for a module that already has a block and for what is not callable.
    """
    _check_ids(user_id, ipu_id)
    hook = _BlockHook(user_id, ipu_id)
    if isinstance(layer_to_call, torch.nn.Module):
        if any(isinstance(known, _BlockHook) for known in layer_to_call._forward_pre_hooks.values()):
            raise Error(
                f"BeginBlock: this {type(layer_to_call).__name__} has a block already; removeBlocks() takes it away"
            )
        # What other hooks compute (weight_norm) belongs to the module, so the block begins before them.
        layer_to_call.register_forward_pre_hook(hook, prepend=True)
        return layer_to_call
    if not callable(layer_to_call):
        raise Error(f"BeginBlock: {type(layer_to_call).__name__} is neither a torch.nn.Module nor a function.")

    return cast(_Module, _Beginning(layer_to_call, user_id, ipu_id))


class _Beginning:
    """A function with which a block begins; it can be saved, and stand for a method."""

    def __init__(self, function: Callable[..., Any], user_id: str | None, ipu_id: int | None) -> None:
        functools.update_wrapper(self, function)
        self._hook = _BlockHook(user_id, ipu_id)
        self._user_id, self._ipu_id = user_id, ipu_id
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._hook.begin()
        return self._function(*args, **kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)


def module_repr(module: torch.nn.Module) -> str:
    """``repr(module)`` in which each module with which a block begins says so: ``BeginBlock(user_id=None, ipu_id=1)``
    stands before it."""
    require(isinstance(module, torch.nn.Module), f"module_repr takes a torch.nn.Module, got {type(module).__name__}")
    marks = [str(hook) for hook in module._forward_pre_hooks.values() if isinstance(hook, _BlockHook)]
    lines = module.extra_repr().splitlines()
    for name, member in module.named_children():
        text = module_repr(member).replace("\n", "\n  ")
        lines.append(f"({name}): {text}")
    if len(lines) > 1 or module._modules:
        text = f"{module._get_name()}(\n  " + "\n  ".join(lines) + "\n)"
    else:
        text = f"{module._get_name()}({''.join(lines)})"
    return " ".join([*marks, text])


def removeBlocks(module: torch.nn.Module) -> None:
    """Take all :func:`BeginBlock` marks from ``module`` and the modules in it."""
    require(isinstance(module, torch.nn.Module), f"removeBlocks takes a torch.nn.Module, got {type(module).__name__}")
    for member in module.modules():
        hooks = member._forward_pre_hooks
        member._forward_pre_hooks = OrderedDict((k, h) for k, h in hooks.items() if not isinstance(h, _BlockHook))


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[_Module], _Module]:
    """Decorator: every call of the function runs inside ``Block(user_id, ipu_id)``."""
    _check_ids(user_id, ipu_id)

    def decorate(function: _Module) -> _Module:
        @functools.wraps(function)
        def inside_block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return cast(_Module, inside_block)

    return decorate


def _check_ids(user_id: object, ipu_id: object) -> None:
    named = isinstance(user_id, str) or (isinstance(user_id, int) and not isinstance(user_id, bool) and user_id >= 0)
    require(user_id is None or named, f"Block: user_id {user_id!r} given, expected a string or a number from 0")
    placed = isinstance(ipu_id, int) and not isinstance(ipu_id, bool) and ipu_id >= 0
    require(ipu_id is None or placed, f"Block: ipu_id {ipu_id!r} given, expected a number from 0")
