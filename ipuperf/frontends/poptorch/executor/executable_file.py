"""``compileAndExport``, ``save``, ``loadExecutable`` and ``poptorch.load``: a compiled model in one file.

The file holds what the program is lowered from: the export of the module, for training or inference, and with
``export_model`` also the options, the numbers of parameters and buffers, the optimiser's description and the state of
the random numbers. Nothing of it is code (:mod:`..export.codec`), so ``poptorch.load`` cannot give the user's
class back: the model it gives runs the exported ops, with PyTorch on the host and as ever on the IPUs.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..errors import Error
from ..export.codec import NotStorable, decode, encode, restored, stored
from ..export.module import ExportedModel
from ..export.structure import Structure, flatten, rebuild
from ..optimisers.classes import OptimiserGroup, OptimiserSpec
from ..optimisers.replica_groups import one_replica
from . import archive
from .program import Task

_KIND = "executable"
_NAME = "model.poptorch"
_PREFIX = "module."


def path_of(filename: str | os.PathLike[str]) -> Path:
    """The file; in a folder it is called ``model.poptorch``."""
    path = Path(filename)
    return path / _NAME if path.is_dir() else path


class StoredProgram:
    """What a file holds.

    Attributes:
        training: whether it is a training program.
        traced: the export.
        arguments: structure of the arguments of a micro-batch, with the tensors' shapes on ``meta`` in ``leaves``.
        leaves: a tensor on ``meta`` for each.
        signature: names, kinds and defaults of the arguments of ``forward``.
        model: options, states and optimiser, None without ``export_model``.
    """

    def __init__(self, content: Mapping[str, Any], tensors: list[torch.Tensor]) -> None:
        self.training: bool = content["training"]
        self.traced = restored(content["export"], tensors)
        self.arguments: Structure = decode(content["arguments"], tensors)
        self.leaves: list[torch.Tensor] = [
            torch.empty(shape, dtype=decode(dtype, tensors), device="meta") for shape, dtype in content["leaves"]
        ]
        self.signature = inspect.Signature(
            [
                # A default stands in a list of its own, because None is a default too.
                inspect.Parameter(name, inspect._ParameterKind[kind], default=decode(default[0], tensors))
                if default
                else inspect.Parameter(name, inspect._ParameterKind[kind])
                for name, kind, *default in content["signature"]
            ]
        )
        self.model: dict[str, Any] | None = decode(content["model"], tensors)

    @property
    def kind(self) -> str:
        """``training`` or ``inference``."""
        return "training" if self.training else "inference"

    def check(self, task: Task) -> None:
        """Raise :class:`Error` where the module of a task is not that of the program."""
        with one_replica(task.module, task.grouped, task.options.replication_factor):
            missing = self._missing_in(task.module)
        if missing:
            raise Error(f"the stored program is that of another module: {'; '.join(missing)}")

    def _missing_in(self, module: torch.nn.Module) -> list[str]:
        """What a module lacks of the parameters and buffers that the program uses."""
        known = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
        complaints = []
        program = self.traced.program
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                name, expected = str(spec.target).removeprefix(_PREFIX), node.meta["val"]
                have = known.get(name)
                if have is None or (have.shape, have.dtype) != (expected.shape, expected.dtype):
                    shown = "not there" if have is None else f"of shape {tuple(have.shape)}, {have.dtype}"
                    complaints.append(f"{name} is {shown}, expected shape {tuple(expected.shape)}, {expected.dtype}")
        return complaints


def read(filename: str | os.PathLike[str]) -> StoredProgram:
    """The program of a file.

    Raises:
        FileNotFoundError: there is none.
        FileError: not a file of ours, damaged, or of another version.
    """
    path = path_of(filename)
    content, tensors = archive.read(path, _KIND)
    try:
        return StoredProgram(content, tensors)
    # A damaged file fails wherever its content leads, so all these errors mean damage.
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise archive.FileError(f"{path}: damaged, or made with classes that are not loaded: {error}") from error


def write(
    filename: str | os.PathLike[str], exported: ExportedModel, training: bool, model: Mapping[str, Any] | None
) -> None:
    """Write a program.

    Args:
        model: options, states, optimiser, random state.

    Raises:
        Error: the program holds something that a file cannot (the message names it).
    """
    tensors: list[torch.Tensor] = []
    try:
        content = {
            "training": training,
            "export": stored(exported.traced, tensors),
            "arguments": encode(exported.arguments, tensors),
            "leaves": [[list(spec.shape), encode(spec.dtype, tensors)] for spec in exported.inputs],
            "signature": [
                [p.name, p.kind.name, *([] if p.default is p.empty else [encode(p.default, tensors)])]
                for p in exported.signature.parameters
            ],
            "model": encode(model, tensors),
        }
    except NotStorable as error:
        raise Error(f"{filename}: the model cannot be stored: it has {error}") from error
    archive.write(path_of(filename), _KIND, content, tensors)


def description_of(task: Task, random: list[int] | None) -> dict[str, Any]:
    """What ``export_model`` adds to a file."""
    parameters = dict(task.module.named_parameters(remove_duplicate=False))
    return {
        "options": task.options,
        "parameters": {name: tensor.data for name, tensor in _shared(parameters).items()},
        "trainable": [name for name, parameter in parameters.items() if parameter.requires_grad],
        "same": {name: first_name for name, first_name in _first_names(parameters).items() if name != first_name},
        "buffers": dict(task.module.named_buffers(remove_duplicate=False)),
        "optimiser": None if task.optimiser is None else _optimiser(task.optimiser, parameters),
        "random": random,
        "grouped": {name: list(map(int, setting)) for name, setting in task.grouped.items()},
    }


def _first_names(parameters: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The first name of each parameter: tied ones have several."""
    firsts: dict[int, str] = {}
    return {name: firsts.setdefault(id(parameter), name) for name, parameter in parameters.items()}


