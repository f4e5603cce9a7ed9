"""Public names of upstream's addons (3.4) that cannot be here, and the error of their modules."""

from __future__ import annotations

from typing import NoReturn

#: By qualified name, with the reason; each is the one name of its module.
CANNOT = {
    "popxl_addons.ops.cross_entropy_sharded_wr_loss.cross_entropy_sharded_wr_loss": (
        "one op cannot be on several IPUs of a replica; use cross_entropy_sharded_loss over replicas"
    ),
    "popxl_addons.ops.static_sparse_ops.dense_sparse_matmul": (
        "products of popsparse, whose plans are not modelled; use popxl.ops.matmul"
    ),
}


def refuse(module: str) -> NoReturn:
    """Raise the ImportError of a module that cannot be here; ``module`` is its ``__name__``."""
    name = module.removeprefix("ipuperf.frontends.")
    reason = next(why for qualified, why in CANNOT.items() if qualified.rpartition(".")[0] == name)
    raise ImportError(f"{name} does not work in ipuperf: {reason}", name=name)
