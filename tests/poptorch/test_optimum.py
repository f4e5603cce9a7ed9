"""Optimum Graphcore 0.7.1 from the registry, unmodified: its trainers beside Transformers' own, its generation on the
device beside Transformers' on the CPU. Random weights, no downloads."""

import copy
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf.runtime.install import install, uninstall  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        find_spec("optimum") is None or find_spec("optimum.graphcore") is None, reason="needs optimum-graphcore"
    ),
    pytest.mark.filterwarnings("ignore"),
]

TOKENS = torch.randint(2, 64, (48, 12), generator=torch.Generator().manual_seed(1))
TEXT = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64,
        "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip


class Rows(torch.utils.data.Dataset):
    """A data set of columns."""

    def __init__(self, **columns: torch.Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The names of Optimum Graphcore and Transformers, trainers in the data's order."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    install()
    import optimum.graphcore as og
    import transformers as tf
    from optimum.graphcore.modeling_utils import to_pipelined

    tf.utils.logging.set_verbosity_error()

    def in_order(trainer: type) -> type:
        def sampler(self: Any, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        return type(trainer.__name__, (trainer,), {"_get_train_sampler": sampler})

    yield SimpleNamespace(
        tf=tf,
        og=og,
        to_pipelined=to_pipelined,
        **{name: in_order(getattr(og, name)) for name in ("IPUTrainer", "IPUSeq2SeqTrainer")},
        **{name: in_order(getattr(tf, name)) for name in ("Trainer", "Seq2SeqTrainer")},
    )
    uninstall()
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "CppFinder"]


def config(hf: SimpleNamespace, stages: int = 2, accumulation: int = 4, replicas: int = 1, **more: Any) -> Any:
    """Four layers on so many IPUs, every loss sent back."""
    return hf.og.IPUConfig(
        layers_per_ipu=[4 // stages] * stages, ipus_per_replica=stages, gradient_accumulation_steps=accumulation,
        replication_factor=replicas, matmul_proportion=0.6, output_mode="all", **more
    )  # fmt: skip


def common(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "num_train_epochs": 1, "logging_steps": 1, "learning_rate": 1e-3, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True, "log_level": "error", "per_device_eval_batch_size": 2,
        "per_device_train_batch_size": 2,
    }  # fmt: skip


def ours(hf: SimpleNamespace, model: Any, data: Rows, ipus: Any, folder: Path, **more: Any) -> Any:
    """Optimum's trainer, after training."""
    kind = "Seq2Seq" if more.pop("seq2seq", False) else ""
    arguments = getattr(hf.og, f"IPU{kind}TrainingArguments")(**common(folder) | {"fp32": True} | more)
    trainer = getattr(hf, f"IPU{kind}Trainer")(
        model=model, ipu_config=ipus, args=arguments, train_dataset=data, eval_dataset=data
    )
    trainer.train()
    return trainer


def theirs(hf: SimpleNamespace, model: Any, data: Rows, ipus: Any, folder: Path, seq2seq: bool = False) -> Any:
    """Transformers' trainer, after training with Optimum's optimiser: AdamW without bias correction, no clipping.

    A weight ``w`` that Optimum holds as ``w / 8`` (T5's ``wo`` of the encoder) has 8 times the rate: the gradient is 8
    times as large there, which Adam divides out again but for its epsilon.
    """
    kind = "Seq2Seq" if seq2seq else ""
    batch = {"per_device_train_batch_size": 2 * ipus.replication_factor}
    accumulation = ipus.gradient_accumulation_steps
    arguments = getattr(hf.tf, f"{kind}TrainingArguments")(
        **common(folder) | batch, gradient_accumulation_steps=accumulation, no_cuda=True, max_grad_norm=0.0
    )
    divided = _divided_by_eight(model)
    others = [one for name, one in model.named_parameters() if name not in divided]
    optimiser = hf.tf.AdamW(
        [{"params": others}, {"params": list(divided.values()), "lr": 8e-3, "eps": 1e-8 / 8}],
        lr=1e-3, eps=1e-8, correct_bias=False, weight_decay=0.0, no_deprecation_warning=True,
    )  # fmt: skip
    trainer = getattr(hf, f"{kind}Trainer")(
        model=model, args=arguments, train_dataset=data, eval_dataset=data, optimizers=(optimiser, None)
    )
    trainer.train()
    return trainer


def _divided_by_eight(model: Any) -> dict[str, Any]:
    """The weights that Optimum's form of this model holds divided by 8 (its ``modeling_t5.py``)."""
    if model.config.model_type not in ("t5", "mt5"):
        return {}
    encoder = model.get_encoder().named_parameters()
    return {f"encoder.{name}": one for name, one in encoder if name.endswith("DenseReluDense.wo.weight")}


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def bert(hf: SimpleNamespace) -> tuple[Any, Rows]:
    torch.manual_seed(0)
    model = hf.tf.BertForSequenceClassification(hf.tf.BertConfig(**TEXT))
    return model, Rows(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), labels=TOKENS.sum(1) % 2)


def gpt2(hf: SimpleNamespace) -> tuple[Any, Rows]:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 32, "bos_token_id": 0}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = hf.tf.GPT2LMHeadModel(hf.tf.GPT2Config(**sizes, **off, eos_token_id=1, pad_token_id=1))
    return model, Rows(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), labels=TOKENS)


