"""Conservation in the traces of all models: what is sent arrives, nobody is busier than time allows, parts add up.

The sums are made here, with pandas and NumPy, from the tables of the trace; ``ipuperf.trace.check`` is asked too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ipuperf.runtime.executable import Executable
from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.trace import Trace, check

pytestmark = pytest.mark.xdist_group("models_conservation")

torch = pytest.importorskip("torch")

TRANSFORMER = {"layers": 1, "hidden": 32, "heads": 2, "layers_per_ipu": (1,)}
SIZES: Mapping[str, Mapping[str, Any]] = {
    "bert": {**TRANSFORMER, "feed_forward": 64, "vocabulary": 100, "sequence": 16, "positions": 16,
             "masked_tokens": 4, "embedding_parts": 2},
    "gpt2": {**TRANSFORMER, "vocabulary": 100, "sequence": 16, "loss_parts": 1, "embedding_parts": 2},
    "resnet50": {"image": 32, "width": 8, "classes": 10, "blocks": (1, 1, 0, 0), "layers_per_ipu": (2,)},
    "vit": {**TRANSFORMER, "feed_forward": 64, "image": 32, "patch": 8, "classes": 10},
    "roformer": {**TRANSFORMER, "feed_forward": 64, "vocabulary": 100, "sequence": 16},
    "swin": {"image": 16, "patch": 2, "window": 2, "width": 32, "depths": (2, 2), "heads": (1, 2), "classes": 10,
             "layers_per_ipu": (4,)},
    "clip": {"layers": 1, "image": 16, "patch": 8, "image_hidden": 32, "image_heads": 2, "texts": 3, "sequence": 16,
             "vocabulary": 100, "text_hidden": 32, "text_heads": 2, "shared": 16, "layers_per_ipu": (1,),
             "training": False},
    "small_cnn": {"image": 32},
}  # fmt: skip
OFFLOADED = {"replicas": 2, "offload_optimiser": True, "sharding": True}
TWO = {"layers_per_ipu": (1, 1), "gradient_accumulation": 6}
PIPELINE = {**TWO, "layers": 2}
"""Of transformers. Blocks of ResNet are two anyway."""

POPTORCH: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert, pipeline, offload, RTS": ("bert", "pod4", {**PIPELINE, **OFFLOADED, "optimiser": "lamb"}),
    "gpt2, inference, replicated": ("gpt2", "pod4", {"training": False, "replicas": 4, "device_iterations": 3}),
    "resnet50, inference, pipeline": ("resnet50", "bow-pod4", {**TWO, "training": False, "norm": "folded",
                                                               "device_iterations": 9}),
    "vit, replicated, offload": ("vit", "pod4", {"replicas": 4, "offload_optimiser": True, "device_iterations": 3}),
    "vit, inference": ("vit", "bow-1", {"training": False, "device_iterations": 4}),
}  # fmt: skip
MORE: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert, single, GC2": ("bert", "gc2-1", {"precision": "16.32"}),
    "gpt2, single": ("gpt2", "bow-1", {"precision": "32.32"}),
    "resnet50, replicated": ("resnet50", "pod4", {"replicas": 4, "gradient_accumulation": 3}),
    "bert, inference": ("bert", "bow-1", {"training": False, "device_iterations": 5}),
    "bert, packed, pipeline": ("bert", "bow-pod4", {**PIPELINE, "packed": True, "optimiser": "lamb"}),
    "bert, stash in DDR": ("bert", "bow-pod4", {**PIPELINE, "offload_activations": True}),
    "gpt2, pipeline, RTS": ("gpt2", "pod16", {**PIPELINE, **OFFLOADED, "layers_per_ipu": (0, 1, 1), "replicas": 4,
                                              "gradient_accumulation": 8}),
    "resnet50, single": ("resnet50", "gc200-1", {"norm": "batch"}),
    "resnet50, single, GC2": ("resnet50", "gc2-1", {"norm": "group", "eight_bit_io": False}),
    "resnet50, pipeline": ("resnet50", "pod4", {**TWO, "recompute": False, "return_all": True}),
    "vit, single, GC2": ("vit", "gc2-1", {}),
    "roformer, pipeline": ("roformer", "pod4", {**PIPELINE, "replicas": 2, "optimiser": "lars"}),
    "swin, inference": ("swin", "bow-1", {"training": False, "device_iterations": 3}),
    "clip, inference": ("clip", "gc200-1", {"device_iterations": 3}),
    "small_cnn, replicated": ("small_cnn", "bow-pod4", {"replicas": 2, "gradient_accumulation": 1}),
    "vit, pipeline, replicated": ("vit", "bow-pod16", {**PIPELINE, **OFFLOADED, "replicas": 8,
                                                       "device_iterations": 2}),
}  # fmt: skip
"""Left to ``pytest -m slow``: PyTorch needs seconds to trace each of them."""
MLP: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mnist_mlp, single": ("gc200-1", {"replicas": 1, "threshold": None}),
    "mnist_mlp, single, GC2": ("gc2-1", {"replicas": 1, "threshold": None}),
    "mnist_mlp, replicated": ("pod4", {"replicas": 4, "threshold": None}),
    "mnist_mlp, offload": ("bow-pod4", {"replicas": 4, "threshold": float("inf")}),
    "mnist_mlp, RTS": ("pod16", {"replicas": 16, "threshold": 512}),
}
CNN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mnist_cnn, pipelined": ("pod4", {"gradient_accumulation": 8, "device_iterations": 3}),
    "mnist_cnn, pipelined, offload": ("bow-pod4", {"gradient_accumulation": 8, "offload_optimiser": True}),
    "mnist_cnn, sharded": ("pod4", {"strategy": "sharded", "device_iterations": 2, "gradient_accumulation": 3}),
}
ENCODER: Mapping[str, tuple[str, str, int, Mapping[str, Any]]] = {
    "encoder, grouped": ("pod4", "grouped", 4, {}),
    "encoder, interleaved": ("bow-pod4", "interleaved", 4, {}),
    "encoder, sequential": ("pod4", "sequential", 4, {"half": False}),
    "encoder, PopART": ("pod16", "popart_pipeline", 3, {"replicas": 2, "host_inputs": True}),
    "encoder, sharded": ("bow-pod4", "sharded", 4, {}),
    "encoder, inference": ("pod4", "grouped", 4, {"inference": True, "host_inputs": True}),
}
ALL = (*POPTORCH, *MLP, "mnist_mlp, inference", *CNN, "mnist_cnn, inference", *ENCODER, "attention")
SLOW = (*MORE, "vit, replicated, offload", "mnist_cnn, pipelined")
CASES = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in (*ALL, *MORE)]


# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(installed_front_ends: Callable[[], Any]) -> Iterator[SimpleNamespace]:
    """The modules of the models."""
    with installed_front_ends():
        import poptorch

        names = ("attention", "bert", "clip", "encoder", "gpt2", "ipu_run", "mnist_cnn", "mnist_mlp", "resnet50",
                 "roformer", "small_cnn", "swin", "vit")  # fmt: skip
        rooms = {name: importlib.import_module(f"ipuperf.models.{name}") for name in names}
        yield SimpleNamespace(poptorch=poptorch, **rooms)


def _poptorch(models: SimpleNamespace, room: str, changes: Mapping[str, Any], machine: str) -> Executable:
    kinds = {"bert": "BertOptions", "gpt2": "Gpt2Options", "resnet50": "ResNet50Options", "vit": "VitOptions",
             "roformer": "RoformerOptions", "swin": "SwinOptions", "clip": "ClipOptions",
             "small_cnn": "SmallCnnOptions"}  # fmt: skip
    module = getattr(models, room)
    options = getattr(module, kinds[room])(**{"gradient_accumulation": 4, "micro_batch": 2, **SIZES[room], **changes})
    batch = module.batch(options, "meta")
    return models.ipu_run.compiled_of(lambda: module.model(options), options, batch, machine).executable


def _mlp(models: SimpleNamespace, changes: Mapping[str, Any], machine: str, batch: int = 0) -> Executable:
    with use_settings(RunSettings(machine=machine)):
        options = models.mnist_mlp.TrainingOptions(
            micro_batch_size=4, gradient_accumulation=3, hidden=(64, 48), **changes
        )
        if batch:
            return models.mnist_mlp.inference_session(batch, options).session.executable
        return models.mnist_mlp.training_session(options).session.executable


def _cnn(models: SimpleNamespace, changes: Mapping[str, Any], machine: str, *, training: bool = True) -> Executable:
    cnn, poptorch = models.mnist_cnn, models.poptorch
    options = cnn.PipelineOptions(batch_size=2, **{"device_iterations": 1, **changes})
    settings = cnn.poptorch_options(options)
    if not training:
        settings.Training.gradientAccumulation(1)
    rows = 2 * options.device_iterations * (options.gradient_accumulation if training else 1)
    batch = [torch.empty(rows, 1, 28, 28, device="meta")]
    with torch.device("meta"):
        module = cnn.NetworkWithLoss(cnn.Network())
    optimizer = poptorch.optim.AdamW(module.parameters(), lr=1e-3) if training else None
    if training:
        batch.append(torch.empty(rows, dtype=torch.int32, device="meta"))
    compiled = poptorch.compile_offline(
        module.train(training), settings, *batch, training=training, optimizer=optimizer, machine=machine
    )
    return compiled.executable


def _encoder(models: SimpleNamespace, schedule: str, stages: int, changes: Mapping[str, Any], machine: str) -> Any:
    from ipuperf import schedules
    from ipuperf.pipelines import build_pipeline

    sizes = {"hidden": 64, "heads": 2, "sequence": 16, "feed_forward": 128, "host_inputs": False, **changes}
    made = models.encoder.encoder(models.encoder.EncoderOptions(stages, stages, **sizes), seed=None)
    inference = {"inference": True} if changes.get("inference") else {}
    table = getattr(schedules, schedule)(stages, 2 * stages, **inference)
    copies = "when needed" if schedule == "sharded" else "every step"
    build_pipeline(made.ir, made.parts, table, outputs=made.outputs, training=made.training, copies=copies)
    return Executable(made.ir, machine, name=schedule)


def _attention(models: SimpleNamespace) -> Executable:
    """The layers alone, one behind the other."""
    poptorch, options = models.poptorch, models.poptorch.Options().deviceIterations(3)
    with torch.device("meta"):
        layers = torch.nn.Sequential(
            models.attention.PreNormLayer(64, 2, 128, epsilon=1e-5, causal=True),
            models.attention.PostNormLayer(64, 2, 128, epsilon=1e-5, split_qkv=True),
        )
        rows = torch.empty(6, 16, 64)
    return poptorch.compile_offline(layers.eval(), options, rows, training=False, machine="gc200-1").executable


def _executable(models: SimpleNamespace, name: str) -> Executable:
    if name in POPTORCH or name in MORE:
        room, machine, changes = {**POPTORCH, **MORE}[name]
        return _poptorch(models, room, changes, machine)
    if name in MLP:
        return _mlp(models, MLP[name][1], MLP[name][0])
    if name in CNN:
        return _cnn(models, CNN[name][1], CNN[name][0])
    if name in ENCODER:
        machine, schedule, stages, changes = ENCODER[name]
        return _encoder(models, schedule, stages, changes, machine)
    if name == "mnist_mlp, inference":
        return _mlp(models, {}, "bow-1", batch=8)
    if name == "mnist_cnn, inference":
        return _cnn(models, {"device_iterations": 7}, "bow-pod4", training=False)
    return _attention(models)


# -- conservation ------------------------------------------------------------------------------------------------------


def _flows(trace: Trace) -> pd.DataFrame:
    """One row per transfer: where it begins and ends, followed along the links that it crosses."""
    rows = trace.table("transfers").merge(trace.table("links")[["link_id", "source", "destination"]], on="link_id")
    ends = pd.concat(
        [
            rows[["transfer", "source"]].rename(columns={"source": "node"}).assign(balance=1),
            rows[["transfer", "destination"]].rename(columns={"destination": "node"}).assign(balance=-1),
        ]
    )
    balance = ends.groupby(["transfer", "node"])["balance"].sum()
    assert set(balance.unique()) <= {-1, 0, 1}, "a transfer branches"
    first, last = (balance[balance == side].reset_index().set_index("transfer")["node"] for side in (1, -1))
    assert first.index.is_unique
    assert last.index.is_unique
    same = rows.groupby("transfer").agg(
        {key: ["min", "max"] for key in ("bytes", "start", "dur", "op_id")} | {"kind": ["first", "nunique"]}
    )
    for key in ("bytes", "start", "dur", "op_id"):
        assert (same[key, "min"] == same[key, "max"]).all(), f"links of one transfer have different {key}"
    flows = same.xs("max", axis=1, level=1).assign(kind=same["kind", "first"], source=first, destination=last)
    assert flows.notna().all().all(), "a transfer goes round in a circle"
    return flows


def everything_sent_arrives(trace: Trace, slices: pd.DataFrame) -> None:
    """Bytes of every exchange: the tiles of an IPU, the IPUs of an exchange, each op, each end of the links."""
    exchange = slices[slices["kind"] == "exchange"]
    assert (exchange["bytes_in"] == exchange["bytes_out"]).all()
    links = slices[slices["kind"] == "link"]
    for keys in (["op_id"], ["op_id", "start"]):  # IPUs of all replicas begin a round of a collective together
        sums = links.groupby(keys)[["bytes_in", "bytes_out"]].sum()
        assert (sums["bytes_in"] == sums["bytes_out"]).all(), sums[sums["bytes_in"] != sums["bytes_out"]]
    flows = _flows(trace)
    for kinds, column, end in (
        (("link",), "bytes_out", "source"),
        (("link",), "bytes_in", "destination"),
        (("host_mid",), "bytes_in", "destination"),
        (("host_mid",), "bytes_out", "source"),
    ):
        table = flows[flows["kind"].eq("stream") == (kinds == ("host_mid",))]
        table = table[~table["kind"].isin(["remote_load", "remote_store"])]
        there = table[table[end].str.startswith("ipu")]
        by_link = there.groupby(["op_id", there[end].str.removeprefix("ipu").astype(int)])["bytes"].sum()
        by_ipu = slices[slices["kind"].isin(kinds)].groupby(["op_id", "ipu"])[column].sum()
        left = by_ipu[by_ipu > 0].sub(by_link, fill_value=0)
        assert (left == 0).all(), (kinds, column, left[left != 0])
    for kind, column, end in (("remote_load", "bytes_in", "destination"), ("remote_store", "bytes_out", "source")):
        table = flows[flows["kind"] == kind]
        by_link = table.groupby(["op_id", table[end].str.removeprefix("ipu").astype(int)])["bytes"].sum()
        by_ipu = slices[slices["kind"] == kind].groupby(["op_id", "ipu"])[column].sum()
        by_ipu = by_ipu[by_ipu > 0]
        assert set(by_ipu.index) == set(by_link.index)
        assert (by_link >= by_ipu).all(), "small accesses are rounded up, never down"


def nobody_is_busier_than_time(trace: Trace, slices: pd.DataFrame) -> None:
    """Each IPU does one thing at a time; each link moves no more than its rate, between its first and last moment."""
    run = trace.table("runs")["dur"].iloc[0]
    for _, own in slices.groupby(["replica", "ipu", "lane"]):
        starts, ends = own["start"].to_numpy(), (own["start"] + own["dur"]).to_numpy()
        assert (starts[1:] >= ends[:-1]).all()
        assert own["dur"].sum() <= run
        assert starts[0] >= 0
        assert ends.max() <= run
    moved, links = trace.table("transfers"), trace.table("links").set_index("link_id")
    for link, own in moved.groupby("link_id"):
        busy, until = 0, 0
        for start, end in zip(own["start"], own["start"] + own["dur"], strict=True):  # by start
            busy += max(0, end - max(start, until))
            until = max(until, end)
        assert busy <= until <= run
        room = (busy + len(own)) * links.loc[link, "bandwidth_bytes_per_s"] / trace.meta["clock_hz"]
        assert own["bytes"].sum() <= room
    totals = trace.totals()
    assert (totals["elapsed"] <= run).all()


def phases_add_up(trace: Trace, slices: pd.DataFrame) -> None:
    """Cycles by kind, by what an op is for, and by op: each adds up to the run on every IPU."""
    run = trace.table("runs")["dur"].iloc[0]
    ops = trace.table("ops").set_index("op_id")["phase"]
    main = slices[slices["lane"] == 0].assign(phase=lambda s: s["op_id"].map(ops).fillna("other"))
    for key in ("kind", "phase", "op_id"):
        sums = main.groupby(["ipu", key], observed=True)["dur"].sum()
        assert (sums >= 0).all()
        assert (sums.groupby("ipu").sum() == run).all()
    whole = trace.totals()
    kinds = slices.groupby(["ipu", "kind"], observed=False)["dur"].sum().unstack()
    assert len(whole) == len(kinds)
    for _, row in whole.iterrows():
        assert (row[kinds.columns] == kinds.loc[row["ipu"]]).all()


def memory_adds_up(trace: Trace) -> None:
    """Live bytes of each step, and of its fullest tile, from the variables and their intervals."""
    variables, memory, liveness = (trace.table(name) for name in ("variables", "tile_memory", "liveness"))
    assert (variables["bytes"] >= 0).all()
    assert (variables["tile_to"] > variables["tile_from"]).all()
    variables = variables[variables["location"] == "tile"]
    for ipu, steps in liveness.groupby("ipu"):
        count = len(steps)
        own = variables[variables["ipu"] == ipu].merge(trace.table("live_intervals"), on="class_id")
        assert ((own["step_from"] >= 0) & (own["step_to"] <= count)).all()
        change = np.zeros(count + 1, dtype=np.int64)
        np.add.at(change, own["step_from"], own["bytes"])
        np.add.at(change, own["step_to"], -own["bytes"])
        live = np.cumsum(change)[:-1]
        np.testing.assert_array_equal(live, steps["not_always_live"])
        assert (live >= 0).all()
        held = memory[memory["ipu"] == ipu].pivot_table(index="tile", columns="category", values="bytes",
                                                        aggfunc="sum", fill_value=0)  # fmt: skip
        varying = held.pop("variableNotAlwaysLive") if "variableNotAlwaysLive" in held else 0 * held.sum(axis=1)
        fixed = held.sum(axis=1).reindex(range(trace.meta["tiles_per_ipu"]), fill_value=0).to_numpy()
        assert (steps["always_live"] == fixed.sum()).all()
        assert varying.sum() >= live.max()
        assert (fixed + varying.reindex(range(len(fixed)), fill_value=0)).max() >= steps["max_tile"].max()
        assert (steps["max_tile"] * len(fixed) >= live + fixed.sum()).all()
        for step in {0, count // 2, count - 1, int(np.argmax(live)), int(np.argmax(steps["max_tile"]))}:
            tiles = fixed.astype(np.float64)
            now = own[(own["step_from"] <= step) & (step < own["step_to"])]
            for first, last, size in zip(now["tile_from"], now["tile_to"], now["bytes"], strict=True):
                tiles[first:last] += size / (last - first)
            row = steps.iloc[step]
            assert tiles.max() == pytest.approx(row["max_tile"], abs=1e-3)
            assert tiles[row["argmax_tile"]] == pytest.approx(tiles.max(), abs=1e-3)


def flops_add_up(trace: Trace, slices: pd.DataFrame) -> None:
    """Each call of an op does what the op says: whole calls, as many on each replica, as many as are counted."""
    each = trace.table("ops").set_index("op_id")
    steps = trace.table("steps")
    done = slices.assign(flops=steps["flops"].to_numpy()[_rows_of(trace, slices)])
    sums = done[done["op_id"] >= 0].groupby(["op_id", "replica"])["flops"].sum()
    flops = each["flops"].reindex(sums.index.get_level_values("op_id")).to_numpy()
    assert (sums[flops == 0] == 0).all()
    sums, flops = sums[flops > 0], flops[flops > 0]
    assert (sums % flops == 0).all()
    calls = (sums // flops).unstack()
    assert (calls.nunique(axis=1) == 1).all()
    counted = trace.operations().groupby("op")["calls"].sum()
    names = calls.index.map(each["name"])
    assert (calls.sum(axis=1).groupby(names).sum() == counted.reindex(sorted(set(names)))).all()


def _rows_of(trace: Trace, slices: pd.DataFrame) -> np.ndarray:
    """Row of table ``steps`` of each slice: slices of an instance are those of its segment, in order."""
    steps, instances = trace.table("steps"), trace.table("instances").set_index("instance")
    order = np.lexsort((steps["seq"], steps["segment"]))
    first = pd.Series(np.arange(len(steps)), index=steps["segment"].to_numpy()[order]).groupby(level=0).min()
    begin = first[instances["segment"].reindex(slices["instance"])].to_numpy()
    return order[begin + slices.groupby("instance").cumcount().to_numpy()]


@pytest.mark.parametrize("name", CASES)
def test_conservation(models: SimpleNamespace, name: str) -> None:
    trace = _executable(models, name).trace
    assert check(trace) == []
    slices = trace.expand()
    everything_sent_arrives(trace, slices)
    nobody_is_busier_than_time(trace, slices)
    phases_add_up(trace, slices)
    memory_adds_up(trace)
    flops_add_up(trace, slices)
