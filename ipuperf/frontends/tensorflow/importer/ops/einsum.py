"""``Einsum`` of one and two operands: sums, transposes and one batched matrix product."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from ipuperf.functions import reductions
from ipuperf.functions.arranging import broadcast, permuted, reshaped
from ipuperf.functions.products import matmul
from ipuperf.ir import Tensor

from ..node import Node
from ..table import Family

FAMILY = Family("Einsum")
op = FAMILY.op


def _labels(node: Node, equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """Labels of the operands' axes and of the result's, letters for those of ``...``."""
    left, _, result = equation.replace(" ", "").partition("->")
    free = [c for c in string.ascii_letters if c not in equation]
    found, most = [], 0
    for labels, tensor in zip(left.split(","), operands, strict=True):
        count = len(tensor.shape) - len(labels.replace("...", ""))
        most = max(most, count)
        found.append(labels.replace("...", "".join(reversed(free[:count]))))
    if any(len(set(labels)) != len(labels) for labels in found):
        raise node.error(f"equation {equation!r}: a label that an operand has twice; allowed: each once per operand")
    return found, result.replace("...", "".join(reversed(free[:most])))


def _summed(tensor: Tensor, labels: str, kept: str) -> tuple[Tensor, str]:
    """Without the axes that nothing else has."""
    axes = [i for i, c in enumerate(labels) if c not in kept]
    rest = "".join(c for c in labels if c in kept)
    return (reductions.sum(tensor, axes), rest) if axes else (tensor, rest)


def _ordered(tensor: Tensor, labels: str, wanted: str) -> Tensor:
    return permuted(tensor, [labels.index(c) for c in wanted])


@op("Einsum", "XlaEinsum")
def einsum(node: Node, *operands: Tensor) -> Tensor:
    """Products summed over the labels that the result does not have."""
    labels, result = _labels(node, node.attr("equation"), operands)
    if len(operands) == 1:
        tensor, rest = _summed(operands[0], labels[0], result)
        return _ordered(tensor, rest, result)
    if len(operands) > 2:
        raise node.error(f"{len(operands)} operands; allowed: one or two (tf.einsum makes pairs of more)")
    left, a = _summed(operands[0], labels[0], labels[1] + result)
    right, b = _summed(operands[1], labels[1], labels[0] + result)
    return _product(left, a, right, b, result)


def _product(left: Tensor, a: str, right: Tensor, b: str, result: str) -> Tensor:
    sizes = {c: max(n, 1) for labels, t in ((a, left), (b, right)) for c, n in zip(labels, t.shape) if n != 1}
    both = [c for c in a if c in b]
    left = broadcast(left, [sizes.get(c, 1) if c in both else n for c, n in zip(a, left.shape)])
    right = broadcast(right, [sizes.get(c, 1) if c in both else n for c, n in zip(b, right.shape)])
    batch = "".join(c for c in result if c in both)
    inner = "".join(c for c in a if c in b and c not in result)
    rows, columns = ("".join(c for c in labels if c not in both) for labels in (a, b))
    length = dict(zip(a, left.shape)) | dict(zip(b, right.shape))

    def count(labels: str) -> int:
        return math.prod(length[c] for c in labels)

    lead = [count(batch)] if batch else []
    lhs = reshaped(_ordered(left, a, batch + rows + inner), (*lead, count(rows), count(inner)))
    rhs = reshaped(_ordered(right, b, batch + inner + columns), (*lead, count(inner), count(columns)))
    whole = batch + rows + columns
    product = reshaped(matmul(lhs, rhs), [length[c] for c in whole])
    return _ordered(product, whole, result)
