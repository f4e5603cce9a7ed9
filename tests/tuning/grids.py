"""Grids of configurations that are small enough to try all: those of the published cases, and others."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipuperf.sweep import run_sweep
from ipuperf.tuning import TuningSpace, case_space, model_space

Factors = dict[str, tuple[Any, ...]]
Made = tuple[TuningSpace, "dict[str, Any] | None"]
PROPORTIONS = "config.memory_proportions"


@dataclass(frozen=True)
class Grid:
    """A grid: ``make`` gives its space, and the published configuration where there is one."""

    name: str
    make: Callable[[], Made]

    @property
    def space(self) -> TuningSpace:
        """The configurations."""
        return self.make()[0]

    def brute_force(self, folder: Path) -> list[dict[str, Any]]:
        """Every configuration, simulated; the folder that ``IPUPERF_GRIDS`` names keeps them for other runs."""
        kept = Path(os.environ.get("IPUPERF_GRIDS", folder)) / self.name
        return list(run_sweep(self.space.sweep, kept, jobs=1, table=None).to_dict("records"))


def of_case(name: str, case: str, ipus: int, factors: Factors) -> Grid:
    """Around a case of ``ipuperf validate``."""
    constraints = (f"replicas * len(pipeline) == {ipus}",)
    return Grid(name, lambda: case_space(case, given=factors, constraints=constraints))


def of_model(name: str, model: str, machine: str, batch: int, factors: Factors, *constraints: str) -> Grid:
    """Of a model."""
    return Grid(name, lambda: (model_space(model, machine, batch, factors, constraints), None))


PUBLISHED = (
    of_case("bert-base-4", "EIDF-BERTB-STEP", 4, {
        "pipeline": ((0, 4, 4, 4), (1, 4, 4, 3), (2, 4, 3, 3), (3, 3, 3, 3), (0, 3, 4, 5), (5, 7)),
        "micro_batch": (8, 16, 32, 64), "replicas": (1, 2), "recompute": ("checkpoints",),
        PROPORTIONS: ((0.15,), (0.25,), (0.4,), (0.6,)),
    }),
    of_case("bert-large-16", "GPP-BL1-A", 16, {
        "pipeline": ((3, 7, 7, 7), (4, 7, 7, 6), (6, 6, 6, 6), (0, 3, 3, 3, 3, 4, 4, 4)), "micro_batch": (8, 16),
        "replicas": (2, 4), "recompute": ("checkpoints",), PROPORTIONS: ((0.15, 0.25), (0.25,), (0.4,)),
    }),
)  # fmt: skip
"""The grids of the acceptance: the search was written with them in view."""

OTHERS = (
    of_model("vit-base-16", "vit", "bow-pod16", 8192, {
        "config.preset": ("base",), "pipeline": ((3, 3, 3, 3), (2, 3, 3, 4), (1, 3, 4, 4), (6, 6), (5, 7)),
        "micro_batch": (4, 8, 16), "replicas": (4, 8), "offload": (("optimiser",),), "sharding": (0,),
        PROPORTIONS: ((0.2,), (0.5,)),
    }, "replicas * len(pipeline) == 16"),
    of_model("gpt2-small-4", "gpt2", "bow-pod4", 512, {
        "config.preset": ("small",), "config.sequence": (512,), "recompute": ("checkpoints",), "sharding": (0,),
        "pipeline": ((0, 4, 4, 4), (1, 4, 4, 3), (0, 3, 4, 5), (3, 9)), "micro_batch": (1, 2, 4, 8),
        "replicas": (1, 2), "offload": (("optimiser",),), PROPORTIONS: ((0.1,), (0.2,), (0.4,)),
    }, "replicas * len(pipeline) == 4"),
    of_model("bert-small-4", "bert", "pod4", 1024, {
        "config.preset": ("base",), "config.layers": (6,), "config.hidden": (512,), "config.heads": (8,),
        "config.feed_forward": (2048,), "config.sequence": (384,), "recompute": ("checkpoints",), "sharding": (0,),
        "pipeline": ((0, 2, 2, 2), (1, 2, 2, 1), (2, 4), (3, 3), (6,)), "micro_batch": (2, 4, 8, 16),
        "replicas": (1, 2, 4), "offload": (("optimiser",), ()), PROPORTIONS: ((0.2,), (0.4,)),
    }, "replicas * len(pipeline) == 4"),
    of_model("roformer-4", "roformer", "pod4", 2048, {
        "config.preset": ("small",), "pipeline": ((0, 2, 2, 2), (1, 1, 2, 2), (3, 3), (2, 4), (6,)),
        "micro_batch": (2, 4, 8, 16), "replicas": (1, 2, 4), "offload": ((),), "sharding": (0,),
        PROPORTIONS: ((0.15,), (0.4,)),
    }, "replicas * len(pipeline) == 4"),
    of_model("encoder-16", "encoder", "pod16", 256, {
        "config.layers": (8,), "config.hidden": (512,), "config.heads": (8,), "config.feed_forward": (2048,),
        "micro_batch": (1, 2, 4, 8), "config.stages": (2, 4, 8), "replicas": (2, 4, 8),
    }, "replicas * config.stages == 16"),
    of_model("resnet50-4", "resnet50", "pod4", 2048, {
        "config.preset": ("mlperf",), "pipeline": ((7, 9), (6, 10), (8, 8), (4, 4, 4, 4), (3, 4, 4, 5)),
        "micro_batch": (2, 4, 8, 16), "replicas": (1, 2), "optimiser": ("momentum",), "offload": ((),),
        "recompute": ("checkpoints",), "sharding": (0,), PROPORTIONS: ((0.2,), (0.5,)),
    }, "replicas * len(pipeline) == 4"),
)  # fmt: skip
"""Grids that nothing of the search was chosen on."""
