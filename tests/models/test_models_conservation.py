"""Conservation in the traces of all models: what is sent arrives, nobody is busier than time allows, parts add up.

The laws are in ``conservation.py``; ``ipuperf.trace.check`` is asked too.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from conservation import conserves

from ipuperf.runtime.executable import Executable
from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.trace import check

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
    "conformer": {**TRANSFORMER, "decoder_layers": 1, "feed_forward": 64, "kernel": 3, "frames": 31, "features": 12,
                  "vocabulary": 20, "text": 4},
}  # fmt: skip
OFFLOADED = {"replicas": 2, "offload_optimiser": True, "sharding": True}
TWO = {"layers_per_ipu": (1, 1), "gradient_accumulation": 6}
PIPELINE = {**TWO, "layers": 2}
"""Of transformers. Blocks of ResNet are two anyway."""

POPTORCH: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert, pipeline, offload, RTS": ("bert", "pod4", {**PIPELINE, **OFFLOADED, "optimiser": "lamb"}),
    "gpt2, inference, replicated": ("gpt2", "pod4", {"training": False, "replicas": 4, "device_iterations": 3}),
    "resnet50, inference, pipeline": (
        "resnet50",
        "bow-pod4",
        {**TWO, "training": False, "norm": "folded", "device_iterations": 9},
    ),
    "vit, replicated, offload": ("vit", "pod4", {"replicas": 4, "offload_optimiser": True, "device_iterations": 3}),
    "vit, inference": ("vit", "bow-1", {"training": False, "device_iterations": 4}),
}
MORE: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert, single, GC2": ("bert", "gc2-1", {"precision": "16.32"}),
    "gpt2, single": ("gpt2", "bow-1", {"precision": "32.32"}),
    "resnet50, replicated": ("resnet50", "pod4", {"replicas": 4, "gradient_accumulation": 3}),
    "bert, inference": ("bert", "bow-1", {"training": False, "device_iterations": 5}),
    "bert, packed, pipeline": ("bert", "bow-pod4", {**PIPELINE, "packed": True, "optimiser": "lamb"}),
    "bert, stash in DDR": ("bert", "bow-pod4", {**PIPELINE, "offload_activations": True}),
    "gpt2, pipeline, RTS": (
        "gpt2",
        "pod16",
        {**PIPELINE, **OFFLOADED, "layers_per_ipu": (0, 1, 1), "replicas": 4, "gradient_accumulation": 8},
    ),
    "resnet50, single": ("resnet50", "gc200-1", {"norm": "batch"}),
    "resnet50, single, GC2": ("resnet50", "gc2-1", {"norm": "group", "eight_bit_io": False}),
    "resnet50, pipeline": ("resnet50", "pod4", {**TWO, "recompute": False, "return_all": True}),
    "vit, single, GC2": ("vit", "gc2-1", {}),
    "roformer, pipeline": ("roformer", "pod4", {**PIPELINE, "replicas": 2, "optimiser": "lars"}),
    "swin, inference": ("swin", "bow-1", {"training": False, "device_iterations": 3}),
    "clip, inference": ("clip", "gc200-1", {"device_iterations": 3}),
    "conformer, pipeline, clipped": ("conformer", "pod16", {**PIPELINE, "replicas": 4}),
    "small_cnn, replicated": ("small_cnn", "bow-pod4", {"replicas": 2, "gradient_accumulation": 1}),
    "vit, pipeline, replicated": ("vit", "bow-pod16", {**PIPELINE, **OFFLOADED, "replicas": 8, "device_iterations": 2}),
}
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

        names = ("attention", "bert", "clip", "encoder", "gpt2", "ipu_run", "mnist_cnn", "mnist_mlp", "resnet50")
        names += ("conformer", "roformer", "small_cnn", "swin", "vit")
        rooms = {name: importlib.import_module(f"ipuperf.models.{name}") for name in names}
        yield SimpleNamespace(poptorch=poptorch, **rooms)


def _poptorch(models: SimpleNamespace, room: str, changes: Mapping[str, Any], machine: str) -> Executable:
    kinds = {"bert": "BertOptions", "gpt2": "Gpt2Options", "resnet50": "ResNet50Options", "vit": "VitOptions"}
    kinds |= {"roformer": "RoformerOptions", "swin": "SwinOptions", "clip": "ClipOptions"}
    kinds |= {"small_cnn": "SmallCnnOptions", "conformer": "ConformerOptions"}
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


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_conservation(models: SimpleNamespace, name: str) -> None:
    trace = _executable(models, name).trace
    assert check(trace) == []
    conserves(trace)
