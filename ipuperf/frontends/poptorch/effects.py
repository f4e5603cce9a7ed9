"""Arguments of PopTorch, besides those of ``poptorch.Options``, that do nothing here or are refused.

See :mod:`ipuperf.runtime.effects`, and :mod:`ipuperf.poptorch.options.effects` for the options. What upstream does with
them: ``poptorch: python/__init__.py``, ``poptorch: python/_dataloader.py`` and ``poptorch: python/ops.py``.
"""

from ipuperf.runtime.effects import NO_DIFFERENCE, NO_EFFECT, Effect, Effects

from .enums import SharingStrategy
from .errors import UnsupportedError

_HERE = "samples of a data set with indices are loaded in this process"
_THREAD = "a thread of this process reads ahead"
_PINNED = "there is no device memory to copy to"
_PYTORCHS_STEP = Effect(NO_DIFFERENCE, "it chooses how PyTorch does its own step")

EFFECTS = Effects(
    "poptorch",
    {
        "DataLoader(num_workers)": Effect(NO_EFFECT, _HERE, (0,)),
        "DataLoader(persistent_workers)": Effect(NO_EFFECT, _HERE, (None, False)),
        "DataLoader(worker_init_fn)": Effect(NO_EFFECT, f"{_HERE}, so it is never called", (None,)),
        "DataLoader(prefetch_factor)": Effect(NO_EFFECT, _HERE, (None,)),
        "DataLoader(multiprocessing_context)": Effect(NO_EFFECT, _HERE, (None,)),
        "DataLoader(timeout)": Effect(NO_EFFECT, _HERE, (0, 0.0)),
        "DataLoader(in_order)": Effect(NO_EFFECT, "samples are always in order", (True,)),
        "DataLoader(pin_memory)": Effect(NO_EFFECT, _PINNED, (False,)),
        "DataLoader(pin_memory_device)": Effect(NO_EFFECT, _PINNED, ("",)),
        "AsynchronousDataAccessor(miss_sleep_time_in_ms)": Effect(
            NO_EFFECT, "the thread waits without polling", (0.1,)
        ),
        "AsynchronousDataAccessor(load_indefinitely)": Effect(
            NO_DIFFERENCE, "reading begins anew with each iteration, never before it"
        ),
        "AsynchronousDataAccessor(early_preload)": Effect(NO_EFFECT, "reading begins with the iteration", (False,)),
        "AsynchronousDataAccessor(sharing_strategy)": Effect(NO_EFFECT, _THREAD, (SharingStrategy.ForkServer,)),
        "NameScope(name)": Effect(NO_EFFECT, "ops are named by the export"),
        "Attribute(**attributes)": Effect(NO_EFFECT, "there is no PopART", ({},)),
        "MultiConv.enableConvDithering(value)": Effect(NO_EFFECT, "layouts begin at tile 0", (False,)),
        "profiling.Channel.instrument(methods)": Effect(NO_DIFFERENCE, "without libpvti nothing is recorded"),
        "profiling.Channel.tracepoint(name)": Effect(NO_DIFFERENCE, "without libpvti nothing is recorded"),
        "optim.*(foreach)": _PYTORCHS_STEP,
        "optim.*(differentiable)": _PYTORCHS_STEP,
        "optim.*(capturable)": _PYTORCHS_STEP,
        "optim.*(fused)": _PYTORCHS_STEP,
        "optim.SGD(velocity_scaling)": Effect(NO_DIFFERENCE, "without use_combined_accum; a warning says so"),
    },
    UnsupportedError,
)
