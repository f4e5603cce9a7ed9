"""The commands of the pages of the vendor's applications, where these and their packages are at hand."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import ROOT, Block, blocks_of, run, steps_of, text_of

EXAMPLES = ROOT.parent / "shared" / "upstream" / "examples"
PAGES = ("docs/applications/popxl.md", "docs/applications/poptorch.md")
BESIDE = "docs/applications/index.md"
"""Its files make what programs would download, and let ``popxl`` stand for ipuperf in test runs."""
DATA = "docs/applications/make_data.py"

NEEDS = {
    "nlp/bert/popxl": "torch, transformers, datasets, tfrecord, simple_parsing, yaml, scipy, wandb",
    "nlp/bert/pytorch": "torch, transformers, tfrecord, scipy, yaml, wandb",
    **dict.fromkeys(
        [f"nlp/{name}/popxl" for name in ("bloom", "dolly", "gpt_j", "llama")],
        "torch, transformers, datasets, simple_parsing, yaml, scipy, wandb",
    ),
    "nlp/gpt3_175B/popxl": "torch, transformers, datasets, tfrecord, simple_parsing, yaml, scipy, wandb",
    "vision/cnns/pytorch": "torch, torchvision, timm, yaml, wandb",
    "vision/vit/pytorch": "torch, torchvision, transformers, attrdict, randaugment, yaml, wandb",
    "vision/yolo_v4/pytorch": "torch, torchvision, yacs, ruamel.yaml, pycocotools, torchinfo, wandb",
    "vision/mae/pytorch": "torch, torchvision, timm, simplejpeg, yaml, wandb",
    "vision/dino/pytorch": "torch, torchvision, yaml, wandb",
    "nlp/gpt2/pytorch": "torch, tfrecord, wandb",
    "speech/conformer/pytorch": "torch, torchaudio, fire, yaml, wandb",
    "speech/fastpitch/pytorch": "torch, librosa, parselmouth, inflect, unidecode, tensorboard, wandb",
    "vision/cnns/pytorch-lightning": "torch, torchvision, pytorch_lightning",
    "feature_examples/octconv": "torch, torchvision, octconv",
}
"""What the programs of an application import."""

_SECTION = re.compile(r"^## [^\n]*\(`([\w/.-]+)`\)$(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def sections(page: str) -> dict[str, list[Block]]:
    """The blocks of each application's section, by its folder."""
    blocks = blocks_of(page)
    inside = {
        folder: [block for block in blocks if block.text in text] for folder, text in _SECTION.findall(text_of(page))
    }
    return {folder: of_it for folder, of_it in inside.items() if of_it}


SECTIONS = {folder: blocks for page in PAGES for folder, blocks in sections(page).items()}


def test_every_block_belongs_to_an_application() -> None:
    assert sum(map(len, SECTIONS.values())) == sum(len(blocks_of(page)) for page in PAGES)
    assert set(SECTIONS) == set(NEEDS)


@pytest.mark.slow("minutes")
@pytest.mark.parametrize("folder", SECTIONS)
def test_the_commands_of_an_application_run(folder: str, tmp_path: Path, child_environment: dict[str, str]) -> None:
    if not EXAMPLES.is_dir():
        pytest.skip("the vendor's applications are not at hand")
    imports = subprocess.run(
        [sys.executable, "-c", f"import {NEEDS[folder]}"], capture_output=True, text=True, check=False
    )
    if imports.returncode:
        pytest.skip(imports.stderr.splitlines()[-1])
    copy = tmp_path / "page"
    shutil.copytree(EXAMPLES / folder, copy, copy_function=shutil.copyfile)
    shutil.copyfile(ROOT / DATA, copy / "make_data.py")
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    steps = steps_of([*blocks_of(BESIDE), *SECTIONS[folder]])
    for step, (code, printed) in zip(steps, run(steps, copy, child_environment), strict=False):
        assert code == step.exit, f"exit code {code} of\n{step.text}\n{printed[-3000:]}"
