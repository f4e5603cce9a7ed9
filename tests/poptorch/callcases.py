"""Calls of PyTorch with arguments of every kind, a line each of ``calls/``: names that stand in them are operands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from atencases import labels, noise, positive

OPERANDS: dict[str, Any] = {
    "x": noise(3, 4), "y": noise(3, 4).flip(0) * 1.5, "p": positive(3, 4), "u": noise(3, 4).tanh() * 0.9,
    "v": noise(4), "w": noise(3), "q": noise(4, 5), "k": noise(2, 3, 4), "l": noise(2, 4, 5), "o": torch.tensor(0.7),
    "e": noise(1, 4), "f": noise(2, 1, 3), "im": noise(2, 4, 6, 6), "li": noise(2, 4, 8), "vo": noise(2, 2, 4, 4, 4),
    "n": torch.tensor([[12, -7, 3, 3], [5, 0, -7, 1], [3, 9, 2, -1]], dtype=torch.int32),
    "d": torch.tensor([[2, 3, 1, 5], [1, 2, 2, 4], [3, 4, 5, 1]], dtype=torch.int32),
    "c": torch.tensor([[True, False, True, True], [False] * 4, [True, True, False, False]]),
    "h": torch.tensor([True, False, True]),
    "i": labels(3, 3, 4), "j": torch.tensor([2, 0, 3, 3, 1]), "g": torch.tensor([2, 0, 1]), "b": torch.tensor(1),
    "s": torch.tensor([-1.0, 0.0, 0.5]), "r": torch.tensor([[-1.0, 0.0], [-0.5, 0.25], [0.0, 2.0]]),
    "z": torch.tensor([[1.5, 1.5, 0.0, -2.0], [0.0, -0.5, 0.5, 1.5], [2.5, -2.5, 3.25, 0.125]]),
    "ck": noise(6, 4, 3, 3) * 0.5, "cg": noise(6, 2, 3, 3) * 0.5, "cl": noise(6, 4, 3) * 0.5, "cb": noise(6),
    "ct": noise(4, 6, 3, 3) * 0.5, "bw": noise(5, 4, 4), "t5": positive(5),
    "aq": noise(2, 4, 3, 4), "ak": noise(2, 2, 5, 4),
    "aw": noise(12, 4) * 0.5, "ab": noise(12), "hw": torch.hann_window(4),
    "la": torch.tensor([1, 3, 0]), "lp": noise(3, 4).softmax(1),
    "ml": torch.tensor([[1, 3, -1, 0], [0, -1, 2, 1], [3, 2, 1, 0]]),
}  # fmt: skip


def calls_of(subject: str) -> list[str]:
    """The calls of a subject, also of ``random`` and ``refused``."""
    path = Path(__file__).parent / "calls" / f"{subject.replace(' ', '_')}.txt"
    return path.read_text(encoding="utf-8").splitlines()


SUBJECTS = (
    *("arithmetic", "elements", "reductions", "pools", "order", "indexing", "products", "shapes", "losses", "norms"),
    *("formulas", "public names"),
)


def called(text: str, number: int, file: str) -> tuple[Any, list[Any]]:
    """A call as a function, and its operands; its ops have line ``number`` of ``file`` as their place."""
    names = [name for name in OPERANDS if re.search(rf"(?<![\w.'])\b{name}\b(?!['=(])", text)]
    code = compile("\n" * (number - 1) + f"lambda {', '.join(names)}: {text}", file, "eval")
    return eval(code, {"torch": torch, "F": torch.nn.functional}), [OPERANDS[name] for name in names]
