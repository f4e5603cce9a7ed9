"""IPUConfig, selection of IPUs, datasets, the dataset benchmark."""

import json
from contextlib import nullcontext

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from ipuperf.tensorflow.programs import devices
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import ipu_strategy
from ipuperf.tensorflow.python.ipu.config import IPUConfig, SelectionOrder

Dataset = tf.data.Dataset


def test_defaults_of_the_reference():
    config = IPUConfig()
    assert config.allow_recompute is False
    assert config.selection_order is SelectionOrder.AUTO
    assert config.io_tiles.available_memory_proportion == 0.9
    assert config.optimizations.minimum_remote_tensor_size == 128
    assert config.ipu_model.version == "ipu2"
    assert config.auto_select_ipus == []


def test_round_trip_through_dictionary_and_json():
    config = IPUConfig()
    config.auto_select_ipus = (2, 2)
    config.selection_order = SelectionOrder.HOOF
    config.matmuls.poplar_options = {"partialsType": "half"}
    config.norms.experimental.distributed_batch_norm_replica_group_size = 2
    again = IPUConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    from_text = IPUConfig.from_json(config.to_json())
    assert from_text.selection_order is SelectionOrder.HOOF
    assert list(from_text.auto_select_ipus) == [2, 2]
    with pytest.raises(ValueError, match="no member of SelectionOrder"):
        IPUConfig.from_dict({"selection_order": "SelectionOrder.SPIRAL"})
    with pytest.raises(ValueError, match="not a valid attribute"):
        IPUConfig.from_dict({"matmuls.colour": 1})


def test_later_changes_need_another_configure():
    config = IPUConfig()
    config.auto_select_ipus = 4
    config.configure_ipu_system()
    config.auto_select_ipus = 8
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 4
    ipu.config.reset_ipu_configuration()
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 1


def test_devices_of_a_system():
    config = IPUConfig()
    config.auto_select_ipus = [1, 4]
    assert [devices.num_ipus(config, d) for d in (0, 1)] == [1, 4]
    with pytest.raises(ValueError, match="/device:IPU:2 does not exist"):
        devices.num_ipus(config, 2)
    config = IPUConfig()
    config.select_ipus = [8, 20, 24, 28, 30]  # gc-info listing of 16 IPUs in the documentation of select_ipus
    assert [devices.num_ipus(config, d) for d in range(5)] == [1, 2, 4, 8, 16]
    with pytest.raises(ValueError, match="index 31 is not in the listing"):
        devices.ipus_of_index(31)


def test_selection_orders():
    config = IPUConfig()
    assert devices.selection_order(config, 8, False) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert devices.selection_order(config, 8, True) == (0, 1, 3, 2, 4, 5, 7, 6)
    config.selection_order = SelectionOrder.HOOF
    assert devices.selection_order(config, 16, True) == (0, 2, 4, 6, 8, 10, 12, 14, 15, 13, 11, 9, 7, 5, 3, 1)
    config.selection_order = SelectionOrder.ZIGZAG
    assert devices.selection_order(config, 4, True) == (0, 1, 2, 3)
    config.selection_order = SelectionOrder.SNAKE
    assert devices.selection_order(config, 2, False) == (0, 1)


# -- the dataset benchmark ---------------------------------------------------------------------------------------------


def test_benchmark_keys_and_counts():
    dataset = Dataset.from_tensors((np.zeros((10, 3), np.float32), np.int32(1))).repeat()
    (text,) = ipu.dataset_benchmark.dataset_benchmark(dataset, 3, 4, print_stats=False).numpy()
    epochs = json.loads(text)["epochs"]
    assert len(epochs) == 3
    for epoch in epochs:
        assert set(epoch) == {
            "elements_processed",
            "total_bytes_processed",
            "time_elapsed",
            "elements_per_second",
            "bandwidth",
        }
        assert epoch["elements_processed"] == 4
        assert epoch["total_bytes_processed"] == 4 * (120 + 4)
        assert epoch["elements_per_second"] == pytest.approx(4 / epoch["time_elapsed"])
        assert epoch["bandwidth"] == pytest.approx(4 * 124 / 1e9 / epoch["time_elapsed"])
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
    result = ipu.dataset_benchmark.infeed_benchmark(queue, 1, 2, print_stats=False).numpy()
    assert json.loads(result[0])["epochs"][0]["elements_processed"] == 2


RAISING = {
    "inv": lambda x: tf.math.log(x - 5.0),
    "div0": lambda x: 1.0 / (x - 4.0),
    "oflo": lambda x: tf.cast(x * 2.0e4, tf.float16),
    "inv, in a conversion": lambda x: tf.cast(x * 1.0e9, tf.int32),
}


@pytest.mark.parametrize("name", RAISING)
def test_floating_point_exceptions_end_the_runs_that_ask_for_them(name: str) -> None:
    kind = name.partition(",")[0]
    for asked in ("inv", "div0", "oflo", "set_all", None):
        config = IPUConfig()
        config.auto_select_ipus = 1
        if asked is not None:
            setattr(config.floating_point_behaviour, asked, True)
        config.configure_ipu_system()
        strategy = ipu_strategy.IPUStrategy()
        raises = asked in (kind, "set_all")
        with (
            strategy.scope(),
            pytest.raises(tf.errors.InternalError, match="Floating point") if raises else nullcontext(),
        ):
            strategy.run(tf.function(RAISING[name]), args=[tf.constant([4.0])])
