"""Arguments of popxl.addons that are refused or do nothing; see :mod:`ipuperf.runtime.effects`. ``check_inputs`` of its
calls is that of ``popxl.ops.call_with_info``.

What upstream does with them: ``popxl-addons: popxl_addons/rts.py``, ``patterns.py``.
"""

from __future__ import annotations

from ipuperf.runtime.effects import NO_EFFECT, UNSUPPORTED, Effect, Effects

_COLLECTIVES = Effect(UNSUPPORTED, "collectives run on the compute tiles; allowed: False", (False,))

EFFECTS = Effects(
    "popxl_addons",
    {
        "gather_replica_sharded_tensor(use_io_tiles)": _COLLECTIVES,
        "all_gather_replica_sharded_graph(use_io_tiles)": _COLLECTIVES,
        "reduce_replica_sharded_graph(use_io_tiles)": _COLLECTIVES,
        "cross_entropy_sharded_loss(available_memory_proportion)": Effect(
            NO_EFFECT, "the slices and updates of one class for each sample run in one pass", (0.4,)
        ),
        "patterns.apply_pre_alias_patterns(level)": Effect(
            NO_EFFECT, "ops run as they were made; nothing is rewritten", ("default", "no_patterns")
        ),
    },
)
