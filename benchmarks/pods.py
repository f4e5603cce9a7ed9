"""Speed on whole Pods: training steps through PopTorch of BERT-Large, on 1 to 4,096 replicas, and of GPT-3."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bounds import LOOP, Row, cpu_seconds, in_turns, loop_seconds

ACCUMULATION = 512
MACHINES = {1: "bow-pod4", 2: "bow-pod16", 4: "bow-pod16", 16: "bow-pod64", 63: "bow-pod256", 64: "bow-pod256"}
"""The machine for each number of replicas; 63 of them are seven classes."""
SIMULATIONS, KEPT = 10, 30.0
LONG, LARGE = "BERT-Large, 64 IPUs, accumulation 50,000: ", "BERT-Large, 2,048 IPUs: "
HUGE = "BERT-Large, 16,384 IPUs: lower + simulate"
GPT3, GPT3_PARTS = "GPT-3 175B, 25 stages x 8: ", ("build", "lower", "simulate")
SAMPLES = "BERT-Large, 16 IPUs: a sample of a jittery host"
STEP, MOST = "BERT-Large, 64 IPUs: ", "BERT-Large, 256 IPUs: "
BOUNDS = MappingProxyType(
    {
        f"{STEP}lower + simulate": 19.0,
        f"{STEP}memory of lower + simulate": 0.6,
        f"{STEP}accumulation 2,048": 1.04,
        f"{STEP}saving the trace": 1.0,
        f"{STEP}why": 2.5,
        f"{STEP}page": 5.0,
        f"{STEP}to_perfetto": 10.0,
        f"{STEP}to_perfetto, size": 0.6,
        f"{STEP}to_chrome_json": 4.5,
        f"{STEP}to_chrome_json, size": 1.0,
        f"{MOST}lower + simulate": 22.0,
        f"{LONG}why + page": 1.0,
        f"{LONG}memory of why + page": 1.0,
        f"{LARGE}why + page": 1.0,
        f"{LARGE}memory of why + page": 1.0,
        HUGE: 90.0,
        **{f"{GPT3}{part}": bound for part, bound in zip(GPT3_PARTS, (80.0, 110.0, 105.0), strict=True)},
        SAMPLES: 0.35,
        f"{SIMULATIONS} simulations: memory kept": 1.0,
        "simulate BERT-Large on 4 IPUs": 0.9,
        "simulate BERT-Large on 16 IPUs": 1.3,
        "simulate BERT-Large on 64 IPUs": 1.5,
        "simulate BERT-Large on 252 IPUs": 9.0,
        "simulate BERT-Large on 256 IPUs": 1.8,
    }
)


def bert_large(replicas: int, accumulation: int = ACCUMULATION, machine: str = "") -> Any:
    """Its executable, built and not lowered; ``machine``: a file, where none of :data:`MACHINES` is large enough."""
    import torch

    from ipuperf.models import bert, ipu_run
    from ipuperf.runtime.settings import RunSettings, use_settings

    options = bert.large(replicas=replicas, gradient_accumulation=accumulation)
    with use_settings(RunSettings(machine=machine or MACHINES[replicas])):
        with torch.device("meta"), ipu_run._WithoutRandomNumbers():
            model = ipu_run.cast(bert.model(options), options).train()
        arguments = bert.batch(options, "meta")
        optimiser = ipu_run.optimiser_of(model, options)
        compiled = ipu_run.poptorch.compile_offline(
            model, ipu_run.poptorch_options(options), *arguments, training=True, optimizer=optimiser
        )
    return compiled.executable


def rows(repeats: int) -> list[Row]:
    """What one step takes, what is written of it, what a process keeps, and simulating 1 to 64 replicas."""
    import torch

    import ipuperf

    ipuperf.install()
    torch.set_num_threads(1)
    large = [*told_of_large_runs(), sixteen_thousand(), *gpt3(), samples()]
    return [*whole_step(min(repeats, 3)), *large, long_process(), *flat(min(repeats, 3))]


def large_machine(folder: str, ipus: int) -> str:
    """The file of a machine of racks as those of bow-pod256."""
    said = f'unit = "count", kind = "assumed", source = "{ipus // 64} racks of bow-pod256, for a benchmark"'
    sizes = {"ipus": ipus, "ipu_machines": ipus // 4, "racks": ipus // 64}
    lines = [f'name = "bow-pod{ipus}"', 'extends = "bow-pod256"', "[system]"]
    lines += [f"{key} = {{ value = {size}, {said} }}" for key, size in sizes.items()]
    file = Path(folder, "large.toml")
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


def sixteen_thousand() -> Row:
    """4,096 replicas of four IPUs, nothing of which is known before."""
    additions = min(loop_seconds() for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        executable = bert_large(4096, machine=large_machine(folder, 16_384))
    return Row(HUGE, cpu_seconds(lambda: _simulate(executable)), LOOP, additions)


def gpt3() -> list[Row]:
    """GPT-3 of 96 layers, four to an IPU, on eight replicas that lie differently in IPU-Machines and racks."""
    import torch

    from ipuperf.models import gpt2, ipu_run
    from ipuperf.runtime.settings import RunSettings, use_settings

    options = gpt2.Gpt2Options(
        layers=96, hidden=12288, heads=96, sequence=2048, gradient_accumulation=256, replicas=8,
        layers_per_ipu=(0,) + (4,) * 24, memory_proportions=(0.15,),
    )  # fmt: skip
    found: list[Any] = []

    def build() -> None:
        with use_settings(RunSettings(machine="bow-pod256")):
            with torch.device("meta"), ipu_run._WithoutRandomNumbers():
                model = ipu_run.cast(gpt2.model(options), options).train()
            arguments, optimiser = gpt2.batch(options, "meta"), ipu_run.optimiser_of(model, options)
            compiled = ipu_run.poptorch.compile_offline(
                model, ipu_run.poptorch_options(options), *arguments, training=True, optimizer=optimiser
            )
        found.append(compiled.executable)

    additions = min(loop_seconds() for _ in range(3))
    parts = (build, lambda: found[0].device_program, lambda: _simulate(found[0]))
    return [
        Row(f"{GPT3}{name}", cpu_seconds(part), LOOP, additions) for name, part in zip(GPT3_PARTS, parts, strict=True)
    ]


def _simulate(executable: Any) -> Any:
    from ipuperf.simulation import simulate

    return simulate(executable.device_program, executable.machine, **executable.host_options)


def _least(executable: Any, repeats: int) -> float:
    """CPU seconds of simulating."""
    assert executable.device_program is not None
    return min(cpu_seconds(lambda: _simulate(executable)) for _ in range(repeats))


def _megabytes() -> float:
    """Resident megabytes of this process, garbage apart."""
    gc.collect()
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith("VmRSS:"))
    return float(line.split()[1]) / 1024


def whole_step(repeats: int) -> list[Row]:
    """Lowering and simulating 16 and 64 replicas of four stages, nothing of which is known before, the former with two
    accumulation counts; and what is written of it. Modules are imported before: that is another row's."""
    import ipuperf.lowering
    import ipuperf.simulation
    import ipuperf.trace  # noqa: F401

    executable, traces = bert_large(16), []
    before = _megabytes()
    additions = min(loop_seconds() for _ in range(3))
    lowering = cpu_seconds(lambda: executable.device_program)
    simulating = cpu_seconds(lambda: traces.append(_simulate(executable)))
    added = max(0.1, _megabytes() - before)
    longer = bert_large(16, 4 * ACCUMULATION)
    assert longer.device_program is not None
    more, usual = in_turns(lambda: _simulate(longer), lambda: _simulate(executable), 2 * repeats + 1)
    with tempfile.TemporaryDirectory() as folder:
        saving = cpu_seconds(lambda: traces[0].save(Path(folder, "t.ipt")))
    most = bert_large(64)
    whole = cpu_seconds(lambda: _simulate(most))
    return [
        Row(f"{STEP}lower + simulate", lowering + simulating, LOOP, additions),
        Row(f"{STEP}memory of lower + simulate", added, "budget", 300.0, "MB"),
        Row(f"{STEP}accumulation 2,048", more, "accumulation 512", usual),
        Row(f"{STEP}saving the trace", saving, "simulating it", usual),
        *_told(traces[0], usual),
        *_exports(traces[0], additions),
        Row(f"{MOST}lower + simulate", whole, LOOP, additions),
    ]


