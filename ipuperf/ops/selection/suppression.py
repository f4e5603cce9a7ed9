"""Non-maximum suppression of boxes by class: an op in C++ that YOLO v4 of graphcore/examples brings along.

Source: its ``utils/custom_ops/nms`` (``nms.cpp``, ``codelet.cpp``).
"""

from __future__ import annotations

import numpy as np

from ipuperf.ir import INT32, TensorSpec
from ipuperf.ir.attributes import INTEGER, NUMBER, Attribute

from .. import vertices
from ..custom import CustomOp
from ..work import Copy, Vertices, Work

#: The score of a box that is out of the race, as the codelets write it.
_OUT = {"float16": -65504.0, "float32": float(np.finfo(np.float32).min)}
#: Cycles of a worker for the overlap of one box with the best one: four loads, four extrema, seven products and sums,
#: a division and two comparisons. Assumed.
_OVERLAP = 40


class Nms(CustomOp):
    """The best boxes of each image, without those that overlap a better one of their class.

    ``(scores [batch, boxes, classes], boxes [batch, boxes, 4] as two corners) -> (positions [batch, K] int32, scores,
    boxes [batch, K, 4], classes int32, their number [batch] int32)``. Places without a box have position -1, score 0
    and the largest class number. As upstream, all images stop together, where the first one has no box left.

    Attributes:
        threshold: overlap (intersection over union) above which a box is dropped.
        scoreThreshold: a box needs a higher score.
        numDetections: K.
        sigma: with one, overlapping boxes keep ``exp(-overlap**2 / sigma)`` of their score.
        useGather: how the codelets look boxes up; the same values either way.
    """

    type = "Nms"

    threshold = Attribute(NUMBER, 0.5)
    scoreThreshold = Attribute(NUMBER, float(np.finfo(np.float32).min))  # upstream's name
    numDetections = Attribute(INTEGER, 100)
    sigma = Attribute(NUMBER, 0.0)
    useGather = Attribute(INTEGER, 0)

    def infer(self) -> list[TensorSpec]:
        """Five results; raises for other ranks and for numbers of boxes that differ."""
        scores, boxes = self.inputs
        self.floating(scores, boxes)
        ranks = len(scores.shape) == len(boxes.shape) == 3
        self.require(
            ranks and boxes.shape == (*scores.shape[:2], 4),
            f"scores {scores.shape} and boxes {boxes.shape}; (batch, boxes, classes) and (batch, boxes, 4) are needed",
        )
        self.require(self.numDetections > 0, f"numDetections is {self.numDetections}; at least 1 is needed")
        places = (scores.shape[0], self.numDetections)
        return [
            TensorSpec(places, INT32),
            TensorSpec(places, scores.dtype),
            TensorSpec((*places, 4), boxes.dtype),
            TensorSpec(places, INT32),
            TensorSpec(places[:1], INT32),
        ]

    def value(self, *operands: np.ndarray) -> list[np.ndarray]:
        """Round by round, as the codelets."""
        # The codelets lower scores in place.
        scores, boxes = operands[0].copy(), operands[1]
        batch, _, classes = scores.shape
        positions, best_scores, best_boxes, best_classes, lengths = self._empty(scores, boxes)
        out = _OUT.get(self.inputs[0].dtype.name, _OUT["float32"])
        images = np.arange(batch)
        for place in range(self.numDetections):
            flat = scores.reshape(batch, -1).argmax(axis=1)
            box, label = np.divmod(flat, classes)
            best = scores[images, box, label]
            scores[images, box, label] = out
            good = best > self.scoreThreshold
            positions[good, place], best_classes[good, place] = box[good], label[good]
            best_scores[good, place], best_boxes[good, place] = best[good], boxes[images, box][good]
            lengths[~good] = np.minimum(lengths[~good], place)
            self._suppress(scores[images, :, label], boxes, boxes[images, box], scores, label, out)
            if not good.all():
                break
        return [positions, best_scores, best_boxes, best_classes, lengths]

    def _empty(self, scores: np.ndarray, boxes: np.ndarray) -> list[np.ndarray]:
        """The results of images without a box."""
        places = (len(scores), self.numDetections)
        return [
            np.full(places, -1, np.int32),
            np.zeros(places, scores.dtype),
            np.zeros((*places, 4), boxes.dtype),
            np.full(places, np.iinfo(np.int32).max, np.int32),
            np.full(places[0], self.numDetections, np.int32),
        ]

    def _suppress(
        self,
        of_class: np.ndarray,
        boxes: np.ndarray,
        best: np.ndarray,
        scores: np.ndarray,
        label: np.ndarray,
        out: float,
    ) -> None:
        """Lower the scores ``of_class`` [batch, boxes] where boxes overlap the ``best`` [batch, 4] of that class."""
        overlaps = _overlap(boxes, best[:, np.newaxis])
        lowered = np.where(overlaps > self.threshold, out, of_class)
        if self.sigma:
            lowered = of_class * np.exp(-overlaps * overlaps / self.sigma)
        scores[np.arange(len(scores)), :, label] = np.where(of_class > self.scoreThreshold, lowered, of_class)

    def work(self) -> list[Work]:
        """K rounds, the most that there can be: the largest score, and the overlap of all boxes with its box."""
        scores, boxes = (tensor.spec for tensor in self.inputs)
        overlaps = vertices.tile_cycles(lambda m, chip: 20 + _OVERLAP * m, 11)
        name = f"NmsMultiVertex<{vertices.poplar_type(scores.dtype)}>"
        one_round: list[Work] = [
            vertices.binary("MAXIMUM", scores.dtype, scores.elements),
            Vertices(name, boxes.elements // 4, overlaps, 15 * boxes.elements // 4, low_confidence=True),
        ]
        return [Copy(scores.bytes), Copy(boxes.bytes), *one_round * self.numDetections]


def _overlap(boxes: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes whose corners are the last axis."""
    upper, lower = np.maximum(boxes[..., :2], best[..., :2]), np.minimum(boxes[..., 2:], best[..., 2:])
    shared = np.maximum(lower - upper, 0).prod(axis=-1)
    areas = [(each[..., 2:] - each[..., :2]).prod(axis=-1) for each in (boxes, best)]
    union = areas[0] + areas[1] - shared
    with np.errstate(divide="ignore", invalid="ignore"):
        overlaps: np.ndarray = shared / union
    return overlaps
