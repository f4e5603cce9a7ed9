"""Arguments of PopXL that do nothing here or are refused; see :mod:`ipuperf.runtime.effects`.

What upstream does with them: ``popart: python/popxl/ops/*.py``, ``popart: python/popxl/session.py``.
"""

from ipuperf.frontends.catalogue.arguments import ARGUMENTS
from ipuperf.runtime.effects import APPLIED, NO_EFFECT, Effect, Effects

_CHECKED = Effect(NO_EFFECT, "operands are always checked: each input of a graph has to be given", (True,))

EFFECTS = Effects(
    "popxl",
    {
        "Session(device_desc)": Effect(
            NO_EFFECT,
            "the machine is the simulated one of `ipuperf run --machine`",
            ("ipu_hw", "ipu_model", "cpu"),
        ),
        "context.debug_context_frame_offset(offset)": Effect(
            NO_EFFECT, "locations are the program's own lines, not frames counted from an op", (0,)
        ),
        "context.op_debug_context(name)": Effect(NO_EFFECT, "locations are the program's own lines, ops have no name"),
        "io_tiles()": Effect(NO_EFFECT, "num_io_tiles of the Ir is 0, so its ops run with all others"),
        "ops.call_with_info(check_inputs)": _CHECKED,
        "ops.conditional_with_info(check_inputs)": _CHECKED,
        "ops.repeat_with_info(check_inputs)": _CHECKED,
        "ops.CallSiteInfo.set_parent_input_modified(infer_modified_regions)": Effect(
            NO_EFFECT, "a change counts as one of the whole tensor", (False,)
        ),
        "ops.var_updates.sparse_accumulate_(W)": Effect(
            NO_EFFECT, "it says whose layout the accumulator gets, and that is laid out by itself", (None,)
        ),
        **{
            f"ops.{a.function}({a.name})": Effect(a.status, a.reason, a.neutral if a.place is None else ())
            for a in ARGUMENTS
            if a.status != APPLIED
        },
    },
    ValueError,
)