def _told(trace: Any, simulating: float) -> list[Row]:
    """What is said of a trace, against simulating it. Modules are imported before."""
    import pandas as pd  # noqa: F401

    from ipuperf.report import report_page, why_text

    why = cpu_seconds(lambda: why_text(trace))
    page = cpu_seconds(lambda: report_page(trace))
    return [
        Row(f"{STEP}{name}", seconds, "simulating it", simulating) for name, seconds in (("why", why), ("page", page))
    ]


def told_of_large_runs() -> list[Row]:
    """Why and page after simulating in this process: CPU seconds, and resident memory that is kept afterwards.

    Allowed are twice the simulation and a second, and 300 MB.
    """
    import pandas as pd  # noqa: F401

    from ipuperf.report import report_page, why_text

    found = []
    with tempfile.TemporaryDirectory() as folder:
        file = large_machine(folder, 2048)
        for name, executable in (
            (LONG, bert_large(16, 50_000)),
            (LARGE, bert_large(512, machine=file)),
        ):
            traces: list[Any] = []
            assert executable.device_program is not None
            simulating = cpu_seconds(lambda traces=traces, executable=executable: traces.append(_simulate(executable)))
            before = _megabytes()
            telling = cpu_seconds(lambda traces=traces: (why_text(traces[0]), report_page(traces[0])))
            added = max(0.1, _megabytes() - before)
            found += [
                Row(f"{name}why + page", telling, "twice simulating and 1 s", 2 * simulating + 1),
                Row(f"{name}memory of why + page", added, "budget", 300.0, "MB"),
            ]
    return found


