"""The programs that pipelines become, whole: a row for every schedule and every way to train, and what is refused.

Values are compared with plain gradient accumulation elsewhere (``test_pipeline_values.py``); the rows here see what
values do not: order, places, phases, buffers, counters, names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from answers import answer
from pipelinecases import ROWS, WIDTH, Network, network
from programtext import checksum, figures
from rows import Golden

from ipuperf.ir import FLOAT16, FLOAT32, UINT32, Stream, TensorSpec, Variable
from ipuperf.ops import Add, Call, Dropout, MatMul, Sin, Tanh, Transpose
from ipuperf.pipelines import (
    Activation,
    Data,
    GradientOutput,
    HostInput,
    HostIo,
    Offload,
    Seed,
    StageOutput,
    VariableOutput,
    build_pipeline,
)
from ipuperf.pipelines.model import AutomaticLossScale
from ipuperf.schedules import Timetable, grouped, phased_parallel, phased_serial, popart_pipeline, sharded, timetable_of

SCHEDULES: dict[str, Any] = {
    "grouped": lambda **k: timetable_of("grouped", 3, 12, **k),
    "interleaved": lambda **k: timetable_of("interleaved", 3, 9, **k),
    "sequential": lambda **k: timetable_of("sequential", 3, 3, **k),
    "popart": lambda **k: timetable_of("popart_pipeline", 3, 8, **k),
    "popart_least": lambda **k: timetable_of("popart_pipeline", 3, 5, **k),
    "sharded": lambda **k: timetable_of("sharded", 3, 4, **k),
    "sharded_once": lambda **k: timetable_of("sharded", 3, 1, **k),
    "1f1b": lambda **k: timetable_of("1f1b", 3, 7, **k),
    "interleaved_1f1b": lambda **k: timetable_of("interleaved_1f1b", 4, 6, **k),
    "zb_h1": lambda **k: timetable_of("zb_h1", 3, 6, **k),
    "phased": lambda: phased_serial(3, 2),
    "parallel": lambda: phased_parallel(3, 2),
    "ipu_again": lambda: popart_pipeline(3, 7, devices=[0, 1, 0]),
    "shared_ipus": lambda: grouped(4, 8, devices=[0, 1, 1, 0]),
}
RECOMPUTING = ("grouped", "interleaved", "sequential", "popart")


class Combined:
    """A rule whose momentum is the accumulator too."""

    def combined(self, variable: Variable) -> Any:
        return "velocity", np.zeros(variable.shape, np.float32), 0.5

    def build_combined(self, parameter: Any, weight: Any, accumulated: Any, scalars: Any, replicas: int) -> None:
        from ipuperf.functions import make
        from ipuperf.ops import AccumulatorScale, ScaledAddLhsInplace

        make(ScaledAddLhsInplace, weight, accumulated, scalars["rate"], a=1.0, b_input=2)
        make(AccumulatorScale, accumulated, factor=0.5 / replicas)


class Joint:
    """A rule that looks at all gradients first."""

    def join(self, scope: Any, gradients: Any) -> None:
        for gradient in gradients.values():
            with scope.on(gradient.ipu):
                gradient.tensor + gradient.tensor


WAYS: dict[str, dict[str, Any]] = {
    "state_away": {"offload": Offload(optimiser_state=True)},
    "state_away_from_9": {"offload": Offload(optimiser_state=True, min_elements=9)},
    "state_here_from_10": {"offload": Offload(optimiser_state=True, min_elements=10)},
    "activations_away": {"offload": Offload(activations=True)},
    "activations_away_from_6": {"offload": Offload(activations=True, min_elements=6)},
    "activations_here_from_7": {"offload": Offload(activations=True, min_elements=7)},
    "accumulators_away": {"offload": Offload(accumulators=True)},
    "accumulators_away_from_9": {"offload": Offload(accumulators=True, min_elements=9)},
    "accumulators_here_from_10": {"offload": Offload(accumulators=True, min_elements=10)},
    "weights_away": {"offload": Offload(weights=True)},
    "weights_away_from_9": {"offload": Offload(weights=True, min_elements=9)},
    "weights_here_from_10": {"offload": Offload(weights=True, min_elements=10)},
    "sharded_state": {"offload": Offload(shard_optimiser_state=True), "replicas": 4},
    "sharded_state_from_9": {"offload": Offload(shard_optimiser_state=True, min_elements_sharding=9), "replicas": 2},
    "whole_state_from_10": {"offload": Offload(shard_optimiser_state=True, min_elements_sharding=10), "replicas": 2},
    "sharded_state_away": {"offload": Offload(optimiser_state=True, shard_optimiser_state=True), "replicas": 2},
    "domain_of_2": {"offload": Offload(shard_optimiser_state=True, sharding_domain=2), "replicas": 4},
    "domain_of_1": {"offload": Offload(shard_optimiser_state=True, sharding_domain=1), "replicas": 4},
    "replicas": {"replicas": 2},
    "replicas_summed": {"replicas": 2, "replica_reduction": "sum"},
    "sum": {"reduction": "sum"},
    "running_mean": {"reduction": "running_mean"},
    "running_mean_clipped": {"reduction": "running_mean", "max_grad_norm": 1.0},
    "loss_scale": {"loss_scale": 8.0},
    "variable_loss_scale": {"loss_scale": 8.0, "variable_loss_scale": True},
    "automatic_loss_scale": {
        "loss_scale": 8.0,
        "variable_loss_scale": True,
        "automatic_loss_scale": AutomaticLossScale(),
        "replicas": 2,
    },
    "another_edge": {
        "variable_loss_scale": True,
        "automatic_loss_scale": AutomaticLossScale(bin_edge=0.5, threshold=0.25),
    },
    "clipped": {"max_grad_norm": 0.5},
    "clipped_shards": {"max_grad_norm": 0.5, "offload": Offload(shard_optimiser_state=True), "replicas": 2},
    "clipped_weights_away": {"max_grad_norm": 0.5, "offload": Offload(weights=True, accumulators=True)},
    "joint": {"joint": Joint()},
    "half_accumulators": {"accumulator_dtype": lambda variable: FLOAT16 if variable.name == "w1" else None},
    "half_accumulators_clipped": {"accumulator_dtype": lambda variable: FLOAT16, "max_grad_norm": 2.0},
    "combined": {"combined": Combined()},
    "combined_replicas": {"combined": Combined(), "replicas": 2, "loss_scale": 4.0},
    "combined_clipped": {"combined": Combined(), "max_grad_norm": 2.0},
    "combined_running": {"combined": Combined(), "reduction": "running_mean"},
    "joins_pads": {"joins_pads": True},
    "final": {"returned": "final"},
    "summed": {"returned": "sum"},
    "every_4th": {"every": 4},
    "synthetic": {"host_io": lambda net: HostIo(synthetic=True)},
    "once": {"repeats": 1},
    "skips": {"skips": [(0, 2)]},
    "another_seed": {"seed": 5},
    "functions": {"functions": ["sin", "identity", "tanh"]},
    "state": {"running": True},
    "seeded": {"seeded": True},
    "seeded_replicas": {"seeded": True, "replicas": 2, "seed_of_all": 7},
    "gradients_all": {"sent": "all"},
    "gradients_final": {"sent": "final"},
    "gradients_sum": {"sent": "sum"},
    "other_forms": {"forms": True},
    "calls": {"nested": True},
    "variables_sent": {"kept": True},
    "variables_sent_from_away": {"kept": True, "offload": Offload(weights=True)},
}
OPTIONS = ("offload", "repeats", "copies", "recompute", "host_io")


def built(timetable: Timetable, **how: Any) -> tuple[Network, Any]:
    """A network of the timetable's stages, built into a pipeline."""
    given = {key: how.pop(key) for key in OPTIONS if key in how}
    every, running = how.pop("every", 1), how.pop("running", False)
    sent, kept = how.pop("sent", ""), how.pop("kept", False)
    checkpoints, seeded = how.pop("checkpoints", ()), how.pop("seeded", False)
    forms, nested, shared = (how.pop(name, False) for name in ("forms", "nested", "shared"))
    if "seed_of_all" in how:
        given["seed"] = how.pop("seed_of_all")
    net = network(timetable.stages, ipus=[group[0] for group in timetable.devices], **how)
    main, training = net.ir.main_graph, net.training
    for number in checkpoints:
        part = net.parts[number]
        net.parts[number] = replace(part, checkpoints=(part.graph.ops[0].outputs[0],))
    if running:
        part = net.parts[0]
        spec = part.graph.inputs[0].spec
        seen = main.add(Variable("seen", spec, main, np.ones(spec.shape, np.float32), net.ir.grouping()))
        before = part.graph.add_input(spec, "seen")
        part.graph.add_output(part.graph.create(Add, [before, part.graph.outputs[0]], ["sum"]).outputs[0])
        net.parts[0] = replace(part, sources=[*part.sources, Data(seen)], updates={1: seen})
    if forms:
        part = net.parts[1]
        graph, (y,) = part.graph, part.graph.outputs[:1]
        fixed = graph.constant(np.ones(net.weights[1].shape, np.float32), FLOAT32, "fixed")
        for matrix in (graph.inputs[1], fixed):
            turned = graph.create(Transpose, [matrix], ["turned"], permutation=(1, 0)).outputs
            y = graph.create(MatMul, [y, *turned], ["y"]).outputs[0]
        graph.outputs[0] = y
    if shared:  # the last part reads the weight of the first
        net.parts[2] = replace(
            net.parts[2],
            sources=[Data(net.weights[0]) if isinstance(source, Data) else source for source in net.parts[2].sources],
        )
        training = replace(training, trainable=net.weights[:2])
    if nested:  # what its gradient needs becomes a result of the call, and of the part
        graph, inner = net.parts[1].graph, net.ir.create_graph("inner")
        t = inner.add_input(graph.outputs[0].spec, "t")
        for kind in (Sin, Tanh):
            (t,) = inner.create(kind, [t], ["t"]).outputs
        inner.add_output(t)
        graph.outputs[0] = graph.create(Call, graph.outputs[:1], ["y"], callee=inner).outputs[0]
    if seeded:
        part = net.parts[1]
        seed = part.graph.add_input(TensorSpec((2,), UINT32), "seed")
        dropped = part.graph.create(Dropout, [part.graph.outputs[0], seed], ["dropped"], p=0.5).outputs[0]
        part.graph.outputs[0] = dropped
        net.parts[1] = replace(part, sources=[*part.sources, Seed()])
    if sent:
        stream = main.add(Stream("gradient", net.weights[1].spec, main, "d2h"))
        training = replace(training, gradients=[GradientOutput(1, net.parts[1].graph.inputs[1], stream, sent)])
    variables = []
    if kept:
        stream = main.add(Stream("w1_after", net.weights[1].spec, main, "d2h"))
        variables = [VariableOutput(net.weights[1], stream)]
    if callable(given.get("host_io")):
        given["host_io"] = given["host_io"](net)
    given.setdefault("repeats", 2)
    outputs = [replace(output, every=every) for output in net.outputs]
    pipeline = build_pipeline(
        net.ir, net.parts, timetable, outputs=outputs, variables=variables,
        training=None if timetable.inference else training, **given,
    )  # fmt: skip
    return net, pipeline


