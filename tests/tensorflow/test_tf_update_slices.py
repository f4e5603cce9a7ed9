"""How updates of optimizers are cut into the parts of their variables: operations, state, numbers, joint numbers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rows import Golden

pytest.importorskip("tensorflow")

import tensorflow as tf
from answers import answer

from ipuperf.tensorflow.importer import resource_of
from ipuperf.tensorflow.importer.tracer import trace
from ipuperf.tensorflow.pipelining.rule import PipelineRule
from ipuperf.tensorflow.pipelining.update_slices import Slicer, elementwise

raw = tf.raw_ops


def descent(v: Any, g: Any, rate: Any = 0.5) -> None:
    raw.ResourceApplyGradientDescent(var=v.handle, alpha=rate, delta=g)


def momentum(v: Any, m: Any, g: Any) -> None:
    raw.ResourceApplyMomentum(var=v.handle, accum=m.handle, lr=0.5, grad=g, momentum=0.9)


def each(step: Callable[..., Any]) -> Callable[..., None]:
    """The same step for both variables."""

    def update(v: Any, ga: Any, gb: Any) -> None:
        step(v["a"], v["m"], ga)
        step(v["b"], v["n"], gb)

    return update


def clipped(v: Any, ga: Any, gb: Any) -> None:
    (ga, gb), _ = tf.clip_by_global_norm([ga, gb], 1.0)
    each(momentum)(v, ga, gb)


def norm(*tensors: Any) -> Any:
    return tf.sqrt(tf.add_n([tf.reduce_sum(t * t) for t in tensors]))


def counted(v: Any, ga: Any, gb: Any) -> None:
    """Powers of a number that both updates read, and a counter that none does."""
    power = v["power"].assign(v["power"] * 0.9)
    v["step"].assign_add(1.0)
    each(lambda w, m, g: w.assign_sub(g * power))(v, ga, gb)


def counted_by_one(v: Any, ga: Any, gb: Any) -> None:
    descent(v["a"], ga * v["step"])
    descent(v["b"], gb)
    v["step"].assign_add(1.0)
    v["power"].assign(v["step"] * 2)


def named(v: Any, ga: Any, gb: Any) -> None:
    """Gradients that pass an ``IdentityN`` together."""
    ga, gb = tf.identity_n([ga, gb])
    scale = 1 / norm(ga, gb)
    each(lambda w, m, g: descent(w, g * scale))(v, ga, gb)


UPDATES: dict[str, Callable[..., Any]] = {
    "descent": each(lambda w, m, g: descent(w, g)),
    "descent at a rate": each(lambda w, m, g: descent(w, g, tf.constant(0.1) * 2)),
    "momentum": each(momentum),
    "state by hand": each(lambda w, m, g: w.assign_sub(m.assign(m * 0.9 + g))),
    "counted": counted, "counted by one": counted_by_one, "clipped": clipped, "named": named,
    "decay": each(lambda w, m, g: w.assign_sub(0.1 * (g + 0.01 * w))),
    "clipped one by one": each(lambda w, m, g: descent(w, tf.clip_by_norm(g, 1.0))),
    "centred": each(lambda w, m, g: descent(w, g - tf.reduce_mean(g, 0, keepdims=True))),
    "filled": each(lambda w, m, g: w.assign_sub(g * tf.fill([2, 3], tf.reduce_sum(g)))),
    "signs": each(lambda w, m, g: w.assign_sub(tf.sign(g) * tf.constant([[1.0] * 3] * 2))),
    "one variable alone": lambda v, ga, gb: descent(v["a"], ga),
    "a joint number of a joint number": lambda v, ga, gb: [
        descent(w, g * tf.minimum(1.0, 2 / norm(ga, gb))) for w, g in ((v["a"], ga), (v["b"], gb))],
    "a joint number added": lambda v, ga, gb: [descent(w, g + norm(ga, gb)) for w, g in ((v["a"], ga), (v["b"], gb))],
    "joint with a variable": lambda v, ga, gb: descent(v["a"], ga * norm(ga, gb, v["b"])),
    "the other's gradient": lambda v, ga, gb: descent(v["a"], ga + gb),
    "two that are as many as gradients": lambda v, ga, gb: descent(v["a"], ga * tf.reduce_sum(
        tf.stack([tf.reduce_sum(ga), tf.reduce_sum(gb)]))),
    "three that are more": lambda v, ga, gb: descent(v["a"], ga * tf.reduce_sum(
        tf.reduce_sum(ga, 0) * tf.reduce_sum(gb, 0))),
    "into the other": lambda v, ga, gb: descent(v["b"], ga),
    "both into one": lambda v, ga, gb: [descent(v["a"], ga), v["a"].assign_sub(gb)],
    "finite gradients": lambda v, ga, gb: [
        w.assign_sub(tf.where(tf.math.is_finite(norm(ga, gb)), g, tf.zeros_like(g)))
        for w, g in ((v["a"], ga), (v["b"], gb))],
}  # fmt: skip


SHAPES = {"a": [2, 3], "b": [2, 3], "m": [2, 3], "n": [2, 3], "step": [], "power": []}


def traced_update(function: Callable[..., Any]) -> tuple[dict[str, Any], Any, list[Any]]:
    """The variables, the traced update, and the resources of those that are trained."""
    v = {name: tf.Variable(tf.ones(shape), name=name) for name, shape in SHAPES.items()}
    specs = [tf.TensorSpec([2, 3]), tf.TensorSpec([2, 3])]
    traced = trace("update", lambda ga, gb: function(v, ga, gb) and None, specs, automatic=True)
    return v, traced, [resource_of(v["a"].handle), resource_of(v["b"].handle)]


def told(function: Callable[..., Any]) -> list[Any]:
    """For each part: its operations, state and numbers, and the op that needs the whole variable; the joint numbers."""
    v, traced, trained = traced_update(function)
    names = {resource_of(one.handle): name for name, one in v.items()}
    slicer = Slicer(traced, trained, "mine", alone=True)

    def number(tensor: Any) -> str:
        outside = slicer.outside(tensor)
        return names[resource_of(outside)] if outside.dtype == tf.resource else "tensor"

    found: list[Any] = []
    for part in slicer.slices:
        state = [names[one] for one in part.state]
        whole = elementwise(part, [2, 3])
        numbers = sorted(number(t) for t in part.numbers.values())
        found.append((names[part.variable], [op.type for op in part.operations], state, numbers, whole and whole.type))
    joint = slicer.joint
    parts = {key: [t.op.type for t in tensors] for key, tensors in joint.parts.items()}
    return [*found, parts, [t.op.type for t in joint.results.values()]]


def sharded(function: Callable[..., Any]) -> bool:
    """Whether replicas can update shards of the variables; an error says why not."""
    _, traced, trained = traced_update(function)
    program = SimpleNamespace(ir=SimpleNamespace(replication_factor=1))
    return PipelineRule(program, traced, trained, "mine", {}, True, 1).joins


@pytest.mark.parametrize("name", UPDATES)
def test_the_parts_of_an_update(name: str, golden: Golden) -> None:
    golden({
        "parts": answer(lambda: str(told(UPDATES[name]))), "sharded": answer(lambda: sharded(UPDATES[name])),
    })  # fmt: skip


def test_a_scalar_is_element_by_element() -> None:
    v = tf.Variable(1.0)
    traced = trace("update", lambda g: descent(v, tf.reduce_sum(tf.stack([g, g]))), [tf.TensorSpec([])], automatic=True)
    (part,) = Slicer(traced, [resource_of(v.handle)], "mine", alone=True).slices
    assert elementwise(part, []) is None
    assert elementwise(part, [2]).type in ("Sum", "Pack")