def _exports(trace: Any, additions: float) -> list[Row]:
    from ipuperf.report import to_chrome_json, to_perfetto

    found = []
    writers: tuple[Callable[..., None], ...] = (to_perfetto, to_chrome_json)
    for write in writers:
        name = f"{STEP}{write.__name__}"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "file")
            seconds = cpu_seconds(lambda write=write, path=path: write(trace, path))
            size = path.stat().st_size / 1e6
        found += [Row(name, seconds, LOOP, additions), Row(f"{name}, size", size, "budget", 20.0, "MB")]
    return found


def long_process() -> Row:
    """What a process keeps of simulations whose traces nobody keeps."""
    executable = bert_large(4)
    _least(executable, 2)
    before = _megabytes()
    _least(executable, SIMULATIONS)
    grown = max(0.1, _megabytes() - before)
    return Row(f"{SIMULATIONS} simulations: memory kept", grown, "budget", KEPT, "MB")


def samples() -> Row:
    """A sample where the host takes longer for each sync, and by chance, against a simulation that is folded."""
    from ipuperf.simulation import sampled

    executable = bert_large(4)
    reference = _least(executable, 2)
    faulty = executable.machine.with_faults("host sync exponential 20us")
    few, many = (
        cpu_seconds(lambda count=count: sampled(executable.device_program, faulty, count, 1, **executable.host_options))
        for count in (20, 60)
    )
    return Row(SAMPLES, (many - few) / 40, "simulating it", reference)


def flat(repeats: int) -> list[Row]:
    """Simulating 1 to 64 replicas, against two of them (the fewest with collectives)."""
    reference = _least(bert_large(2), repeats)
    return [
        Row(f"simulate BERT-Large on {4 * count} IPUs", _least(bert_large(count), repeats), "on 8 IPUs", reference)
        for count in MACHINES
        if count != 2
    ]
