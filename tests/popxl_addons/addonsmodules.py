"""Modules that ``test_addons_programs.py`` writes programs with."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops

SHAPE = (2, 4)
SPEC = popxl.TensorSpec(SHAPE, popxl.float32)
HOST = np.arange(8, dtype=np.float32).reshape(SHAPE)


class Scaled(addons.Module):
    """``x * w``; with ``seeded`` after dropout."""

    def __init__(self, seeded: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.seeded = seeded

    def build(self, x: popxl.Tensor, seed: popxl.Tensor | None = None) -> popxl.Tensor:
        self.w = self.add_variable_input("w", partial(np.ones, SHAPE), x.dtype)
        return (ops.dropout(x, seed, 0.5) if seed is not None else x) * self.w


class Own(Scaled):
    """As its base, with a gradient of its own; ``how`` says what is wrong with it."""

    def __init__(self, how: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.how = how

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        y = super().build(x)
        self.aux["x"], self.aux["w"], self.aux["factor"] = x, self.w, 3
        return y

    def build_grad(self, dy: popxl.Tensor) -> Any:
        dx = dy * self.aux["w"] * self.aux["factor"]
        if self.how != "no variable":
            wrong = {"no tensor": 3, "shape": ops.sum(dy, 0)}
            self.var_grad["v" if self.how == "no name" else "w"] = wrong.get(self.how, dy * self.aux["x"])
        return {"none": None, "two": (dx, dx), "shape of x": ops.sum(dx, 0)}.get(self.how, dx)


class Keyword(Own):
    def build_grad(self, dy: popxl.Tensor, *, more: int = 1) -> Any:
        return dy


class Outer(addons.Module):
    """A list of modules, one attribute, and one called by its graph."""

    def __init__(self, inline: Any = Scaled, called: Any = Own, **call: Any) -> None:
        super().__init__()
        self.layers = addons.Module.from_list([Scaled(), Scaled()])
        self.one, self.called, self.call = inline(), called(), call

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        for layer in self.layers:
            x = layer(x)
        (x,) = self.call_module(self.called, **self.call)(self.one(x))
        return x


class Doubled(addons.Module):
    """Adds variables by other ways; ``wrong`` names one that is refused."""

    def build(self, x: popxl.Tensor, wrong: str) -> popxl.Tensor:
        group = popxl.gir().replica_grouping(group_size=2)
        zeros = partial(np.zeros, SHAPE)
        self.add_variable_input("a", zeros, x.dtype, True, group)
        self.add_variable_factory(addons.VariableFactory(zeros, name="f"))
        self.add_variable_factory(addons.VariableFactory(zeros, name="f"), "g")
        shard = self.add_replica_sharded_variable_input("s", zeros, x.dtype, True, group, 2)
        factories, _ = Scaled().create_graph(x)
        named = self.add_variable_inputs("inner", factories)
        self.add_input_tensors(3, factories)
        {
            "": lambda: self.add_variable_input("inner.w", zeros, overwrite=True),
            "a": lambda: self.add_variable_input("a", zeros),
            "f": lambda: self.add_variable_factory(addons.VariableFactory(zeros, name="f")),
            "s": lambda: self.add_replica_sharded_variable_input("s", zeros),
            "inner": lambda: self.add_variable_inputs("inner", factories),
            "inner.w": lambda: self.add_variable_input("inner.w", zeros),
            "inner.v": lambda: self.add_variable_input("inner.v", zeros),
            "again": lambda: self.add_variable_inputs("inner", factories, overwrite=True),
        }[wrong]()
        return x * named.w * ops.collectives.replicated_all_gather(shard, group=group)


class ListOfInputs(addons.Module):
    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        self.inputs = addons.Module.from_variable_factories([addons.VariableFactory(partial(np.ones, SHAPE))] * 2)
        return x + self.inputs[0] * self.inputs.get("1")
