"""Non-maximum suppression of boxes by class, in C++ in YOLO v4 and EfficientDet of graphcore/examples.

Source: ``utils/custom_ops/nms`` of the one, ``NMS`` of the other (``nms.cpp``, ``codelet.cpp``).
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
    A third operand, the one class of each box ``[batch, boxes]`` int32, takes scores without their last axis.

    Attributes:
        threshold: overlap (intersection over union) above which a box is dropped.
        scoreThreshold: a box needs a higher score.
        numDetections: K.
        sigma: with one, overlapping boxes keep ``exp(-overlap**2 / sigma)`` of their score.
        useGather: how the codelets look boxes up; the same values either way.
    """

    threshold = Attribute(NUMBER, 0.5)
    scoreThreshold = Attribute(NUMBER, float(np.finfo(np.float32).min))  # upstream's name
    numDetections = Attribute(INTEGER, 100)
    sigma = Attribute(NUMBER, 0.0)
    useGather = Attribute(INTEGER, 0)

    def infer(self) -> list[TensorSpec]:
        """Five results; raises for other ranks and for numbers of boxes that differ."""
        scores, boxes, *classes = self.inputs
        self.floating(scores, boxes)
        wanted = ("(batch, boxes)" if classes else "(batch, boxes, classes)") + " and (batch, boxes, 4)"
        self.require(
            len(scores.shape) == 3 - len(classes) and boxes.shape == (*scores.shape[:2], 4),
            f"scores {scores.shape} and boxes {boxes.shape}; {wanted} are needed",
        )
        for each in classes:
            self.require(
                each.shape == scores.shape and each.dtype == INT32,
                f"classes {each.dtype.name} {each.shape}; int32 {scores.shape} are needed",
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
        scores, boxes, *of_boxes = operands
        scores = scores.reshape(*boxes.shape[:2], -1).copy()
        batch, _, classes = scores.shape
        positions, best_scores, best_boxes, best_classes, lengths = self._empty(scores, boxes)
        out = _OUT.get(self.inputs[0].dtype.name, _OUT["float32"])
        images = np.arange(batch)
        for place in range(self.numDetections):
            flat = scores.reshape(batch, -1).argmax(axis=1)
            box, column = np.divmod(flat, classes)
            best = scores[images, box, column]
            scores[images, box, column] = out
            label = of_boxes[0][images, box] if of_boxes else column
            others = of_boxes[0] == label[:, np.newaxis] if of_boxes else np.True_
            good = best > self.scoreThreshold
            positions[good, place], best_classes[good, place] = box[good], label[good]
            best_scores[good, place], best_boxes[good, place] = best[good], boxes[images, box][good]
            lengths[~good] = np.minimum(lengths[~good], place)
            of_column = scores[images, :, column]
            lowered = self._lowered(of_column, _overlap(boxes, boxes[images, box][:, np.newaxis]), out)
            scores[images, :, column] = np.where(others & (of_column > self.scoreThreshold), lowered, of_column)
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

    def _lowered(self, scores: np.ndarray, overlaps: np.ndarray, out: float) -> np.ndarray:
        """Scores of boxes [batch, boxes] that overlap the best one so much."""
        weighted: np.ndarray = scores * np.exp(-overlaps * overlaps / self.sigma) if self.sigma else scores
        return weighted if self.sigma else np.where(overlaps > self.threshold, out, scores)

    def work(self) -> list[Work]:
        """K rounds, the most that there can be: the largest score, and the overlap of all boxes with its box."""
        scores, boxes = (tensor.spec for tensor in self.inputs[:2])
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
