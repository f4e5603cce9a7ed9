"""IPUConfig, selection of IPUs, datasets, the dataset benchmark."""

import json

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from ipuperf.tensorflow.programs import devices
from ipuperf.tensorflow.python import ipu
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


@pytest.mark.parametrize(
    ("path", "value", "error", "message"),
    [
        (
            "auto_selct_ipus",
            1,
            ValueError,
            "'auto_selct_ipus' is not a valid attribute .* Did you mean 'auto_select_ipus'",
        ),
        ("io_tiles.num_io_tile", 1, ValueError, "Did you mean 'io_tiles.num_io_tiles'"),
        ("allow_recompute", 1, TypeError, "Trying to set allow_recompute to 1, but it must be of type bool"),
        ("auto_select_ipus", "2", TypeError, r"must be of type Union\[int, List\[int\], Tuple\[int, ...\]\]"),
        ("auto_select_ipus", [1.5], TypeError, "Trying to set auto_select_ipus"),
        ("io_tiles", 3, ValueError, "io_tiles is a category and cannot be assigned to"),
        ("io_tiles.available_memory_proportion", 1, TypeError, "must be of type float"),
    ],
)
def test_names_and_types_are_strict(path, value, error, message):
    config = IPUConfig()
    *parts, leaf = path.split(".")
    for part in parts:
        config = getattr(config, part)
    with pytest.raises(error, match=message):
        setattr(config, leaf, value)


def test_reading_an_unknown_attribute():
    with pytest.raises(ValueError, match="Did you mean 'matmuls'"):
        _ = IPUConfig().matmul


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


def test_contradictions_are_found_when_configured():
    config = IPUConfig()
    config.auto_select_ipus, config.select_ipus = 1, 0
    config.select_ipus = [3]
    with pytest.raises(ValueError, match="Only one of `auto_select_ipus` and `select_ipus`"):
        config.configure_ipu_system()
    config = IPUConfig()
    config.io_tiles.place_ops_on_io_tiles = True
    with pytest.raises(ValueError, match="io_tiles.num_io_tiles == 0"):
        config.configure_ipu_system()
    config = IPUConfig()
    config.select_ipus = [3, 3]
    with pytest.raises(ValueError, match="must be unique"):
        config.configure_ipu_system()
    with pytest.raises(RuntimeError, match="No IPU devices configured"):
        ipu.config.get_ipu_config()


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


@pytest.mark.parametrize(("ipus", "shards", "replicas"), [(8, 2, 4), (4, 4, 1), (16, 1, 16)])
def test_replicas(ipus, shards, replicas):
    config = IPUConfig()
    config.auto_select_ipus = ipus
    assert devices.replicas(config, 0, shards) == replicas


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


def test_benchmark_raises():
    benchmark = ipu.dataset_benchmark.dataset_benchmark
    with pytest.raises(ValueError, match="Expected `number_of_epochs` to be at least 1"):
        benchmark(Dataset.range(3), 0, 1)
    with pytest.raises(ValueError, match="Expected `elements_per_epochs` to be at least 1"):
        benchmark(Dataset.range(3), 1, 0)
    with pytest.raises(TypeError, match="Expected `dataset` argument"):
        benchmark([1], 1, 1)
    with pytest.raises(TypeError, match="Expected `infeed_queue` argument"):
        ipu.dataset_benchmark.infeed_benchmark(Dataset.range(3), 1, 1)
    with pytest.raises(tf.errors.OutOfRangeError, match="ended after 3"):
        benchmark(Dataset.range(3), 1, 4, print_stats=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="an axis of length 0"):
        benchmark(Dataset.from_tensors(np.zeros((2, 0))), 1, 1)


def test_buffer_sizes_merge_collectives():
    config = IPUConfig()
    assert devices.collective_merging(None) == devices.NO_MERGING
    assert devices.collective_merging(config).limit("all_reduce") == 0
    config.optimizations.maximum_cross_replica_sum_buffer_size = 1000
    config.optimizations.maximum_all_gather_buffer_size = 20
    merging = devices.collective_merging(config)
    assert [merging.limit(kind) for kind in ("all_reduce", "reduce_scatter", "all_gather")] == [1000, 0, 20]
    assert merging.contiguous
    config.optimizations.maximum_reduce_scatter_buffer_size = -1
    with pytest.raises(ValueError, match="optimizations.maximum_reduce_scatter_buffer_size is -1, it must be 0 bytes"):
        config.configure_ipu_system()


@pytest.mark.parametrize("count", [0, -1, [0], [2, -1], (4, 0)])
def test_a_device_without_ipus_is_refused(count) -> None:
    config = IPUConfig()
    config.auto_select_ipus = count
    with pytest.raises(ValueError, match="numbers of at least 1 are needed"):
        config.configure_ipu_system()