def vit(hf: SimpleNamespace) -> tuple[Any, Rows]:
    torch.manual_seed(0)
    sizes = {name: TEXT[name] for name in TEXT if name not in ("vocab_size", "max_position_embeddings")}
    model = hf.tf.ViTForImageClassification(hf.tf.ViTConfig(**sizes, image_size=16, patch_size=4))
    return model, Rows(pixel_values=torch.randn(48, 3, 16, 16), labels=TOKENS[:, 0] % 2)


def t5(hf: SimpleNamespace) -> tuple[Any, Rows]:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    made = hf.tf.T5Config(**sizes, dropout_rate=0.0, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    model = hf.tf.T5ForConditionalGeneration(made)
    return model, Rows(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), labels=TOKENS[:, :8])


def whisper(hf: SimpleNamespace) -> tuple[Any, Rows]:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 64}  # fmt: skip
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3, "num_mel_bins": 8}
    made = hf.tf.WhisperConfig(**sizes, **special, max_source_positions=20, max_target_positions=32, dropout=0.0)
    model = hf.tf.WhisperForConditionalGeneration(made)
    return model, Rows(input_features=torch.randn(48, 8, 40), labels=TOKENS[:, :8])


@pytest.mark.parametrize(
    ("make", "stages", "accumulation", "replicas"),
    [(bert, 2, 4, 1), (bert, 4, 8, 1), (bert, 2, 4, 2), (gpt2, 2, 8, 1), (vit, 2, 4, 1)],
    ids=["bert", "bert-4-stages", "bert-2-replicas", "gpt2", "vit"],
)
def test_training(
    hf: SimpleNamespace, tmp_path: Path, make: Any, stages: int, accumulation: int, replicas: int
) -> None:
    model, data = make(hf)
    ipus = config(hf, stages, accumulation, replicas)
    mine = ours(hf, copy.deepcopy(model), data, ipus, tmp_path)
    expected = theirs(hf, model, data, ipus, tmp_path)
    assert losses(mine) == pytest.approx(losses(expected), abs=1e-4)
    assert len(losses(mine)) > 2
    assert mine.evaluate()["eval_loss"] == pytest.approx(expected.evaluate()["eval_loss"], abs=1e-4)
    mine.save_model(str(tmp_path / "kept"))
    kept = type(model).from_pretrained(tmp_path / "kept").state_dict()
    for name, tensor in expected.model.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(kept[name], tensor, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("make", "seq2seq"), [(bert, False), (whisper, True)], ids=["bert", "whisper"])
