"""What an export depends on, as a digest: the module's code and attributes, shapes, arguments and PyTorch's modes.

Code is followed by names from the methods of the module's classes: functions, classes and global values that they
name, and what those name, wherever they are the user's own. Of a namespace (that of ``argparse``, say) the attributes
count that the code names. Code of installed packages counts by its package's version
and the time its file was changed, and by what a program has put into its classes and modules; what changes their
behaviour besides (a flag in such a module) is not looked at. Code that asks for the environment counts by the variables
that it names. The numbers of parameters and buffers play no part, those of other tensors do.
"""

from __future__ import annotations

import argparse
import dis
import enum
import functools
import hashlib
import logging
import os
import re
import struct
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

_PLAIN: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, range, slice, type(...))
_PLAIN += (torch.dtype, torch.device, torch.layout, torch.memory_format, re.Pattern, PurePath, np.generic, np.dtype)
_BUILT_IN: tuple[type, ...] = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType)
_BUILT_IN += (types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)
_BUILT_IN += (types.ClassMethodDescriptorType,)
#: The flag of classes that a program has made (``Py_TPFLAGS_HEAPTYPE``): code without a ``__name__`` makes some that
#: call themselves built in.
_MADE_BY_CODE = 1 << 9
#: Objects that are no more than their attributes.
_NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
_ENVIRONMENT = frozenset({"environ", "getenv"})
#: Attributes that no export sees: caches and hooks of PyTorch's own, gradients.
_UNSEEN = frozenset({"_is_full_backward_hook", "_non_persistent_buffers_set", "grad", "_compiled_call_impl"})


class UnknownContent(Exception):
    """Something that cannot be told from another of its kind; the message names it."""


def digest_of(*values: Any) -> str:
    """A digest that is equal in every process for equal content.

    Raises:
        UnknownContent: there is an object whose content cannot be seen.
    """
    digest = _Digest()
    # These modes change what an export gives and show nowhere in the module.
    modes: tuple[Any, ...] = (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())
    modes += (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_grad_enabled())
    modes += (torch.get_default_device(),)
    for value in (modes, *values):
        digest.add(value)
    return digest.sha.hexdigest()


