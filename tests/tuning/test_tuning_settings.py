"""The settings that are written, run under the front ends."""

from typing import Any

import pytest

from ipuperf.tuning.files import poptorch_of, popxl_of

CONFIGURATION: dict[str, Any] = {"pipeline": (0, 4, 4, 4), "micro_batch": 16, "accumulation": 32, "replicas": 4}
CONFIGURATION |= {"recompute": "checkpoints", "offload": ("optimiser",), "sharding": 8192, "precision": "f16.16"}
CONFIGURATION |= {"config.memory_proportions": (0.15, 0.25)}


def run(text: str) -> dict[str, Any]:
    """The names of a program."""
    from ipuperf.runtime.install import install, installed_names, uninstall

    before = set(installed_names())
    install()
    try:
        names: dict[str, Any] = {}
        exec(compile(text, "settings", "exec"), names)
        return names
    finally:
        uninstall(set(installed_names()) - before)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"offload": (), "sharding": 0, "recompute": "none"},
        {"pipeline": (12,), "recompute": "standard", "offload": ("optimiser", "activations"), "precision": "f16.32"},
    ],
)
def test_poptorch_options_are_those_of_the_model(changed: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from ipuperf.runtime.install import install, installed_names, uninstall

    configuration = {**CONFIGURATION, **changed}
    found = run(poptorch_of(configuration))
    assert found["MICRO_BATCH"] == 16
    before = set(installed_names())
    install()
    try:
        from ipuperf.models.ipu_run import RunOptions, poptorch_options

        wanted = poptorch_options(
            RunOptions(
                gradient_accumulation=32,
                replicas=4,
                layers_per_ipu=configuration["pipeline"],
                precision=configuration["precision"][1:],
                offload_optimiser="optimiser" in configuration["offload"],
                offload_activations="activations" in configuration["offload"],
                sharding=bool(configuration["sharding"]),
                recompute=configuration["recompute"] != "none",
                checkpoint_layers=configuration["recompute"] == "checkpoints",
                memory_proportions=(0.15, 0.25),
            )
        )
    finally:
        uninstall(set(installed_names()) - before)
    said, model = found["options"].toDict(), wanted.toDict()
    unsaid = {"auto_round_num_ipus": True, "show_compilation_progress_bar": False, "syntheticDataMode": 0}
    unsaid |= {"defaultPrefetchBufferingDepth": 1}
    assert {**said, **unsaid} == {**model, **unsaid}
    assert all(model.get(name, value) == value for name, value in unsaid.items())


def test_popxl_settings_run() -> None:
    found = run(popxl_of(CONFIGURATION))
    assert found["ir"].replication_factor == 4
    assert found["ir"].num_host_transfers == 32
    assert found["LAYERS_PER_IPU"] == [0, 4, 4, 4]
    assert found["AVAILABLE_MEMORY_PROPORTION"] == {"IPU0": 0.15, "IPU1": 0.25, "IPU2": 0.25, "IPU3": 0.25}
    assert found["REMOTE"] == ["optimiser"]