def test_half(hf: SimpleNamespace, tmp_path: Path, make: Any, seq2seq: bool) -> None:
    """In float16; Whisper's spectra come as float32. Another trainer finds the export in the folder for executables."""
    model, data = make(hf)
    ipus = config(hf, executable_cache_dir=str(tmp_path / "executables"))
    half = {"fp32": False, "loss_scaling": 64.0, "seq2seq": seq2seq}
    mine = ours(hf, copy.deepcopy(model), data, ipus, tmp_path, **half)
    assert {p.dtype for p in mine.model.parameters()} == {torch.float16}
    assert losses(mine) == pytest.approx(
        losses(theirs(hf, copy.deepcopy(model), data, ipus, tmp_path, seq2seq)), abs=5e-3
    )
    kept = list((tmp_path / "executables").iterdir())
    assert losses(ours(hf, model, data, ipus, tmp_path, **half)) == losses(mine)
    assert list((tmp_path / "executables").iterdir()) == kept != []


def test_a_pipeline(hf: SimpleNamespace) -> None:
    """Classes and scores of Transformers' pipeline, also after the batch size changed. GELU is PopART's."""
    tokens = hf.tf.PreTrainedTokenizerFast(tokenizer_object=_words(), pad_token="w0", unk_token="w1")
    model, _ = bert(hf)
    mine = hf.og.pipeline("text-classification", model=model, tokenizer=tokens, ipu_config=config(hf, accumulation=1),
                          fp16=False, max_length=12)  # fmt: skip
    theirs = hf.tf.pipeline("text-classification", model=model, tokenizer=tokens)
    for texts in (["w5 w6"], ["w7 w8 w9", "w10"]):
        found, expected = mine(texts, batch_size=len(texts)), theirs(texts)
        assert [one["label"] for one in found] == [one["label"] for one in expected]
        assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-4)


def _words() -> Any:
    """A tokenizer of the words w0 to w63."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def test_sequence_to_sequence(hf: SimpleNamespace, tmp_path: Path) -> None:
    """T5 under Transformers' trainer, the weights that Optimum divides by 8 at the rate they have there."""
    model, data = t5(hf)
    ipus = config(hf, accumulation=8)
    mine = ours(hf, copy.deepcopy(model), data, ipus, tmp_path, seq2seq=True)
    reference = theirs(hf, model, data, ipus, tmp_path, True)
    assert losses(mine) == pytest.approx(losses(reference), abs=1e-4)
    assert mine.evaluate()["eval_loss"] == pytest.approx(reference.evaluate()["eval_loss"], abs=1e-4)


MODES = {
    "greedy": (1, False, 0),
    "beam": (3, False, 0),
    "cached-beam": (3, True, 0),
    "on-device": (1, True, 3),
    "on-device-beam": (3, True, 10),
}
"""Beams, whether keys and values are kept on the device, and steps of the device's own loop, which with beams has its
result when it is as long as the tokens."""


@pytest.mark.parametrize("mode", MODES)
def test_generation(hf: SimpleNamespace, mode: str) -> None:
    """All tokens that Transformers finds on the CPU; on the device's own loop, as many as Optimum asks for."""
    model, _ = t5(hf)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3  # other tokens than one
    inputs = {"input_ids": TOKENS[:2], "attention_mask": torch.ones_like(TOKENS[:2])}
    beams, cache, steps = MODES[mode]
    expected = model.eval().generate(**inputs, max_length=10, min_length=10, num_beams=beams)
    pipelined = hf.to_pipelined(model, config(hf, accumulation=1)).eval()
    pipelined.parallelize(
        for_generation=True, use_cache=cache, batch_size=2, max_length=10, num_beams=beams,
        use_encoder_output_buffer=bool(steps), on_device_generation_steps=steps,
    )  # fmt: skip
    found = pipelined.generate(**inputs, max_length=10, min_length=10, num_beams=beams, use_cache=cache)
    assert found.shape == (2, 7 if steps == 3 else 10)
    assert torch.equal(found, expected[:, : found.shape[1]])