class _Digest:
    """Walks through objects; one that was met before is told by its number."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self._met: dict[int, int] = {}
        self._kept: list[Any] = []
        self._storages: dict[int, int] = {}

    def say(self, *words: Any) -> None:
        """Add plain words."""
        self.sha.update(repr(words).encode())

    def add(self, value: Any) -> None:
        """Add the content of ``value``."""
        # Members of an IntEnum are integers too, so enumerations come first.
        if isinstance(value, enum.Enum):
            self.say(type(value).__qualname__, value.name)
        elif isinstance(value, _PLAIN):
            self.say(type(value).__name__, value)
        elif type(value) in (tuple, frozenset):  # whether two equal ones are one object differs between processes
            self._add_new(value)
        elif isinstance(value, type):
            self.say("type")
            self._class(value)
        elif id(value) in self._met:
            self.say("again", self._met[id(value)])
        else:
            self._met[id(value)] = len(self._met)
            self._kept.append(value)  # an id is that of one object as long as the object is there
            self._add_new(value)

    def _add_new(self, value: Any) -> None:
        for kinds, how in self._HOW:
            if isinstance(value, kinds):
                self.say(type(value).__name__)
                how(self, value)
                return
        if _hides(type(value)):
            raise UnknownContent(f"{value!r} of type {type(value).__module__}.{type(value).__qualname__}")
        self._object(value)

    # -- data --------------------------------------------------------------------------------------------------------

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        self._class(type(value))
        for key, member in value.items():
            self.add(key)
            self.add(member)

    def _sequence(self, value: Iterable[Any]) -> None:
        self._class(type(value))
        items = list(value)
        self.say(len(items))
        for member in items:
            self.add(member)

    def _set(self, value: Iterable[Any]) -> None:
        # Sets have no order, so members count by their digests, which are sorted.
        self.say(sorted(digest_of(member) for member in value))

    def _tensor(self, value: torch.Tensor) -> None:
        self._shape(value)
        if value.device.type != "meta":
            # The numbers are read as bytes, because NumPy has no bfloat16.
            numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self.say(hashlib.sha256(numbers.numpy().tobytes()).hexdigest())

    def _shape(self, value: torch.Tensor) -> None:
        if value.layout != torch.strided or value.is_quantized:
            raise UnknownContent(f"a tensor of layout {value.layout}")
        # Which tensors share memory matters; where it lies does not.
        storage = self._storages.setdefault(value.untyped_storage()._cdata, len(self._storages))
        self.say(tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device.type)
        self.say(value.requires_grad, storage)

    def _array(self, value: np.ndarray) -> None:
        self.say(value.shape, value.dtype.str, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest())

    def _module(self, value: torch.nn.Module) -> None:
        """A module with its own code; of parameters and buffers the shapes."""
        self._class(type(value))
        for name, member in vars(value).items():
            if name in ("_parameters", "_buffers"):
                for tensor_name, tensor in member.items():
                    self.say(name, tensor_name, tensor is None)
                    if tensor is not None:
                        self._shape(tensor)
            elif name.endswith("_hooks") and isinstance(member, dict):  # by numbers that count all hooks of a process
                self.say(name)
                self._sequence(member.values())
            elif name not in _UNSEEN:
                self.say(name)
                self.add(member)

    def _handle(self, value: torch.utils.hooks.RemovableHandle) -> None:
        """What removes a hook; the hook itself is told where it hangs."""

    def _object(self, value: Any) -> None:
        self._class(type(value))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name) and name != "__weakref__" and name != "__dict__":
                    self.say(name)
                    self.add(getattr(value, name))
        for name, member in getattr(value, "__dict__", {}).items():
            self.say(name)
            self.add(member)

    # -- code --------------------------------------------------------------------------------------------------------

    def _class(self, kind: type) -> None:
        """A class: its name, and where it is the user's own, the code of its methods and of its bases."""
        if kind.__module__ == "builtins" and not kind.__flags__ & _MADE_BY_CODE:
            self.say(kind.__qualname__)
        elif id(kind) in self._met:
            self.say("again", self._met[id(kind)])
        else:
            self._met[id(kind)] = len(self._met)
            self._kept.append(kind)
            self.say("class", kind.__module__, kind.__qualname__)
            if self._installed(kind.__module__):
                self._replaced_in(kind)
            else:
                for base in kind.__bases__:
                    self._class(base)
                for name, member in sorted(vars(kind).items()):
                    if name not in ("__dict__", "__weakref__", "__doc__") and not name.startswith(("_abc_", "__abc")):
                        self.say(name)
                        self.add(member)

    def _replaced_in(self, kind: type) -> None:
        """The methods of an installed class, or of its bases, that a program has replaced."""
        for base in kind.__mro__:
            for name, member in vars(base).items():
                if _is_the_users(member):
                    self.say("replaced", name)
                    self.add(member)

    def _function(self, value: types.FunctionType) -> None:
        self.say(value.__module__, value.__qualname__)
        if self._installed(value.__module__):
            return
        self._code(value.__code__, value.__globals__)
        for member in (value.__defaults__, value.__kwdefaults__, value.__dict__):
            self.add(member)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self.say(name)
            if _filled(cell):
                self.add(cell.cell_contents)

    def _code(self, code: types.CodeType, scope: Mapping[str, Any]) -> None:
        """Instructions, constants and lines (messages name them), and the global values that are named."""
        self.say(code.co_code, code.co_names, code.co_varnames, code.co_filename, code.co_firstlineno)
        self.say(code.co_linetable, code.co_flags)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, scope)
            else:
                self.add(constant)
        if not _ENVIRONMENT.isdisjoint(code.co_names):
            names = [constant for constant in code.co_consts if isinstance(constant, str)]
            self.say([(name, os.environ.get(name)) for name in names])
        for chain in _chains(code):
            self._named(chain, scope)

    def _named(self, chain: tuple[str, ...], scope: Mapping[str, Any]) -> None:
        """What a name such as ``layers.scaled`` means; a module is not looked into further than it is named, an
        installed one only for what a program has put there."""
        if chain[0] not in scope:
            return
        meaning = scope[chain[0]]
        for name in chain[1:]:
            if type(meaning) in _NAMESPACES:
                self._class(type(meaning))
                if not hasattr(meaning, name):
                    self.say(chain, "is not there")
                    return
                meaning = getattr(meaning, name)
                continue
            # What another object holds is walked through with the object.
            if not isinstance(meaning, types.ModuleType):
                break
            if not self._installed(meaning.__name__):
                meaning = getattr(meaning, name, None)
                continue
            member = vars(meaning).get(name)
            if not (isinstance(member, types.ModuleType) or _is_the_users(member)):
                break
            meaning = member
        self.say(chain)
        self.add(meaning)

    def _installed(self, module: str | None) -> bool:
        """Whether code of this module counts by the version of its package, which is then added."""
        stamp = _installed(module or "")
        if stamp is not None:
            self.say(stamp)
        return stamp is not None

    def _by_name(self, value: Any) -> None:
        self.say(getattr(value, "__name__", ""), getattr(value, "name", ""), _installed(getattr(value, "__name__", "")))

    def _built_in(self, value: Any) -> None:
        self.say(getattr(value, "__qualname__", str(value)))
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.add(owner)

    def _method(self, value: types.MethodType) -> None:
        self.add(value.__func__)
        self.add(value.__self__)

    def _partial(self, value: Any) -> None:
        for part in (value.func, value.args, value.keywords):
            self.add(part)

    def _wrapped(self, value: Any) -> None:
        self.add(value.__func__ if hasattr(value, "__func__") else value.__wrapped__)

    def _property(self, value: Any) -> None:
        for accessor in (value.fget, value.fset, value.fdel):
            self.add(accessor)

    _HOW: tuple[tuple[Any, Callable[[_Digest, Any], None]], ...] = (
        (torch.nn.Module, _module),
        (torch.utils.hooks.RemovableHandle, _handle),
        (torch.Tensor, _tensor),
        (np.ndarray, _array),
        ((dict, Mapping), _mapping),
        ((list, tuple), _sequence),
        ((set, frozenset), _set),
        (types.FunctionType, _function),
        (types.MethodType, _method),
        ((functools.partial, functools.partialmethod), _partial),
        ((staticmethod, classmethod, functools._lru_cache_wrapper), _wrapped),
        (property, _property),
        ((types.ModuleType, logging.Logger, torch._ops.OpOverload, torch._ops.OpOverloadPacket), _by_name),
        (_BUILT_IN, _built_in),
    )


