"""BERT, GPT-2, ResNet-50 and ViT: their mathematics against PyTorch, and calls in simulated time only."""

import copy
import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf.lowering import Phase  # noqa: E402
from ipuperf.poptorch import Error, UnsupportedError, compile_offline, inferenceModel, simulate, trainingModel  # noqa: E402

RATE = 0.05
EXACT = {"precision": "32.32", "memory_proportions": (), "micro_batch": 2, "return_all": True}
TRANSFORMER = {"layers": 2, "hidden": 16, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
BERT = {**TRANSFORMER, "feed_forward": 32, "vocabulary": 23, "sequence": 8, "positions": 8, "masked_tokens": 3}
BERT |= {"layers_per_ipu": (1, 1), "gradient_accumulation": 5, "embedding_parts": 2}
GPT2 = {**TRANSFORMER, "vocabulary": 21, "sequence": 8, "layers_per_ipu": (1, 1), "gradient_accumulation": 5}
GPT2 |= {"loss_parts": 2, "embedding_parts": 2}
RESNET = {"image": 32, "width": 4, "classes": 5, "blocks": (1, 1, 0, 0), "layers_per_ipu": (1, 1), "groups": 2}
RESNET |= {"gradient_accumulation": 3}
ROFORMER = {"layers": 2, "hidden": 16, "heads": 2, "dropout": 0.0, "feed_forward": 32, "vocabulary": 23, "sequence": 8}
ROFORMER |= {"layers_per_ipu": (1, 1), "gradient_accumulation": 3}
VIT = {**TRANSFORMER, "feed_forward": 32, "image": 16, "patch": 8, "classes": 5, "layers_per_ipu": (1, 1)}
VIT |= {"gradient_accumulation": 3}
CONFORMER = {**TRANSFORMER, "feed_forward": 32, "decoder_layers": 1, "kernel": 3, "frames": 31, "features": 12}
CONFORMER |= {"vocabulary": 20, "text": 4, "layers_per_ipu": (1, 1), "gradient_accumulation": 3}


@pytest.fixture(scope="module")
def models(installed_front_ends: Callable[[], Any]) -> Iterator[SimpleNamespace]:
    """The modules of the models."""
    with installed_front_ends():
        names = ("attention", "bert", "conformer", "gpt2", "ipu_run", "resnet50", "roformer", "vit")
        yield SimpleNamespace(**{name: importlib.import_module(f"ipuperf.models.{name}") for name in names})


def options_of(models: SimpleNamespace, name: str, **changes: Any) -> Any:
    """Tiny options of a model."""
    kinds = {
        "bert": (models.bert.BertOptions, BERT),
        "conformer": (models.conformer.ConformerOptions, CONFORMER),
        "gpt2": (models.gpt2.Gpt2Options, GPT2),
        "resnet50": (models.resnet50.ResNet50Options, RESNET),
        "roformer": (models.roformer.RoformerOptions, ROFORMER),
        "vit": (models.vit.VitOptions, VIT),
    }
    kind, sizes = kinds[name]
    return kind(**{**sizes, **changes})


def spread(module: Any) -> Any:
    """``module`` with parameters that are neither zero nor small, so that every gradient counts."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return module


def flat(result: Any) -> list[Any]:
    """The tensors of a result."""
    return list(result) if isinstance(result, tuple) else [result]


def close(mine: Any, wanted: Any, name: str = "") -> None:
    np.testing.assert_allclose(mine.detach().numpy(), wanted.detach().numpy(), rtol=2e-4, atol=2e-5, err_msg=name)


# -- mathematics -------------------------------------------------------------------------------------------------------

CASES = [
    ("bert", {"split_qkv": True}),
    ("bert", {"packed": True, "epsilon": 1e-5, "mask_made": "first"}),
    ("bert", {"questions": True}),
    ("bert", {"packed": True, "next_sentence": False, "mask_made": "layers"}),
    ("bert", {"halves": ((1, 3), (0, 1)), "layers_per_ipu": (0, 2)}),
    ("gpt2", {}),
    ("resnet50", {"norm": "batch"}),
    pytest.param("resnet50", {"norm": "group", "cardinality": 2, "group_width": 4}, marks=pytest.mark.slow),
    ("vit", {}),
    ("conformer", {"max_grad_norm": math.inf}),
]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "changes"),
    CASES,
    ids=["bert", "packed", "answers", "masked", "halves", "gpt2", "resnet50", "resnext", "vit", "conformer"],
)
def test_two_training_steps_are_those_of_pytorch(models: SimpleNamespace, name: str, changes: dict[str, Any]) -> None:
    """Results of all micro-batches, then parameters and running statistics, after two weight updates with SGD."""
    options = options_of(models, name, device_iterations=2, **EXACT, **changes)
    room = getattr(models, name)
    torch.manual_seed(0)
    module = spread(room.model(options))
    native = copy.deepcopy(module)
    batch = room.batch(options)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    results = flat(trainingModel(module, room.poptorch_options(options), optimizer=optimizer)(*batch))

    optimizer = torch.optim.SGD(native.parameters(), lr=RATE)
    found: list[list[Any]] = []
    for update in zip(*(t.chunk(2) for t in batch), strict=True):
        optimizer.zero_grad()
        for arguments in zip(*(t.chunk(options.gradient_accumulation) for t in update), strict=True):
            integers = [t.long() if t.dtype == torch.int32 else t for t in arguments]
            found.append(flat(native(*integers)))
            loss = found[-1][0] if name in ("bert", "conformer") else found[-1][-1]
            (loss / options.gradient_accumulation).backward()
        optimizer.step()

    for mine, wanted in zip(results, zip(*found, strict=True), strict=True):
        close(mine, torch.stack(wanted) if wanted[0].dim() == 0 else torch.cat(wanted))
    theirs = native.state_dict()
    assert theirs
    for key, value in module.state_dict().items():
        close(value, theirs[key], key)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("gpt2", {}), ("resnet50", {"norm": "group", "eight_bit_io": False}), ("resnet50", {"norm": "folded"})],
    ids=["gpt2", "group", "folded"],
)
def test_inference_is_that_of_pytorch(models: SimpleNamespace, name: str, changes: dict[str, Any]) -> None:
    options = options_of(models, name, training=False, device_iterations=3, **EXACT, **changes)
    room = getattr(models, name)
    module = spread(room.model(options)).eval()
    batch = room.batch(options)
    mine = inferenceModel(module, room.poptorch_options(options))(*batch)
    close(mine, module(*(t.long() if t.dtype == torch.int32 else t for t in batch)))


def test_a_causal_model_does_not_see_later_tokens(models: SimpleNamespace) -> None:
    options = options_of(models, "gpt2", training=False)
    module = models.gpt2.model(options).eval()
    tokens = torch.arange(8)[None]
    changed = torch.cat([tokens[:, :5], tokens[:, 5:] + 3], dim=1)
    before, after = module(tokens), module(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("made", ["ipu", "first", "layers"])
def test_packed_sequences_do_not_see_each_other(models: SimpleNamespace, made: str) -> None:
    options = options_of(models, "bert", packed=True, training=False, heads_on_ipu=False, mask_made=made)
    module = models.bert.model(options).eval()
    tokens, segments = torch.arange(8)[None], torch.zeros(1, 8, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 2, 2, 2, 0, 0]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    changed = torch.cat([tokens[:, :3], tokens[:, 3:] + 3], dim=1)
    before, after = (module(t, mask, segments, positions=positions) for t in (tokens, changed))
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:6], after[:, 3:6])


@pytest.mark.heavy
def test_gelu_and_norms_in_float32_keep_the_numbers_and_cost_casts(models: SimpleNamespace) -> None:
    """In half precision the two programs agree within rounding; the wide one has GELU and norms of floats, with a cast
    before and after each: two layers of a GELU and two norms, and the norm of the embeddings, are seven."""

    def run(options: Any) -> tuple[list[Any], int, bool]:
        """Results, number of casts, whether GELU is one of floats."""
        torch.manual_seed(0)
        module = models.ipu_run.cast(spread(models.bert.model(options)), options).eval()
        mine = flat(inferenceModel(module, models.bert.poptorch_options(options))(*models.bert.batch(options)))
        batch = models.bert.batch(options, "meta")
        compiled = models.ipu_run.compiled_of(lambda: models.bert.model(options), options, batch)
        program = compiled.executable.device_program
        vertices = {step.vertex for ipu in (0, 1) for step in program.walk(ipu) if isinstance(step, Phase)}
        casts = [op for op in program.ops if op.type == "Cast"]
        return mine, len(casts), "popnn::NonLinearity1D<GELU,float>" in vertices

    usual = options_of(
        models, "bert", questions=True, training=False, micro_batch=2, precision="16.16", device_iterations=2
    )
    narrow, wide = run(usual), run(replace(usual, wide=True))
    for one, two in zip(narrow[0], wide[0], strict=True):
        torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2)
    assert (wide[1] - narrow[1], narrow[2], wide[2]) == (14, False, True)


def test_rotated_tokens_know_how_far_apart_they_are(models: SimpleNamespace) -> None:
    """The product of two rotated tokens depends on their distance alone."""
    cosine, sine = models.roformer.rotations(6, 8)
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randn(8, generator=generator).expand(6, 8) for _ in range(2))
    products = models.roformer.rotated(one, cosine, sine) @ models.roformer.rotated(two, cosine, sine).T
    for distance in range(-5, 6):
        along = torch.diagonal(products, distance)
        torch.testing.assert_close(along, along[:1].expand(along.shape))
    assert not torch.allclose(products[0, 0], products[0, 1])


def test_parameters_are_as_many_as_published(models: SimpleNamespace) -> None:
    """BERT base and large without heads, GPT-2 small, ResNet-50, ViT-B/16 (papers; torchvision for the last two)."""
    with torch.device("meta"):
        made = {
            "bert base": models.bert.model(models.bert.base(heads_on_ipu=False)),
            "bert large": models.bert.model(models.bert.large(heads_on_ipu=False)),
            "gpt2": models.gpt2.model(models.gpt2.small(embedding_parts=1)),
            "resnet50": models.resnet50.model(models.resnet50.pretraining()),
            "resnext101": models.resnet50.model(models.resnet50.resnext101()),
            "vit": models.vit.model(models.vit.fine_tuning()),
        }
    counts = {name: sum(p.numel() for p in module.parameters()) for name, module in made.items()}
    pooler = {"bert base": 768 * 769, "bert large": 1024 * 1025}
    assert counts["bert base"] + pooler["bert base"] == 109_482_240
    assert counts["bert large"] + pooler["bert large"] == 335_141_888
    assert counts["gpt2"] == 124_439_808
    assert counts["resnet50"] == 25_557_032
    assert counts["resnext101"] == 44_177_704
    assert counts["vit"] == 86_567_656


# -- simulated time only -----------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_the_trace_is_that_of_the_executor(models: SimpleNamespace) -> None:
    """Shapes alone give the program that runs with numbers (PyTorch names a few tensors otherwise)."""
    options = options_of(models, "vit", **EXACT)
    module = models.vit.model(options)
    executor = trainingModel(
        module, models.vit.poptorch_options(options), optimizer=models.ipu_run.optimiser_of(module, options)
    )
    executor.compile(*models.vit.batch(options))
    trace = executor.simulated_trace
    offline = models.vit.simulate(options)
    assert offline.meta == trace.meta
    for table in (
        "ops",
        "programs",
        "steps",
        "instances",
        "tile_memory",
        "liveness",
        "transfers",
        "host_events",
        "runs",
    ):
        for key, values in trace.columns(table).items():
            if (table, key) == ("ops", "line"):  # the two are compiled on different lines of this test
                continue
            np.testing.assert_array_equal(offline.columns(table)[key], values, err_msg=f"{table}.{key}")


def test_nothing_is_computed_and_nothing_is_filled(models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 400 million parameters with AdamW: 5 GB of weights and state that no memory is given to."""
    import resource

    import ipuperf.numerics

    def refuse(*_: object) -> None:
        raise AssertionError("an evaluator was made")

    monkeypatch.setattr(ipuperf.numerics, "Evaluator", refuse)
    with torch.device("meta"):
        module = torch.nn.Linear(20_000, 20_000)
        inputs = torch.empty(8, 20_000)

    class Squares(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.mse_loss(self.inner(x), x)

    whole = Squares()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer = torch.optim.AdamW(whole.parameters())
    compiled = compile_offline(whole, None, inputs, optimizer=optimizer, machine="gc200-1", name="wide")
    assert compiled.executable.name == "wide"
    assert compiled.rule is not None
    assert compiled.pipeline.state
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB: one of the three is 1.6 GB


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["bert", "resnet50"])
def test_throughput_in_half_precision(models: SimpleNamespace, name: str) -> None:
    """The figures belong together, offloaded and sharded over two replicas; norms keep their statistics."""
    options = options_of(
        models, name, replicas=2, offload_optimiser=True, sharding=True, micro_batch=2, layers_per_ipu=(2,)
    )
    assert options.half
    found = getattr(models, name).throughput(options, "pod4")
    samples = 2 * 2 * options.gradient_accumulation
    assert found["samples_per_second"] == pytest.approx(samples / found["run_seconds"])
    assert found["step_seconds"] == found["run_seconds"]
    assert found["fits"]
    assert 0 < found["max_tile_bytes"] <= found["bytes_per_tile"]
    assert found["ipus"] == 2


def test_packed_throughput_counts_sequences(models: SimpleNamespace) -> None:
    options = options_of(models, "bert", packed=True, sequences_in_pack=2.0, training=False, device_iterations=4,
                         layers_per_ipu=(2,), heads_on_ipu=False)  # fmt: skip
    found = models.bert.throughput(options, "bow-1")
    assert found["samples_per_second"] == pytest.approx(8 / found["run_seconds"])
    assert found["step_seconds"] == pytest.approx(found["run_seconds"] / 4)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit", {"precision": "8.8"}, "precision '8.8'; allowed: 32.32, 16.32, 16.16"),
        ("vit", {"host_processes": 3}, "host_processes 3: allowed: 1 to 1"),
        ("vit", {"optimiser": "adagrad"}, "optimiser 'adagrad'; allowed: sgd, adam, adamw, lamb, lars"),
        ("vit", {"layers_per_ipu": ()}, "layers_per_ipu"),
        ("resnet50", {"norm": "layer"}, "norm 'layer'; allowed: batch, group, folded"),
        ("bert", {"mask_made": "last"}, "mask_made 'last'; allowed: ipu, first, layers"),
        ("bert", {"mask_made": "layers"}, "mask_made 'layers' is for packed rows"),
    ],
)
def test_bad_options(models: SimpleNamespace, name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options_of(models, name, **changes)


def test_bad_sizes(models: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="places 3 layers, the model has 2"):
        models.vit.model(options_of(models, "vit", layers_per_ipu=(1, 2)))
    with pytest.raises(ValueError, match="hidden size 16 is not a multiple of the 3 heads"):
        models.vit.model(options_of(models, "vit", heads=3))
    few = options_of(models, "vit", gradient_accumulation=2)
    with pytest.raises(Error, match="the pipeline needs .* or more"):
        models.vit.simulate(few)


def test_bad_halves(models: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="place 3 half layers, the model has 4"):
        models.bert.model(options_of(models, "bert", halves=((1, 3),)))
    with pytest.raises(ValueError, match="place other attention parts than layers_per_ipu"):
        models.bert.model(options_of(models, "bert", halves=((1, 4),)))


def test_bad_calls(models: SimpleNamespace) -> None:
    options = options_of(models, "vit", training=False, device_iterations=2)
    module = models.vit.model(options)
    settings = models.vit.poptorch_options(options)
    with pytest.raises(Error, match="an inference has no optimiser"):
        simulate(module, settings, training=False, optimizer=torch.optim.SGD(module.parameters(), lr=1.0))
    with pytest.raises(AssertionError, match=r"'images'.*2 does not divide 3"):
        simulate(module, settings, torch.empty(3, 3, 16, 16), training=False)
    assert issubclass(UnsupportedError, Error)
    assert replace(options, replicas=4).samples_per_call == 8
