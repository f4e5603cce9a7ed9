"""Arguments of popxl.addons that do nothing; see :mod:`ipuperf.runtime.effects`. ``check_inputs`` of its
calls is that of ``popxl.ops.call_with_info``.

What upstream does with them: ``popxl-addons: popxl_addons/patterns.py``, ``transforms/use_fc_pass.py``.
"""

from ipuperf.runtime.effects import NO_DIFFERENCE, NO_EFFECT, Effect, Effects

EFFECTS = Effects(
    "popxl_addons",
    {
        "transforms.disable_fc_pass(ir)": Effect(NO_DIFFERENCE, "products are planned one by one anyway"),
        "transforms.enable_fc_pass(ir)": Effect(NO_EFFECT, "products are planned one by one, not as layers"),
        "ops.cross_entropy_sharded_loss.cross_entropy_sharded_loss(available_memory_proportion)": Effect(
            NO_EFFECT, "the slices and updates of one class for each sample run in one pass", (0.4,)
        ),
        "patterns.apply_pre_alias_patterns(level)": Effect(
            NO_EFFECT, "ops run as they were made; nothing is rewritten", ("default", "no_patterns")
        ),
    },
)