def _is_the_users(value: Any) -> bool:
    """Whether a function or class is of a module that is not installed."""
    return isinstance(value, (types.FunctionType, type)) and _installed(value.__module__ or "") is None


def _hides(kind: type) -> bool:
    """Whether objects of a class have a state besides their attributes: that of a class written in C."""
    slots = [kind.__dict__.get("__slots__", ()) for kind in kind.__mro__]
    count = sum(1 if isinstance(names, str) else len(names) for names in slots)
    count += (kind.__dictoffset__ != 0) + (kind.__weakrefoffset__ != 0)
    # Memory beyond slots, dictionary and weak references belongs to C code, which cannot be looked into.
    return kind.__basicsize__ > object.__basicsize__ + struct.calcsize("P") * count or kind.__itemsize__ != 0


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=4096)
def _chains(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Global names of a code with all attributes that are read of them: ``("torch", "nn", "functional")``."""
    chains: dict[tuple[str, ...], None] = {}
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, instruction.argval)
        elif instruction.opname not in ("CACHE", "EXTENDED_ARG"):
            # A chain without its last names would be the whole object, which the code does not see.
            chains[chain] = None
            chain = (instruction.argval,) if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    return tuple(chain for chain in chains if chain)


_STANDARD = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OURS = tuple(os.path.realpath(path) + os.sep for path in (*torch.__path__, str(Path(__file__).parents[3])))


@functools.cache
def _installed(module: str) -> str | None:
    """A word for the version of an installed module, None for the user's own (or one that has no file)."""
    if module == "builtins":  # what is built in has no code; this is somebody's who said no name
        return None
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        if top in sys.stdlib_module_names and module != "__main__":
            return sys.version
        return top if module not in ("__main__", "") and module in sys.builtin_module_names else None
    path = os.path.realpath(file)
    if path.startswith(_OURS):
        return "ours"  # their versions are those of the file
    if not path.startswith(_STANDARD) and f"{os.sep}site-packages{os.sep}" not in path:
        return None
    version = getattr(sys.modules.get(top), "__version__", "")
    return f"{top} {version} {os.stat(path).st_mtime_ns}"