def row(timetable: Timetable, **how: Any) -> dict[str, object]:
    """What the pipeline says of itself, and its program."""
    net, pipeline = built(timetable, **how)
    said = pipeline.program
    return {
        "steps": f"{len(said.before)} {said.trips}x{len(said.body)} {len(said.after)}",
        "stash_bytes": " ".join(map(str, pipeline.stash_bytes().values())),
        "sent_bytes": sum(size for _, _, size in pipeline.hops),
        "scalars": " ".join(f"{name}@{ipu}={float(v.data):g}" for (name, ipu), v in pipeline.scalars.items()),
        "scaled": pipeline.scaled(2.0),
        "rest": checksum(repr((pipeline.hops, sorted(pipeline.state, key=str), pipeline.updated_on, pipeline.repeats))),
        **figures(net.ir),
    }


@pytest.mark.parametrize("first", range(5))
def test_every_schedule(first: int, golden: Golden) -> None:
    golden([row(SCHEDULES[name]()) for name in list(SCHEDULES)[first::5]])


@pytest.mark.parametrize("mode", ["in one piece", "interleaved", "always"])
@pytest.mark.parametrize("name", RECOMPUTING)
def test_every_recomputation(name: str, mode: str, golden: Golden) -> None:
    golden(row(SCHEDULES[name](recompute=True), recompute=mode, skips=[(0, 2)]))


