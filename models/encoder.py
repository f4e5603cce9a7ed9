"""A transformer encoder as pipeline stage graphs, for questions about schedules and memory (values optional).

Written with the public rooms ``ipuperf.ir``, ``ipuperf.ops``, ``ipuperf.functions`` and ``ipuperf.pipelines``: no front
end and no framework is needed. Post-norm layers as in BERT: self-attention, add, norm, feed-forward with GELU, add,
norm. The loss is the mean square difference to a target of the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.base.near_names import instead_of
from ipuperf.functions.updates import Sgd, Step
from ipuperf.ir import FLOAT16, FLOAT32, Builder, DType, Ir, ReplicaGrouping, Stream, Tensor, TensorSpec, Variable
from ipuperf.ops import (
    Add,
    Cast,
    Gelu,
    GroupNormalization,
    MatMul,
    Mul,
    ReduceMean,
    Reshape,
    Slice,
    Softmax,
    Sub,
    Transpose,
)
from ipuperf.pipelines import Activation, Data, HostInput, Source, StageGraph, StageOutput, Training, build_pipeline
from ipuperf.runtime.executable import Executable
from ipuperf.schedules import timetable_of
from ipuperf.tools.errors import CaseError, UnknownOption
from ipuperf.validation.programs import Program, require

if TYPE_CHECKING:
    from ipuperf.validation.cases import Case


@dataclass(frozen=True)
class EncoderOptions:
    """Sizes. ``layers`` are spread evenly over ``stages``, the first ones get one more where it does not divide.

    With ``host_inputs=False`` input and target are variables of the first and the last stage's IPU, the same in every
    micro-batch, and no result goes to the host: a program that nothing but itself can hold up.
    """

    layers: int = 24
    stages: int = 4
    hidden: int = 1024
    heads: int = 16
    sequence: int = 128
    batch: int = 2
    feed_forward: int = 4096
    replicas: int = 1
    half: bool = True
    inference: bool = False
    host_inputs: bool = True


@dataclass(frozen=True)
class Encoder:
    """The program so far: stage graphs and what the builder needs to know about results and training.

    ``inputs`` and ``targets`` are None when they do not come from the host.
    """

    ir: Ir
    parts: list[StageGraph]
    outputs: list[StageOutput]
    training: Training | None
    weights: list[Variable]
    inputs: Stream | None
    targets: Stream | None


class GradientDescent:
    """``w = w - rate g``: the update rule of :func:`encoder`."""

    def __init__(self, rate: float = 0.01) -> None:
        self.rate = rate

    def state(self, variable: Variable) -> Mapping[str, np.ndarray]:
        """None."""
        return {}

    def scalars(self) -> Mapping[str, float]:
        """The negated rate."""
        return {"rate": -self.rate}

    def build(
        self,
        parameter: Variable,
        weight: Tensor,
        gradient: Tensor,
        state: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
        shards: ReplicaGrouping | None,
    ) -> None:
        """One scaled addition."""
        Sgd().build(Step(weight, gradient, state, scalars, shards))


def _values(
    rng: np.random.Generator | None, shape: tuple[int, ...], dtype: DType, scale: float = 1.0, mean: float = 0.0
) -> np.ndarray:
    """Normally distributed values; without a generator a constant that takes no memory."""
    if rng is None:
        return np.broadcast_to(np.array(mean, dtype.numpy), shape)
    return (mean + scale * rng.standard_normal(shape, np.float32)).astype(dtype.numpy)


class _Stage(Builder):
    """The op maker of a stage graph."""

    def __init__(self, ir: Ir, number: int, options: EncoderOptions, rng: np.random.Generator | None) -> None:
        super().__init__(ir.create_named_graph(f"encoder{number}"))
        self.ir = ir
        self.options = options
        self.dtype: DType = FLOAT16 if options.half else FLOAT32
        self.sources: list[Source] = []
        self.weights: list[Variable] = []
        self._rng = rng

    def input(self, spec: TensorSpec, name: str, source: Source) -> Tensor:
        """A graph input from ``source``."""
        self.sources.append(source)
        return self.graph.add_input(spec, name)

    def parameter(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Tensor:
        """A new parameter."""
        data = _values(self._rng, shape, self.dtype, scale, mean)
        main = self.ir.main_graph
        spec = TensorSpec(shape, self.dtype)
        variable = Variable(main.tensor_id(name), spec, main, data, self.ir.grouping())
        main.add(variable)
        self.weights.append(variable)
        return self.input(spec, name.replace("/", "_"), Data(variable))

    def linear(self, x: Tensor, name: str, width: int) -> Tensor:
        """``x W + b``."""
        inputs = x.shape[-1]
        w = self.parameter(f"{name}/weight", (inputs, width), inputs**-0.5)
        b = self.parameter(f"{name}/bias", (width,), 0.0)
        product = self.op(MatMul, [x, w], f"{name}_product", pass_="fcfwd", partials_dtype=self.dtype)
        return self.op(Add, [product, b], name)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Layer norm over the last axis."""
        scale = self.parameter(f"{name}/scale", (x.shape[-1],), 0.0, 1.0)
        bias = self.parameter(f"{name}/bias", (x.shape[-1],), 0.0)
        return self.create(GroupNormalization, [x, scale, bias], [name] * 3, num_groups=1, epsilon=1e-5).outputs[0]

    def heads(self, x: Tensor, index: int, name: str) -> Tensor:
        """Third ``index`` of the joint projection as (batch, heads, sequence, size)."""
        o = self.options
        part = self.op(Slice, [x], name, axis=1, start=index * o.hidden, stop=(index + 1) * o.hidden)
        split = self.op(Reshape, [part], name, shape=(o.batch, o.sequence, o.heads, o.hidden // o.heads))
        return self.op(Transpose, [split], name, permutation=(0, 2, 1, 3))

    def layer(self, x: Tensor, name: str) -> Tensor:
        """One encoder layer on (batch * sequence, hidden)."""
        o = self.options
        joint = self.linear(x, f"{name}/qkv", 3 * o.hidden)
        q, k, v = (self.heads(joint, index, f"{name}_{part}") for index, part in enumerate("qkv"))
        keys = self.op(Transpose, [k], "keys", permutation=(0, 1, 3, 2))
        scale = self.constant((o.hidden // o.heads) ** -0.5, self.dtype, "scale")
        scores = self.op(Mul, [self.op(MatMul, [q, keys], "scores"), scale], "scaled")
        context = self.op(MatMul, [self.op(Softmax, [scores], "attention", axis=3), v], "context")
        merged = self.op(Transpose, [context], "merged", permutation=(0, 2, 1, 3))
        flat = self.op(Reshape, [merged], "flat", shape=x.shape)
        x = self.norm(self.op(Add, [x, self.linear(flat, f"{name}/out", o.hidden)], "residual"), f"{name}/norm1")
        hidden = self.op(Gelu, [self.linear(x, f"{name}/up", o.feed_forward)], "gelu")
        return self.norm(self.op(Add, [x, self.linear(hidden, f"{name}/down", o.hidden)], "residual"), f"{name}/norm2")


def encoder(
    options: EncoderOptions = EncoderOptions(), seed: int | None = 0, ipus: Sequence[int] | None = None
) -> Encoder:
    """Stage graphs of an encoder on ``ipus`` of a replica, one for each stage (None: 0, 1 ...).

    ``seed`` decides the weights; None is for programs that are only simulated: the weights are constant then.
    """
    ir = Ir(options.replicas)
    main = ir.main_graph
    rng = None if seed is None else np.random.default_rng(seed)
    dtype = FLOAT16 if options.half else FLOAT32
    spec = TensorSpec((options.batch * options.sequence, options.hidden), dtype)
    tokens, wanted = (_data(ir, name, spec, options.host_inputs, rng) for name in ("tokens", "targets"))
    parts: list[StageGraph] = []
    weights: list[Variable] = []
    each, more = divmod(options.layers, options.stages)
    layer = 0
    for number in range(options.stages):
        stage = _Stage(ir, number, options, rng)
        x = stage.input(spec, "x", Activation(number - 1, 0) if number else tokens)
        for _ in range(each + (number < more)):
            x = stage.layer(x, f"layer{layer}")
            layer += 1
        stage.graph.add_output(x)
        if number == options.stages - 1 and not options.inference:
            target = stage.input(spec, "target", wanted)
            error = stage.op(Cast, [stage.op(Sub, [x, target], "error")], "error32", dtype=FLOAT32)
            square = stage.op(Mul, [error, error], "square")
            stage.graph.add_output(stage.op(ReduceMean, [square], "loss", axes=(0, 1), keepdims=False))
        parts.append(StageGraph(stage.graph, number, ipus[number] if ipus else number, stage.sources))
        weights += stage.weights
    last = options.stages - 1
    result = parts[last].graph.outputs[-1]
    outputs = []
    if options.host_inputs:
        stream = Stream("result", result.spec, main, "d2h")
        main.add(stream)
        outputs.append(StageOutput(last, len(parts[last].graph.outputs) - 1, stream, "final"))
    training = None if options.inference else Training(last, 1, weights, GradientDescent())
    streams = [source.stream if isinstance(source, HostInput) else None for source in (tokens, wanted)]
    return Encoder(ir, parts, outputs, training, weights, *streams)


def _data(ir: Ir, name: str, spec: TensorSpec, from_host: bool, rng: np.random.Generator | None) -> HostInput | Data:
    """Micro-batches of a stream, or one that is there."""
    main = ir.main_graph
    if from_host:
        stream = Stream(name, spec, main, "h2d")
        main.add(stream)
        return HostInput(stream)
    data = _values(rng, spec.shape, spec.dtype)
    variable = Variable(main.tensor_id(name), spec, main, data, ir.grouping())
    main.add(variable)
    return Data(variable)


_SIZES = ("layers", "stages", "hidden", "heads", "sequence", "feed_forward", "host_inputs")
_PIPELINE = {"schedule": "popart_pipeline"}


def validation_program(case: Case) -> Program:
    """One weight update of the encoder under a schedule; its numbers are never computed.

    ``config`` has ``schedule`` (one of :data:`ipuperf.schedules.SCHEDULES`) and the sizes of :class:`EncoderOptions`
    that a case has no keys of its own for.

    Raises:
        CaseError: the case states what the encoder does not have. ScheduleError: numbers that the schedule cannot run.
    """
    require(case, mode=("training",), precision=("f16.16", "f32"), optimiser=("sgd",), recompute=("none", "standard"),
            offload=((),), sharding=(0,), io=("streams",), prefetch=(1,), pipeline=((),))  # fmt: skip
    config = {**_PIPELINE, **case.config}
    schedule = config.pop("schedule")
    options = EncoderOptions(
        **_sizes(case, config), batch=case.micro_batch, replicas=case.replicas, half=case.precision == "f16.16"
    )
    if not 1 <= options.stages <= options.layers or options.hidden % options.heads:
        raise CaseError(
            f"{case.file}: case {case.id!r}: config: {options.stages} stages of {options.layers} layers, "
            f"{options.heads} heads of {options.hidden}; every stage needs a layer, heads divide hidden"
        )
    table = timetable_of(schedule, options.stages, case.accumulation, recompute=case.recompute == "standard")
    model = encoder(options, seed=None, ipus=[group[0] for group in table.devices])
    build_pipeline(model.ir, model.parts, table, outputs=model.outputs, training=model.training)
    return Program(Executable(model.ir, name="encoder"), case.samples)


def _sizes(case: Case, config: Mapping[str, Any]) -> dict[str, Any]:
    """Those sizes that a case states, checked."""
    usual = {field.name: field.default for field in fields(EncoderOptions)}
    for name, value in config.items():
        if name not in _SIZES:
            instead = instead_of(name, (*_PIPELINE, *_SIZES))
            raise UnknownOption(f"{case.file}: case {case.id!r}: config.{name}: no such option{instead}")
        if type(value) is not type(usual[name]) or value < 0 or (value == 0 and name != "host_inputs"):
            raise CaseError(f"{case.file}: case {case.id!r}: config.{name}: {value!r}, allowed: as {usual[name]!r}")
    return dict(config)
