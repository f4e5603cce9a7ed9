"""The ops of a compiled model in the layout in which PopART writes its IR as JSON.

``{"maingraph": [op, ...]}``: each op once, those of called graphs (loops, routines of stages, updates) where they are
first called, as PopART's own main graph has no calls either. An op has ``type``, ``version``, ``domain``, ``name``,
``inputs`` (each with ``name``, ``shape``, ``type``, ``index``), ``outputs`` (``name``, ``index``) and ``attributes``;
every value is a string. Ops are those of ipuperf's program, in its words, so the domain is ``ipuperf``; the op that
changes a weight bears PopART's word for the optimiser. Of several convolutions in one op each attribute has the number
of the convolution.

Source: popart: willow/src/opserialiser.cpp; poptorch: tests/multiconv_test.py, tests/optimizers_test.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from ipuperf.ir import DType, Graph, Op, Tensor, Variable
from ipuperf.ops import Convolutions

from .compilation import CompiledModel

_VERSION, _DOMAIN = 1, "ipuperf"
_TYPES = {"float32": "FLOAT", "float16": "FLOAT16", "int32": "INT32", "uint32": "UINT32", "bool": "BOOL"}
_TYPES |= {"int8": "INT8", "uint8": "UINT8", "int16": "INT16", "uint16": "UINT16", "int64": "INT64", "uint64": "UINT64"}
_UPDATES = {"adam": "AdamVarUpdate", "adamw": "AdamVarUpdate", "lamb": "AdamVarUpdate", "rmsprop": "ScaledVarUpdate"}


def serialised(compiled: CompiledModel) -> str:
    """The JSON of a compiled model."""
    writer = _Writer(compiled)
    ops = [writer.described(op) for op in writer.ops(compiled.exported.ir.main_graph)]
    return json.dumps({"maingraph": ops})


class _Writer:
    """Describes the ops of one program."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._rule = compiled.rule
        self._stands_for: dict[Tensor, Tensor] = {}
        self._trained = {compiled.exported.variables[name] for name in compiled.exported.parameters}
        self._seen: set[Graph] = set()

    def ops(self, graph: Graph) -> Iterator[Op]:
        """Ops of a graph; calls give way to what they call, the first time."""
        self._seen.add(graph)
        for op in graph.ops:
            calls = op.calls()
            if not calls:
                yield op
            for callee, operands in calls:
                for parameter, outer in zip(callee.inputs, operands, strict=False):
                    self._stands_for.setdefault(parameter, self._stands_for.get(outer, outer))
                if callee not in self._seen:
                    yield from self.ops(callee)

    def described(self, op: Op) -> dict[str, Any]:
        """An op."""
        return {
            "type": self._type(op),
            "version": str(_VERSION),
            "domain": _DOMAIN,
            "name": "/".join(part for part in (op.graph.name, op.scope, op.label) if part),
            "inputs": [
                {"name": t.id, "shape": _shown(t.shape), "type": _shown(t.dtype), "index": str(index)}
                for index, t in enumerate(op.inputs)
            ],
            "outputs": [{"name": t.id, "index": str(index)} for index, t in enumerate(op.outputs)],
            "attributes": {name: _shown(value) for name, value in _attributes(op) if value is not None},
        }

    def _type(self, op: Op) -> str:
        """PopART's word for what changes a weight in a weight update, else the op's own."""
        changed = [self._stands_for.get(op.inputs[i], op.inputs[i]) for i in op.modified_inputs()]
        trained = [tensor for tensor in changed if isinstance(tensor, Variable) and tensor in self._trained]
        if self._rule is None or op.phase != "update" or not trained:
            return op.type
        variable = trained[0]
        kind = self._rule.spec.kind
        if kind != "sgd":
            return _UPDATES.get(kind, op.type)
        if not self._rule.has_momentum(variable):
            return "SGD0VarUpdate"
        return "SGD1VarUpdate" if self._rule.combined(variable) is not None else "SGD2VarUpdate"


def _attributes(op: Op) -> Iterator[tuple[str, Any]]:
    """Attributes by name, those of the parts of a :class:`Convolutions` by name and number."""
    for name, value in op.attributes.items():
        if isinstance(op, Convolutions) and name == "parts":
            for number, part in enumerate(value):
                yield from ((f"{key}[{number}]", attribute) for key, attribute in part.attributes)
        else:
            yield name, value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list | np.ndarray):
        return f"[{' '.join(_shown(part) for part in value)}]"
    if isinstance(value, DType):
        return _TYPES.get(value.name, value.name.upper())
    return str(value.id if isinstance(value, Tensor) else value)