@pytest.mark.parametrize("name", ["popart", "sharded", "grouped"])
def test_recomputation_up_to_checkpoints(name: str, golden: Golden) -> None:
    golden(row(SCHEDULES[name](), recompute="always", checkpoints=(0, 1), running=True))


def test_inference(golden: Golden) -> None:
    names = ("grouped", "interleaved", "sequential", "popart", "sharded")
    golden([row(SCHEDULES[name](inference=True)) for name in names])


TRAINED = ("popart", "sharded", "grouped", "sharded_once")
TOGETHER = [
    [(list(WAYS)[(number + 13 * turn) % len(WAYS)], schedule) for turn, schedule in enumerate(TRAINED)]
    for number in range(len(WAYS))
]
"""Each way with each schedule, four different ways at a time."""


@pytest.mark.parametrize("ways", TOGETHER, ids=[" ".join(way for way, _ in ways) for ways in TOGETHER])
def test_every_way_to_train(ways: list[tuple[str, str]], golden: Golden) -> None:
    impossible = ("every_4th", "sharded_once")  # one micro-batch
    golden([row(SCHEDULES[s](), **WAYS[way]) for way, s in ways if (way, s) != impossible])


@pytest.mark.parametrize("reduction", ["mean", "sum", "running_mean"])
def test_a_weight_of_two_parts(reduction: str, golden: Golden) -> None:
    ways = {"replicas": 2}, {"offload": Offload(accumulators=True)}, {"offload": Offload(activations=True)}
    timetable = popart_pipeline(3, 7, devices=[0, 1, 0])
    golden([row(timetable, shared=True, reduction=reduction, **way) for way in ways])


