"""What the small functions beside programs answer: devices, configurations, queues, shards, arguments of pipelines.

Values at and beside every bound; the golden files have the answers, or the class and text of the error.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rows import Golden

pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

import tensorflow as tf
from answers import asked

from ipuperf import ir, ops
from ipuperf.tensorflow import config, state
from ipuperf.tensorflow.facade import placing as autoshard
from ipuperf.tensorflow.importer import origins
from ipuperf.tensorflow.keras import options
from ipuperf.tensorflow.pipelining import accumulation
from ipuperf.tensorflow.pipelining import arguments as pipeline_arguments
from ipuperf.tensorflow.pipelining import model as pipeline_model
from ipuperf.tensorflow.pipelining import trace as pipeline_trace
from ipuperf.tensorflow.programs import devices, infeed, outfeed, program
from ipuperf.tensorflow.python.ipu import utils

tf1 = tf.compat.v1


def configured(**values: Any) -> config.IPUConfig:
    """A configuration with these values (``__`` for dots)."""
    return config.IPUConfig.from_dict({name.replace("__", "."): value for name, value in values.items()})


def sent(mode: Any, replicas: int, *elements: Any) -> outfeed.IPUOutfeedQueue:
    """A queue of scalars and pairs that has got these elements on each replica."""
    queue = outfeed.IPUOutfeedQueue(mode)
    with tf.__internal__.FuncGraph("sending").as_default():
        queue.described({"a": tf.zeros(()), "b": tf.zeros(2, tf.int32)})
    queue.heard = []
    queue.on_enqueue(lambda q: queue.heard.append(len(q._elements)))
    for number in elements:
        queue.sink(1)(np.full((replicas, 2), number, np.int32))
        queue.sink(0)(np.full(replicas, number + 0.5, np.float32))
    return queue


def chain(*sizes: int) -> tuple[Any, list[Any], list[str]]:
    """A graph of matrix products one after the other; one tensor passes before each but where two are made of one."""
    graph = tf.Graph()
    with graph.as_default():
        x = start = tf1.placeholder(tf.float32, [1, sizes[0]], name="x")
        for n in sizes[1:]:
            x = tf.matmul(x, tf.ones([x.shape[1], abs(n)]))
            x = tf.sin(x) + x if n < 0 else x
        end = tf.reduce_sum(x)
    return start, end, graph


def shards(count: int, *sizes: int, leave: str = "-", **options_: Any) -> list[Any]:
    """The shards that the ops of a chain get."""
    start, end, graph = chain(*sizes)
    autoshard.automatic_sharding(count, start, end, lambda edge: edge[1].startswith(leave), **options_)
    return [(op.type, origins.shard_of(op)) for op in graph.get_operations() if origins.shard_of(op) is not None]


def pipeline(**given: Any) -> SimpleNamespace:
    queue = SimpleNamespace(_outfeed_mode=outfeed.IPUOutfeedMode.ALL)
    kept = {"outfeed_queue": queue, "outfeed_loss": False, "outfeed_mask": None, "optimizer_function": len}
    return SimpleNamespace(**kept | {"accumulate_outfeed": False} | given)


def merge(**sizes: int) -> dict[str, Any]:
    """How collectives are merged for these sizes of buffers."""
    return vars(devices.collective_merging(configured(**{f"optimizations__{name}": n for name, n in sizes.items()})))


def order(name: str, *options_: Any) -> tuple[int, ...]:
    return devices.selection_order(configured(selection_order=f"SelectionOrder.{name}"), *options_)


def masked(mask: list[bool], *structures: Any) -> list[bool]:
    """The mask of the tensors of a last stage whose functions return these structures."""
    last = [SimpleNamespace(traced=SimpleNamespace(structure=one)) for one in structures]
    return pipeline_trace._flat_mask(mask, last)


def told(stages: Any) -> Any:
    return [(len(stage.functions), stage.devices) for stage in stages]


BLOCKS = {"optimizations__cholesky_block_size": 5, "optimizations__triangular_solve_expander_block_size": 6}
NAMES = {
    **vars(devices), **vars(config), **vars(pipeline_arguments), **vars(pipeline_model), **vars(options),
    "c": configured, "sent": sent, "shards": shards, "pipeline": pipeline, "told": told, "np": np, "tf": tf, "tf1": tf1,
    "Method": accumulation.GradientAccumulationReductionMethod, "Schedule": pipeline_arguments.PipelineSchedule,
    "ALL": outfeed.IPUOutfeedMode.ALL, "LAST": outfeed.IPUOutfeedMode.LAST, "check_version": state.check_version,
    "accumulation": accumulation, "infeed": infeed, "autoshard": autoshard, "utils": utils, "k": ops, "ir": ir,
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.5), "program": program, "BLOCKS": BLOCKS,
    "Infeed": infeed.IPUInfeedQueue, "Dataset": tf.data.Dataset,
    "masked": masked, "merge": merge, "order": order,
}  # fmt: skip
DEVICES = """
[power_of_two(n) for n in range(18)]
[check_ordinal(n) for n in (None, 0, 1, 7)]
check_ordinal(-1)
check_ordinal(True)
check_ordinal(1.0)
[ipus_of_index(i) for i in range(31)]
ipus_of_index(31)
ipus_of_index(-1)
[ipus_of_index(i, 4) for i in range(7)]
ipus_of_index(7, 4)
num_ipus(None, 3)
num_ipus(c(), 3)
[num_ipus(c(auto_select_ipus=4), d) for d in (0, )]
num_ipus(c(auto_select_ipus=4), 1)
[num_ipus(c(auto_select_ipus=[2, 8]), d) for d in (0, 1)]
num_ipus(c(auto_select_ipus=[2, 8]), 2)
[num_ipus(c(select_ipus=[16, 30]), d) for d in (0, 1)]
num_ipus(c(select_ipus=24), 0)
[replicas(c(auto_select_ipus=8), 0, n) for n in (1, 2, 4, 8)]
replicas(c(auto_select_ipus=8), 0, 16)
replicas(c(auto_select_ipus=6), 0, 4)
[replicas(None, 0, 4), replicas(c(), 1, 2)]
[(n, mapped, selection_order(None, n, mapped)) for n in (1, 2, 4, 8) for mapped in (False, True)]
[(name, n, order(name, n, False)) for name in ('AUTO', 'ZIGZAG', 'SNAKE', 'HOOF') for n in (1, 2, 3, 4, 16)]
[order(name, 8, True) for name in ('AUTO', 'ZIGZAG', 'SNAKE', 'HOOF')]
[minimum_remote_bytes(one) for one in (None, c(), c(optimizations__minimum_remote_tensor_size=7))]
vars(collective_merging(None))
merge()
merge(maximum_cross_replica_sum_buffer_size=1)
merge(maximum_reduce_scatter_buffer_size=2)
merge(maximum_all_gather_buffer_size=3)
[block_attributes(k.Cholesky, None), block_attributes(k.Cholesky, c()), block_attributes(k.MatMul, c())]
block_attributes(k.Cholesky, c(**BLOCKS))
block_attributes(k.TriangularSolve, c(**BLOCKS))
block_attributes(k.MatMul, c(**BLOCKS))
plan_attributes({})
plan_attributes({'availableMemoryProportion': 1, 'partialsType': 'half', 'other': 1})
plan_attributes({'availableMemoryProportion': '0.25', 'partialsType': 'float'})
plan_attributes({'partialsType': 'double'})
of_gradient(plan_attributes({'availableMemoryProportion': 0.5, 'partialsType': 'half'}))
[remote_buffers_supported(), remote_buffers_supported(4)]
[check_version(v) for v in ('2.16', '2.16.0', '2.21.9')]
check_version('2.15.9')
check_version('2.22.0')
check_version('3.0')
check_version('1.17')
utils.reset_ipu_seed(3); utils.get_num_of_ipus_in_device('/device:IPU:0')
utils.move_variable_initialization_to_cpu()
utils.move_variable_initialization_to_cpu(tf.Graph())
utils.move_variable_initialization_to_cpu(3)
utils.set_matmul_options
utils.set_matmul
utils.matmul_options
"""
CONFIGURED = [
    *(f"c(io_tiles__num_io_tiles={n}, io_tiles__place_ops_on_io_tiles={place}).check()"
      for n in (-1, 0, 1, 2) for place in (False, True)),
    *(f"c(io_tiles__num_io_tiles={n}, norms__experimental__distributed_batch_norm_replica_group_size={size}).check()"
      for n in (0, 1) for size in (-1, 0, 1, 2)),
    *(f"c(auto_select_ipus={count}, select_ipus={chosen}).check()"
      for count in (-1, 0, 1, [], [1, 0], (2,)) for chosen in (-1, 0, [], [1, 0], [1, 1], [0, -1])),
    *(f"c(device_connection__type='DeviceConnectionType.{kind}', device_connection__version={version!r}).check()"
      for kind in ("ALWAYS", "ON_DEMAND", "PRE_COMPILE", "NEVER") for version in ("", "ipu2")),
    *(f"c(experimental__multi_replica_distribution__process_count={n}, "
      f"experimental__multi_replica_distribution__process_index={i}).check()"
      for n in (0, 1, 2) for i in (-1, 0, 1, 2)),
    *(f"c(optimizations__{name}={size}).check()" for size in (-1, 0, 1)
      for name in ("maximum_all_gather_buffer_size", "maximum_cross_replica_sum_buffer_size", "cholesky_block_size")),
]  # fmt: skip
QUEUES = """
sent(ALL, 1).take()
sent(ALL, 1, 1).take()
sent(ALL, 1, 1, 2).take()
sent(ALL, 2, 1, 2).take()
sent(LAST, 1, 1, 2).take()
sent(LAST, 2, 1, 2).take()
sent(LAST, 1).take()
q = sent(ALL, 1, 1, 2); [q.take(), q.take(), q.heard]
q = sent(LAST, 1, 1, 2); [q.take(), q.take(), q.heard]
q = sent(ALL, 1, 1, 2); [v.numpy() for v in tf.nest.flatten(q.dequeue())]
q = sent(ALL, 1, 1, 2); [{n: v.numpy() for n, v in e.items()} for e in q]
q = sent(ALL, 1); [list(q), q.deleter, q.enqueued]
q = sent(ALL, 1, 1); q.deleter; q.take()
infeed.as_arguments(1)
infeed.as_arguments((1, 2))
infeed.as_arguments([1, 2])
infeed.as_arguments({'a': 1})
infeed.as_arguments({1: 'a'})
[*Infeed(Dataset.range(3)).take(2)]
q = Infeed(Dataset.range(3)); [*q.take(2), *q.take(1), q.number_of_tuple_elements, q.dequeued]
q = Infeed(Dataset.range(3)); [*q.take(3), *q.take(1)]
q = Infeed(Dataset.from_tensors((1.0, 2))); [q.number_of_tuple_elements, q.element_spec]
q = Infeed(Dataset.from_tensors({'a': np.float64(1), 'b': 2})); [q.number_of_tuple_elements, *q.take(1)]
q = Infeed(Dataset.range(3)); q.replace_dataset(Dataset.range(5, 7)); [*q.take(2)]
q = Infeed(Dataset.range(3)); q.replace_dataset(Dataset.from_tensors(1.0))
infeed.with_float32(Dataset.from_tensors(np.float64(1))).element_spec
infeed.with_float32(Dataset.from_tensors((np.float64(1), np.float16(2), {'a': np.float64(3)}))).element_spec
infeed.with_float32(Dataset.from_tensors({'a': np.float64(1), 'b': 2})).element_spec
infeed.IPUIterator()
infeed.IPUIterator(infeed_spec=1)
infeed.IPUIterator(infeed_spec=1, element_spec=1)
infeed.IPUIterator(Dataset.range(3), element_spec=1)
infeed.IPUIterator(Dataset.range(3)).element_spec
"""
SHARDS = """
shards(1, 3, 4, 5)
shards(2, 3, 4, 5)
shards(2, 3, 40, 5, 6)
shards(2, 3, 4, 5, 60)
shards(3, 3, 4, 5, 6)
shards(3, 3, -4, 5, 6)
shards(4, 3, 4, -5, 6)
shards(5, 3, 4, 5)
shards(0, 3, 4, 5)
shards(-1, 3, 4, 5)
shards(2, 3, 4, 5, leave='MatMul')
shards(2, 3, 4, 5, leave='Sum')
shards(3, 3, 4, 5, leave='')
[autoshard._balanced([1, 1, 1, 1, 1], [1, 2, 3, 4], n) for n in (1, 2, 3, 4, 5)]
[autoshard._balanced([9, 1, 1, 1, 1], [1, 2, 3, 4], n) for n in (1, 2, 3, 4, 5)]
[autoshard._balanced([1, 1, 1, 1, 9], [1, 2, 3, 4], n) for n in (1, 2, 3, 4, 5)]
[autoshard._balanced([2, 3, 5, 7, 11], [1, 2, 4], n) for n in (1, 2, 3, 4)]
"""
PIPELINES = [
    *(f"_check_count({count}, {serial}, Method.{method})" for count in (None, 0, 1, False, 0.0)
      for serial, method in ((1, "SUM"), (2, "SUM"), (2, "MEAN"), (1, "MEAN"), (0, "MEAN"))),
    *(f"_check_repeats({repeats}, {serial}, {summed})" for repeats in (0, 1, 2, True, None, 1.0)
      for serial, summed in ((1, False), (1, True), (2, False), (0, True))),
    *(f"_schedule({schedule}, {serial})" for serial in (0, 1, 2)
      for schedule in (None, 1, "Schedule.Grouped", "Schedule.Interleaved", "Schedule.Sequential")),
    *(f"_mapping({stages}, {given}, {serial})" for stages in ("[len, len, len]", "[len, [len, len]]")
      for given in (None, "(2, 0, 1)", 1) for serial in (1, 2)),
    *(f"told(_stages({functions}, {mapping}))" for functions, mapping in (
        ("[len, len]", "[0, 1]"), ("[len, len]", "[0]"), ("[len, len]", "[0, 0]"), ("[len, len]", "[0, -1]"),
        ("[len, len]", "[0, True]"), ("[len, len]", "[0, 1.0]"), ("[len, [len, len]]", "[0, 1]"),
        ("[len, [len, len]]", "[0, [1, 2]]"), ("[len, [len, len]]", "[0, [1, 1]]"), ("[len, [len, len]]", "[0, [1]]"),
        ("[len, []]", "[0, []]"), ("[len, [len, [len]]]", "[0, [1, 2]]"), ("[len, (len,)]", "[3, (0,)]"),
        ("[len, [len]]", "[0, [-1]]"), ("[len, len]", "[0, [1]]"))),
    *(f"_check_devices(_stages([len, len], {mapping}), Schedule.{schedule}, {training}, {serial})"
      for mapping in ([0, 1], [1, 1]) for schedule in ("Grouped", "Interleaved", "Sequential")
      for training in (False, True) for serial in (1, 2)),
    *(f"_micro_batches({count}, Schedule.{schedule}, 3, {training})" for schedule in
      ("Grouped", "Interleaved", "Sequential") for training in (False, True) for count in (0, 1, 3, 4, 6, 9, 12)),
    *(f"_micro_batches({count}, Schedule.Sequential, 2, True)" for count in
      ("True", "2.0", "None", "2**31 - 2", "2**31 - 1", "tf.constant(4)", "tf.Variable(4)", "'4'")),
    *(f"_check_outfeed(pipeline({given}))" for given in (
        "", "outfeed_mask=[True]", "outfeed_mask=[]", "outfeed_mask=[True], optimizer_function=None",
        "outfeed_mask=[], optimizer_function=None",
        "outfeed_loss=True", "outfeed_loss=True, optimizer_function=None", "outfeed_loss=True, outfeed_mask=[True]",
        "outfeed_loss=True, outfeed_mask=[]", "outfeed_loss=True, outfeed_queue=None", "accumulate_outfeed=True",
        "accumulate_outfeed=True, outfeed_queue=None", "outfeed_queue=None",
        "accumulate_outfeed=True, outfeed_queue=type('q', (), {'_outfeed_mode': LAST})",
        "outfeed_queue=type('q', (), {'_outfeed_mode': LAST})")),
    *(f"[o.plans() for o in _checked_options(2, {given}, 'those')]" for given in (
        "None", "[PipelineStageOptions(), PipelineStageOptions({'partialsType': 'half'}, {'partialsType': 'float'})]",
        "[PipelineStageOptions()]", "1", "[1, 2]", "(PipelineStageOptions(), ) * 2", "[]")),
    *(f"_check_parts({stages}, {infeed_}, {outfeed_})" for stages in ("[]", "[1]", "(1, 2)", "[1, 2, 3]", "1", "None")
      for infeed_, outfeed_ in (("None", "None"), ("1", "None"), ("None", "1"))),
    *(f"masked({given})" for given in (
        "[True, False], [1, 2]", "[True, False], [1, (2, 3)]", "[True, False], ((1, 2), {'a': 3, 'b': 4})",
        "[True, False, True], [1, (2, 3)]", "[True], 1", "[True, False], [1, (2, 3)], [4]",
        "[True], [(1, 2)], [(3, 4)]", "[True, False], {'a': 1, 'b': 2}")),
    *(f"_recomputation({mode})" for mode in
      ("None", "RecomputationMode.Auto", "RecomputationMode.RecomputeThenBackpropagate", "1", "'Auto'")),
    *(f"[t.numpy() for t in _inputs({given})]" for given in ("None", "1", "[1, 2]", "([1, 2], (3.5,))", "[]")),
    *(f"_check_together({one}, {given})" for one in (False, True) for given in
      ("set()", "{'variables'}", "{'tape'}", "{'compute_gradients_args'}", "{'compute_gradients_kwargs', 'tape'}",
       "{'variables', 'tape'}", "{'captured_gradient_outfeed'}", "{'apply_gradients_args'}")),
    *(f"_check_gradient_options({given})" for given in
      ("(), {}", "(1, 2, 3, 4), {}", "(1, 2, 3, 4, 5), {}", "(1, 2, 3, 4, None), {}", "(), {'grad_loss': 1}",
       "(), {'grad_loss': None}", "(), {'gate_gradients': 1}", "(), {'other': 1}")),
    *(f"vars(PipelineStageOptions({given}))" for given in
      ("", "{'a': 1}", "1", "[]", "matmul_options={'partialsType': 'half'}", "slice_options={'a': 1}",
       "{'partialsType': 'half'}, {'a': 1}", "None, 3")),
    *(f"accumulation.accumulator_dtype({choice}, tf.Variable(np.float16(1)))" for choice in
      ("None", "tf.float32", "'float32'", "np.float32", "lambda v: v.dtype", "lambda v: 'float32'")),
    *(f"vars(accumulation.GradientAccumulationOptimizerV2(sgd(), {given}))['num_mini_batches']" for given in
      ("-1", "0", "1", "2", "True", "1.0", "2, None, True", "2, reduction_method='x'")),
    *(f"accumulation.GradientAccumulationOptimizerV2(sgd(), 2, {given}).offloads()" for given in
      ("None", "True", "False")),
    *(f"Method.parse_reduction_method({given})" for given in
      ("'sum'", "'Mean'", "'RUNNING_MEAN'", "Method.MEAN", "1", "'x'")),
]  # fmt: skip
KERAS = [
    *(f"o = Options(); o.set_accumulation({given}); vars(o)" for given in
      ("4, 'mean', {'dtype': 1}", "None, 'sum', {}", "0, 'sum', {}", "1, 'sum', {}", "True, 'sum', {}",
       "2.0, 'sum', {}", "4, 'x', {}", "4, 'sum', {'opt': 1}", "4, 'sum', {'num_mini_batches': 1}",
       "4, 'sum', {'experimental_normalize_gradients': 1}")),
    *(f"o = Options(); o.set_pipelining({given}); vars(o)" for given in
      ("4, [0, 1], True, 'mean', {'name': 1}", "None, None, None, 'sum', {}", "0, None, None, 'sum', {}",
       "1, [], False, 'sum', {}", "1, (0, 1), None, 'sum', {}", "1, [0, True], None, 'sum', {}",
       "1, [0, 1.0], None, 'sum', {}", "1, None, None, 'sum', {'experimental_normalize_gradients': 1}",
       "1, None, 1, 'sum', {}", "1, None, None, 'x', {}",
       *(f"1, None, None, 'sum', {{{name!r}: 1}}" for name in
         ("gradient_accumulation_count", "device_mapping", "accumulate_outfeed", "computational_stages", "repeat_count",
          "inputs", "infeed_queue", "outfeed_queue", "optimizer_function", "reduction_method", "outfeed_loss",
          "outfeed_mask", "batch_serialization_iterations", "pipeline_schedule")))),
    *(f"o = Options(); o.set_{way}({{{name!r}: 1}}); vars(o)" for way, names in (
        ("infeed", ("dataset", "infeed_spec", "element_spec", "prefetch_depth")),
        ("outfeed", ("outfeed_mode", "device_ordinal", "buffer_depth"))) for name in names),
    "o = Options(); o.set_accumulation(3, 'mean', {}); o.set_accumulation(None, 'sum', {}); o.saved()",
    *(f"o = Options(); o.set_pipelining(3, [1, 0], True, 'mean', {{}}); {rest}" for rest in
      ("o.set_pipelining(None, None, None, 'sum', {}); o.saved()",
       "o.set_infeed({'prefetch_depth': 2}); vars(Options.restored(o.saved()))")),
]  # fmt: skip


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


TABLES = {
    "devices": lines_of(DEVICES), "configurations": CONFIGURED, "queues": lines_of(QUEUES), "shards": lines_of(SHARDS),
    "arguments-of-pipelines": PIPELINES, "options-of-models": KERAS,
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.filterwarnings("ignore::ipuperf.runtime.effects.WithoutEffectWarning")
def test_every_answer(name: str, golden: Golden) -> None:
    golden([f"{expression} -> {asked(expression, NAMES)}" for expression in TABLES[name]])