def _shared(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: parameters[name] for name, first_name in _first_names(parameters).items() if name == first_name}


def _optimiser(spec: OptimiserSpec, parameters: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    # Reversed, so that the first name of a tied parameter wins, as in `_first_names`.
    names = {id(parameter): name for name, parameter in reversed(list(parameters.items()))}
    plain = {f.name: getattr(spec, f.name) for f in fields(spec) if f.name != "groups"}
    groups = [[dict(g.values), [names[id(p)] for p in g.parameters if id(p) in names]] for g in spec.groups]
    return {**plain, "groups": groups}


def optimiser_of(stored: Mapping[str, Any] | None, module: torch.nn.Module) -> OptimiserSpec | None:
    """The optimiser's description for the parameters of ``module``."""
    if stored is None:
        return None
    known = dict(module.named_parameters(remove_duplicate=False))
    groups = tuple(OptimiserGroup(values, tuple(known[n] for n in names)) for values, names in stored["groups"])
    return OptimiserSpec(**{**stored, "groups": groups})


class StoredModule(torch.nn.Module):
    """A module that runs the ops of an export; parameters and buffers have the names they had."""

    def __init__(self, program: StoredProgram) -> None:
        super().__init__()
        assert program.model is not None
        self._program = program
        states = program.model
        known = {
            name: torch.nn.Parameter(value, requires_grad=name in states["trainable"])
            for name, value in states["parameters"].items()
        }
        known.update({name: known[first_name] for name, first_name in states["same"].items()})
        for name, parameter in known.items():
            owner, _, attribute = name.rpartition(".")
            self._owner(owner).register_parameter(attribute, parameter)
        for name, buffer in states["buffers"].items():
            owner, _, attribute = name.rpartition(".")
            self._owner(owner).register_buffer(attribute, buffer)
        self.train(program.training)

        # forward belongs to the instance: its signature differs from file to file.
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs)

        vars(forward)["__signature__"] = program.signature
        self.forward = forward

    def _owner(self, path: str) -> torch.nn.Module:
        owner: torch.nn.Module = self
        for part in path.split(".") if path else ():
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            member = owner._modules[part]
            assert member is not None
            owner = member
        return owner

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One micro-batch on the host."""
        program, traced = self._program.traced.program, self._program.traced
        bound = dict(self._program.signature.bind(*args, **kwargs).arguments)
        _, leaves, _ = flatten(bound, like=self._program.arguments)
        if [tuple(t.shape) for t in leaves] != [tuple(t.shape) for t in self._program.leaves]:
            raise Error(
                f"the stored model takes tensors of the shapes {[tuple(t.shape) for t in self._program.leaves]}, "
                f"{[tuple(t.shape) for t in leaves]} given"
            )
        states = {**dict(self.named_parameters(remove_duplicate=False)), **dict(self.named_buffers())}
        arguments = iter(leaves)
        inputs = [
            next(arguments)
            if spec.kind is InputKind.USER_INPUT
            else program.constants[spec.target]
            if spec.kind is InputKind.CONSTANT_TENSOR
            else states[spec.target.removeprefix(_PREFIX)]
            for spec in program.graph_signature.input_specs
        ]
        values = torch.fx.Interpreter(program.graph_module).run(*inputs)
        # Inputs that the program changes go by the names of its inputs.
        states.update(zip(program.graph_signature.user_inputs, leaves, strict=True))
        results = []
        for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                results.append(value)
            else:  # a buffer or an input that changes
                with torch.no_grad():
                    states[str(spec.target).removeprefix(_PREFIX)].copy_(value)
        return rebuild(traced.results, results.__getitem__)
