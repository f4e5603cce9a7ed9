"""The files of a tuning: the answer, a scenario that ``ipuperf sweep`` runs, and settings for the front ends."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ipuperf.base.version import __version__
from ipuperf.report.staging import staged
from ipuperf.tools.sweep import Sweep

from .answer import Answer
from .space import Configuration

_TYPES = {"f32": "float32", "f16.16": "float16", "f16.32": "float32"}


def write_files(folder: Path, answer: Answer, sweep: Sweep) -> None:
    """Write all files of an answer. The folder is written completely or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    configuration = answer.choice[0]
    files = {"answer.json": json_of(answer), "scenario.toml": scenario_of(configuration, sweep)}
    if sweep.model:
        files["poptorch_options.py"] = poptorch_of(configuration)
        files["popxl_settings.py"] = popxl_of(configuration)
    with staged(folder) as temporary:
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8")


def json_of(answer: Answer) -> str:
    """The answer as JSON."""
    columns = asdict(answer)
    for name in ("choice", "runner_up", "start"):
        pair = getattr(answer, name)
        columns[name] = None if pair is None else {"configuration": pair[0], "outcome": asdict(pair[1])}
    columns["samples_per_second"] = answer.samples_per_second
    columns["ipuperf"] = __version__
    return json.dumps(columns, indent=2, default=list) + "\n"


def scenario_of(configuration: Configuration, sweep: Sweep) -> str:
    """A file for ``ipuperf sweep`` with this one configuration; paths are absolute."""
    lines = ["# The choice of `ipuperf tune`."]
    if sweep.model:
        lines.append(f"model = {_toml(sweep.model)}")
    else:
        lines += [f"script = {_toml(str(sweep.path))}", f"arguments = {_toml(list(sweep.arguments))}"]
        lines.append(f"session = {sweep.session}")
    lines += [f"seeds = [{configuration['seed']}]", "", "[factors]"]
    for name, value in configuration.items():
        if name == "machine":
            value = sweep.machine_of(value)
        if name != "seed":
            lines.append(f"{_toml(name)} = [{_toml(value)}]")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML. JSON's strings are valid in TOML too."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _ipus(configuration: Configuration) -> int:
    return len(configuration.get("pipeline", ())) or int(configuration.get("config.stages", 1))


def _proportions(configuration: Configuration) -> dict[str, float]:
    proportions = configuration.get("config.memory_proportions", ())
    # The last proportion holds for all later IPUs.
    return {
        f"IPU{ipu}": proportions[min(ipu, len(proportions) - 1)] for ipu in range(_ipus(configuration)) if proportions
    }


def poptorch_of(configuration: Configuration) -> str:
    """The text of a program that makes PopTorch's ``options``."""
    get = configuration.get
    ipus, offload = _ipus(configuration), get("offload", ())
    on_chip = "optimiser" not in offload
    lines = [
        '"""PopTorch options of the choice of `ipuperf tune`."""',
        "",
        "import poptorch",
        "import torch",
        "",
        f"MICRO_BATCH = {get('micro_batch', 1)}  # rows of a micro-batch",
        f"LAYERS_PER_IPU = {list(get('pipeline', ()))}  # layers of each stage: poptorch.Block(..., ipu_id=...)",
        "",
        "options = poptorch.Options()",
        f"options.deviceIterations({get('config.device_iterations', 1)})",
        f"options.replicationFactor({get('replicas', 1)})",
        f"options.Training.gradientAccumulation({get('accumulation', 1)})",
        *_execution(configuration),
        f"options.Precision.setPartialsType(torch.{_TYPES[get('precision', 'f32')]})",
    ]
    if _proportions(configuration):
        lines.append(f"options.setAvailableMemoryProportion({_proportions(configuration)})")
    lines += [
        "options.TensorLocations.setOptimizerLocation(",
        f"    poptorch.TensorLocationSettings().useOnChipStorage({on_chip})"
        f".useReplicatedTensorSharding({bool(get('sharding', 0))})",
        ")",
    ]
    if "activations" in offload:
        location = "poptorch.TensorLocationSettings().useOnChipStorage(False)"
        lines.append(f"options.TensorLocations.setActivationLocation({location})")
    kind = get("recompute", "none")
    # On several IPUs every recomputation is of PopART's kind for pipelines.
    number = 0 if kind == "none" else 3 if ipus > 1 else 4 if kind == "checkpoints" else 1
    lines.append(f'options._Popart.set("autoRecomputation", {number})  # popart.RecomputationType: {_named(number)}')
    return "\n".join(lines) + "\n"


def _execution(configuration: Configuration) -> list[str]:
    """The lines for execution strategy and I/O."""
    tiles, get = configuration.get("io_tiles", 0), configuration.get
    kind = "ShardedExecution" if tiles else "PipelinedExecution"
    lines = [
        f"options.setExecutionStrategy(poptorch.{kind}(poptorch.AutoStage.AutoIncrement))",
        f"options.outputMode(poptorch.OutputMode.{'All' if tiles else 'Final'})",
    ]
    if tiles:
        lines.append(f"options.TensorLocations.numIOTiles({tiles})")
    if get("io") == "synthetic":
        lines.append("options.enableSyntheticData(True)")
    if get("prefetch", 1) != 1:
        lines.append(f'options._Popart.set("defaultPrefetchBufferingDepth", {get("prefetch")})')
    return lines


def _named(number: int) -> str:
    return {0: "None", 1: "Standard", 3: "Pipeline", 4: "RecomputeAll"}[number]


def popxl_of(configuration: Configuration) -> str:
    """The text of a program that makes ``ir``, and names the settings that a PopXL program has to follow itself."""
    get = configuration.get
    numbers = _proportions(configuration)
    stages = _ipus(configuration)
    return f'''"""PopXL settings of the choice of `ipuperf tune`."""

import popxl

MICRO_BATCH = {get("micro_batch", 1)}  # rows of a micro-batch
GRADIENT_ACCUMULATION = {get("accumulation", 1)}  # micro-batches of a weight update: trips of its loop
STAGES = {stages}  # IPUs of a replica: popxl.ipu(0) to popxl.ipu({stages - 1})
LAYERS_PER_IPU = {list(get("pipeline", ()))}  # layers of each stage
AVAILABLE_MEMORY_PROPORTION = {numbers}  # of ops.matmul and its like, by IPU
RECOMPUTE = {get("recompute", "none") != "none"}  # popxl.transforms of each stage's graph: recompute it in its backward
REMOTE = {[str(location) for location in get("offload", ())]}  # what lies in remote buffers
SHARDING_THRESHOLD = {get("sharding", 0)}  # elements from which on variables are sharded over the replicas; 0: none

ir = popxl.Ir(replication={get("replicas", 1)})
ir.num_host_transfers = GRADIENT_ACCUMULATION
'''
