"""Arguments of PopXL that do nothing here or are refused; see :mod:`ipuperf.runtime.effects`.

What upstream does with them: ``popart: python/popxl/ops/*.py``, ``popart: python/popxl/session.py``.
"""

from ipuperf.runtime.effects import NO_DIFFERENCE, NO_EFFECT, UNSUPPORTED, Effect, Effects

_CHECKED = Effect(NO_EFFECT, "operands are always checked: each input of a graph has to be given", (True,))
_NO_OVERLAP = Effect(NO_DIFFERENCE, "gradients are right whether slices overlap or not")
_DITHERING = Effect(NO_EFFECT, "the tile mapping does not dither")
_OUT_PADS = Effect(UNSUPPORTED, "pad the result; allowed: 0")
_IN_DILATIONS = Effect(UNSUPPORTED, "spread the input before; allowed: 1")

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
        "ops.batch_norm_inference(momentum)": Effect(NO_DIFFERENCE, "running statistics change in training only"),
        "ops.max_pool(storage_order)": Effect(NO_DIFFERENCE, "it concerns positions of maxima, which are no result"),
        "ops.dynamic_slice(no_overlap)": _NO_OVERLAP,
        "ops.dynamic_update(no_overlap)": _NO_OVERLAP,
        "ops.dynamic_update_(no_overlap)": _NO_OVERLAP,
        "ops.conv(enable_conv_dithering)": _DITHERING,
        "ops.conv_transpose(enable_conv_dithering)": _DITHERING,
        "ops.conv_pow2scaled(enable_conv_dithering)": _DITHERING,
        "ops.conv_transpose_pow2scaled(enable_conv_dithering)": _DITHERING,
        "ops.conv_transpose_pow2scaled(pad_type)": Effect(
            UNSUPPORTED, "give the padding; allowed: not_set, valid", ("not_set", "valid")
        ),
        "ops.conv_transpose(pad_type)": Effect(
            UNSUPPORTED, "give the padding; allowed: not_set, valid", ("not_set", "valid")
        ),
        "ops.average_pool(out_pads)": _OUT_PADS,
        "ops.max_pool(out_pads)": _OUT_PADS,
        "ops.average_pool(in_dilations)": _IN_DILATIONS,
        "ops.max_pool(in_dilations)": _IN_DILATIONS,
    },
    ValueError,
)