ACROSS = (("", 1), ("x", 2), ("loss", 3)), (("", 2), ("x target", 3), ("x target loss", 4))


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("cases", ACROSS, ids=("some", "more"))
def test_overlapped_io(cases: tuple[tuple[str, int], ...], stages: int, golden: Golden) -> None:
    """Also of two stages, of which both send results."""

    def overlapped(across: str, repeats: int) -> dict[str, object]:
        def host_io(net: Network) -> HostIo:
            if stages > 1:
                net.outputs.append(StageOutput(0, 0, _stream(net, "d2h", (ROWS, WIDTH)), "all"))
            streams = {net.inputs: "x" in across.split(), net.targets: "target" in across}
            return HostIo(32, streams, {net.losses: "loss" in across})

        return row(sharded(stages, 5), copies="when needed", host_io=host_io, repeats=repeats)

    golden([overlapped(*case) for case in cases])


# -- refusals ----------------------------------------------------------------------------------------------------------


def _part(net: Network, number: int, **change: Any) -> None:
    net.parts[number] = replace(net.parts[number], **change)


def _output(net: Network, **change: Any) -> None:
    net.outputs[0] = replace(net.outputs[0], **change)


def _train(net: Network, **change: Any) -> None:
    net.training = replace(net.training, **change)


def _stream(net: Network, direction: str, shape: tuple[int, ...] = (), dtype: Any = FLOAT32) -> Stream:
    return net.ir.main_graph.add(Stream("odd", TensorSpec(shape, dtype), net.ir.main_graph, direction))