def test_generation_of_a_decoder(hf: SimpleNamespace) -> None:
    model, _ = gpt2(hf)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    inputs = {"input_ids": TOKENS[:2, :4], "attention_mask": torch.ones_like(TOKENS[:2, :4])}
    expected = model.eval().generate(**inputs, max_length=10, num_beams=2)
    pipelined = hf.to_pipelined(model, config(hf, accumulation=1)).eval()
    pipelined.parallelize(for_generation=True)
    assert torch.equal(pipelined.generate(**inputs, max_length=10, num_beams=2), expected)


def test_a_custom_op_in_cpp_is_one_error(hf: SimpleNamespace, tmp_path: Path) -> None:
    from optimum.graphcore.custom_ops.utils import load_lib

    source = tmp_path / "own_op.cpp"
    source.write_text("// cppimport\n#include <popart/op.hpp>\n", encoding="utf-8")
    with pytest.raises(ImportError, match=r"own_op.*adding-a-custom-op\.md"):
        load_lib(str(source))


def test_four_bit_weights(hf: SimpleNamespace) -> None:
    """Optimum's custom op of group quantisation is built in."""
    from optimum.graphcore.quantization import GroupQuantLinear

    torch.manual_seed(0)
    quantised = GroupQuantLinear.from_model(torch.nn.Linear(64, 32), 4)
    x = torch.randn(3, 64)
    expected = quantised(x)
    import poptorch

    torch.testing.assert_close(poptorch.inferenceModel(quantised)(x), expected, rtol=1e-5, atol=1e-5)
    found = poptorch.inferenceModel(quantised.half())(x.half())
    torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)


def test_generation_with_four_bit_weights(hf: SimpleNamespace) -> None:
    """The tokens of Transformers with the weights that four bits leave."""
    from optimum.graphcore.quantization import GroupQuantLinear

    model, data = whisper(hf)
    for settings in (model.config, model.generation_config):
        settings.begin_suppress_tokens = None  # those of a larger vocabulary
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    features = data.columns["input_features"][:1]
    pipelined = hf.to_pipelined(copy.deepcopy(model), config(hf, accumulation=1)).eval()
    for name, linear in model.model.named_modules():
        if isinstance(linear, torch.nn.Linear):
            assert ".layers." in name
            packed = GroupQuantLinear.from_model(linear, 16)
            eye = torch.eye(linear.in_features)
            linear.weight.data = (packed(eye) - (0 if linear.bias is None else linear.bias)).T.detach()
    expected = model.eval().generate(features, max_length=8)
    pipelined.parallelize(for_generation=True, max_length=8, use_group_quantized_linears=True)
    assert torch.equal(pipelined.generate(features, max_length=8, use_cache=False), expected)


@pytest.mark.parametrize("how", ["as it is", "dataloader_drop_last", "pad_on_batch_axis"])
def test_an_evaluation_whose_last_batch_is_smaller(hf: SimpleNamespace, tmp_path: Path, how: str) -> None:
    """PopTorch takes the shapes it was compiled for; Optimum's arguments leave the rest out, or fill the batch up with
    rows that it has, which count."""
    import poptorch

    model, data = bert(hf)
    rows = Rows(**{name: column[:7] for name, column in data.columns.items()})
    more = {} if how == "as it is" else {how: True}
    arguments = hf.og.IPUTrainingArguments(**common(tmp_path), do_eval=True, fp32=True, **more)
    trainer = hf.IPUTrainer(
        model=model, ipu_config=config(hf, accumulation=2), args=arguments, eval_dataset=rows,
        compute_metrics=lambda found: {"rows": len(found.label_ids)},
    )  # fmt: skip
    if how == "as it is":
        with pytest.raises(poptorch.Error, match=r"the model was compiled for .*drop_last=True"):
            trainer.evaluate()
        return
    assert trainer.evaluate()["eval_rows"] == (6 if how == "dataloader_drop_last" else 8)
