"""A random Keras program: the model, its training, and what is done with it."""

from dataclasses import dataclass
from typing import Any

from ..stored import Stored

VOCABULARY = 7
"""Integers that an embedding takes."""


@dataclass
class Program(Stored):
    """A model and what is done with it.

    Attributes:
        style: sequential, functional or subclass.
        inputs: shapes of samples; of integers where ``whole`` says so.
        nodes: ``[description of a layer, operands, stage]``; operands count the inputs first.
        outputs: nodes with losses; of each, ``targets`` has kind and shape, ``losses`` name and options, ``metrics``
            names.
        weights: of samples: "", "sample" or "class".
        optimizer: ``[name, options, rate]``, ``wrapper`` goes around it.
        accumulation: batches of an update, on each replica; ``executions`` of ``updates`` each make an epoch.
        equal: replicas get the same data, so that what metrics and statistics are does not depend on the replica.
        options: of the pipeline. ``mapping``: the IPU of each stage.
        phases: ``fit``, ``evaluate``, ``predict``, one batch of each, or a new learning rate, in turn.
    """

    seed: int
    style: str
    inputs: list[list[int]]
    whole: bool
    nodes: list[list[Any]]
    outputs: list[int]
    targets: list[list[Any]]
    losses: list[list[Any]]
    metrics: list[list[str]]
    weights: str
    optimizer: list[Any]
    wrapper: str
    policy: str
    own_step: bool
    batch: int
    accumulation: int
    reduction: str
    updates: int
    executions: int
    epochs: int
    replicas: int
    equal: bool
    stages: int
    mapping: list[int] | None
    schedule: str
    options: dict[str, Any]
    recompute: bool
    data: str
    phases: list[str]

    def size(self) -> int:
        """Number of layers."""
        return len(self.nodes)

    @property
    def steps(self) -> int:
        """Batches of an epoch on each replica."""
        return self.accumulation * self.updates * self.executions

    @property
    def trains(self) -> bool:
        """Whether weights change."""
        return any(phase in ("fit", "train_on_batch") for phase in self.phases)