POPART = lambda **k: popart_pipeline(2, 4, **k)  # noqa: E731
TROUBLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "nothing": (lambda net: None, {}),
    "unknown recompute": (lambda net: None, {"recompute": "sometimes"}),
    "unknown copies": (lambda net: None, {"copies": "never"}),
    "a source too few": (lambda net: _part(net, 0, sources=net.parts[0].sources[:1]), {}),
    "a source too many": (lambda net: _part(net, 0, sources=[*net.parts[0].sources, HostInput(net.inputs)]), {}),
    "an unknown source": (lambda net: _part(net, 0, sources=["x", net.parts[0].sources[1]]), {}),
    "a source of another shape": (
        lambda net: _part(net, 0, sources=[HostInput(_stream(net, "h2d", (2, 2))), net.parts[0].sources[1]]), {},
    ),
    "data of another shape": (
        lambda net: _part(net, 0, sources=[Data(net.weights[0]), net.parts[0].sources[1]]), {},
    ),
    "a result of its own stage": (
        lambda net: _part(net, 1, sources=[Activation(1, 0), *net.parts[1].sources[1:]]), {},
    ),
    "ops of another graph recomputed": (lambda net: _part(net, 0, recomputed=net.parts[1].graph.ops[:1]), {}),
    "a checkpoint of another graph": (lambda net: _part(net, 0, checkpoints=net.parts[1].graph.outputs[:1]), {}),
    "recomputed twice": (
        lambda net: _part(net, 0, recomputed=net.parts[0].graph.ops[:1]), {"timetable": {"recompute": True}},
    ),
    "recomputed by the stage": (lambda net: _part(net, 0, recomputed=net.parts[0].graph.ops[:1]), {}),
    "recomputed by the last stage": (
        lambda net: _part(net, 1, recomputed=net.parts[1].graph.ops[:1]), {"timetable": {"recompute": True}},
    ),
    "the loss in the first stage": (lambda net: _train(net, loss_part=0, loss_output=0), {}),
    "a result to an h2d stream": (lambda net: _output(net, stream=_stream(net, "h2d")), {}),
    "a result of another type": (lambda net: _output(net, stream=_stream(net, "d2h", dtype=FLOAT16)), {}),
    "unknown returned": (lambda net: _output(net, returned="last"), {}),
    "every 2": (lambda net: _output(net, every=2), {}),
    "every 3": (lambda net: _output(net, every=3), {}),
    "every 0": (lambda net: _output(net, every=0), {}),
    "every 2 of the final": (lambda net: _output(net, every=2, returned="final"), {}),
    "no training": (lambda net: setattr(net, "training", None), {}),
    "inference": (lambda net: setattr(net, "training", None), {"timetable": {"inference": True}}),
    "unknown reduction": (lambda net: _train(net, reduction="max"), {}),
    "unknown replica reduction": (lambda net: _train(net, replica_reduction="max"), {}),
    "a limit of 0": (lambda net: _train(net, max_grad_norm=0.0), {}),
    "a limit of nan": (lambda net: _train(net, max_grad_norm=float("nan")), {}),
    "a limit of 1e-9": (lambda net: _train(net, max_grad_norm=1e-9), {}),
    "combined and variable": (lambda net: _train(net, combined=Combined(), variable_loss_scale=True), {}),
    "automatic and compiled in": (lambda net: _train(net, automatic_loss_scale=AutomaticLossScale()), {}),
    "nothing trained": (lambda net: _train(net, trainable=()), {}),
    "overlap in every step": (lambda net: None, {"host_io": lambda net: HostIo(32, {net.inputs: True})}),
    "overlap without tiles": (
        lambda net: None, {"host_io": lambda net: HostIo(0, {net.inputs: True}), "copies": "when needed"},
    ),
    "overlap on one tile": (
        lambda net: None, {"host_io": lambda net: HostIo(1, {net.inputs: True}), "copies": "when needed"},
    ),
    "a part too few": (lambda net: net.parts.pop(), {}),
    "stage 1 twice": (lambda net: _part(net, 0, stage=1), {}),
    "another ipu": (lambda net: _part(net, 0, ipu=1), {}),
    "checkpoints of a stage of W cells": (
        lambda net: _part(net, 0, checkpoints=(net.parts[0].graph.ops[0].outputs[0],)),
        {"schedule": lambda: timetable_of("zb_h1", 2, 4), "recompute": "always"},
    ),
    "a clipped weight that differs": (
        lambda net: (
            setattr(net.weights[0], "grouping", net.ir.grouping(group_size=1)), _train(net, max_grad_norm=1.0),
        ),
        {"replicas": 2},
    ),
    "two results": (
        lambda net: net.outputs.append(StageOutput(0, 0, _stream(net, "d2h", (2, 3)), "all")), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_refusal(trouble: str, golden: Golden) -> None:
    change, options = TROUBLES[trouble]
    options = dict(options)
    timetable = options.pop("schedule", lambda: POPART(**options.pop("timetable", {})))()
    options.pop("timetable", None)
    net = network(2, replicas=options.pop("replicas", 1))
    change(net)
    if "host_io" in options:
        options["host_io"] = options["host_io"](net)
    build = lambda: build_pipeline(  # noqa: E731
        net.ir, net.parts, timetable, outputs=net.outputs, training=net.training, **options
    )
    golden({"said": answer(lambda: bool(build()))})
