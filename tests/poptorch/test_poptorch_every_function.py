"""Functions and classes of PopTorch outside of models: what each call gives, prints, or refuses, as a row."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from outcomes import by_subject, outcome
from rows import Golden

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch import blocks, data, errors  # noqa: E402, F401  # calls use them
from ipuperf.poptorch.executor import partition  # noqa: E402
from ipuperf.poptorch.optimisers.classes import optimiser_description  # noqa: E402

X, Y, M = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3), poptorch.MatMulSerializationMode
OVERLAP = poptorch.OverlapMode.OverlapAccumulationLoop

CALLS = """
    poptorch.identity_loss(X, 'sum')
    poptorch.identity_loss(X, 'mean')
    poptorch.identity_loss(X, 'none')
    poptorch.identity_loss(X, 'max')
    poptorch.identity_loss(3, 'sum')
    poptorch.recomputationCheckpoint(X)
    poptorch.recomputationCheckpoint(X, Y)
    poptorch.recomputationCheckpoint([X, Y])
    poptorch.recomputationCheckpoint((X,))
    poptorch.recomputationCheckpoint(X, 3)
    poptorch.set_available_memory(X, 0)
    poptorch.set_available_memory(X, 1)
    poptorch.set_available_memory(X, 1.1)
    poptorch.set_available_memory(X, -0.1)
    poptorch.set_available_memory(X, '1')
    poptorch.set_available_memory(3, 0.1)
    poptorch.serializedMatMul(X, X.T, M.InputChannels, 2)
    poptorch.serializedMatMul(X, X.T, M.InputChannels, 3)
    poptorch.serializedMatMul(X, X.T, M.ReducingDim, 3, True)
    poptorch.serializedMatMul(X, X.T, M.OutputChannels, 0)
    poptorch.serializedMatMul(X, X.T, M.OutputChannels)
    poptorch.serializedMatMul(X, X.T, M.OutputChannels, 2)
    poptorch.serializedMatMul(X, X.T, M.Disabled)
    poptorch.serializedMatMul(X[0], X.T, M.InputChannels, 1)
    poptorch.serializedMatMul(X, X.T, 'none')
    poptorch.serializedMatMul(X, X.T, M.ReducingDim, 1.0)
    poptorch.serializedMatMul(X, X.T, M.ReducingDim, 1, 1)
    poptorch.nop(X)
    poptorch.nop('x')
    poptorch.ipu_print_tensor(X)
    poptorch.ipu_print_tensor(X, 'mine')
    poptorch.ipu_print_tensor(1)
    poptorch.set_overlap_for_input(X, OVERLAP)
    poptorch.set_overlap_for_input({'a': (X, [Y])}, OVERLAP)
    poptorch.set_overlap_for_output([X, 3], OVERLAP)
    poptorch.set_overlap_for_output(3, poptorch.OverlapMode.NoOverlap)
    poptorch.set_overlap_for_output(X, 'no_overlap')
    poptorch.for_loop(3, lambda x: [x * 2], [X])
    poptorch.for_loop(0, lambda x: x * 2, [X])
    poptorch.for_loop(2, lambda x, y: (y, x), [X, X + 1])
    poptorch.for_loop(2, lambda x: x[0], [X])
    poptorch.for_loop(2, lambda x: [x, x], [X])
    poptorch.for_loop(-1, lambda x: [x], [X])
    poptorch.for_loop(1.5, lambda x: [x], [X])
    poptorch.for_loop(1, lambda x: [x], X)
    poptorch.for_loop(1, lambda x: [x], [X, 3])
    poptorch.cond(X.sum() > 0, lambda x: [x * 2], [X], lambda x: [x], [Y])
    poptorch.cond(X.sum() < 0, lambda x: [x * 2], [X], lambda x: x + 1, [Y])
    poptorch.cond(X > 0, lambda x: [x * 2], [X], lambda x: [x], [Y])
    poptorch.cond(True, lambda x: [x * 2], [X], lambda x: [x], [Y])
    poptorch.cond(X.sum() > 0, lambda x: [3], [X], lambda x: [x], [Y])
    poptorch.cond(X.sum() > 0, lambda x: [x], [3], lambda x: [x], [Y])
    poptorch.cond(X.sum() > 0, lambda x: [x], X, lambda x: [x], [Y])
    poptorch.dynamic_slice(X, 1, torch.tensor([1]), 2, 1)
    poptorch.dynamic_slice(X, 1, torch.tensor(0), 3, 2)
    poptorch.dynamic_slice(X, 1, torch.tensor(0), 0, 1)
    poptorch.dynamic_slice(X, 1, torch.tensor(0), -1, 1)
    poptorch.dynamic_slice(X, 1, 0, 2, 1)
    poptorch.dynamic_slice(X, 1.0, torch.tensor(0), 2, 1)
    poptorch.dynamic_slice(X, 1, torch.tensor(0), 2.0, 1)
    poptorch.dynamic_slice(X, 1, torch.tensor(0), 2, '1')
    poptorch.dynamic_slice([1], 1, torch.tensor(0), 2, 1)
    poptorch.dynamic_update(X, Y[:, :2], 1, torch.tensor([1]), 2)
    poptorch.dynamic_update(X, Y[:, :2], 1, torch.tensor([2]), 2)
    poptorch.dynamic_update(X, Y[0], 1, torch.tensor([2]), 2)
    poptorch.dynamic_update(X, Y.int(), 1, torch.tensor([0]), 3)
    poptorch.dynamic_update(3, Y, 1, torch.tensor([0]), 3)
    poptorch.dynamic_update(X, 3, 1, torch.tensor([0]), 3)
    poptorch.ctc_beam_search_decoder(X[:, None], torch.tensor([2]))
    poptorch.ctc_beam_search_decoder(3, torch.tensor([2]))
    poptorch.NameScope('a').name
    poptorch.NameScope(3)
    poptorch.Attribute(a=1).attributes
    poptorch.profiling.Channel('c').tracepoint('t').__enter__()
    poptorch.profiling.Channel('c').instrument(X, 'sum')
    poptorch.fps(X)
    poptorch.nearest(X)
    poptorch.isRunningOnIpu()
    poptorch.ipuHardwareVersion()
    poptorch.ipuHardwareIsAvailable(0)
    poptorch.ipuHardwareIsAvailable(4)
    poptorch.ipuHardwareIsAvailable(5)
    [level(name) for name in ('TRACE', 'DEBUG', 'INFO', 'WARN', 'ERR', 'OFF', 0, 1, 2, 3, 4, 5)]
    level(6)
    level(-1)
    level(True)
    level('trace')
    poptorch.MultiConv().availableMemoryProportions(0.5)._proportions
    poptorch.MultiConv().availableMemoryProportions([0.5, 0.25])._proportions
    poptorch.MultiConv().availableMemoryProportions(1.5)
    poptorch.MultiConv().availableMemoryProportions('a')
    poptorch.MultiConv().partialsTypes([torch.half, torch.float])._partials
    poptorch.MultiConv().partialsTypes(torch.half)._partials
    poptorch.MultiConv().partialsTypes(torch.int32)
    poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial)._planning
    poptorch.MultiConv().planType('serial')
    poptorch.MultiConv().perConvReservedTiles(0)._planning
    poptorch.MultiConv().perConvReservedTiles(-1)
    poptorch.MultiConv().perConvReservedTiles(1.0)
    poptorch.MultiConv().cycleBackOff(0.0)._planning
    poptorch.MultiConv().cycleBackOff(-0.1)
    poptorch.MultiConv().cycleBackOff(1)
    poptorch.MultiConv().enableConvDithering([True, False])
    poptorch.MultiConv().enableConvDithering([1])
    poptorch.Stage('a', 'b').ipu(2)
    poptorch.Stage('a')
    poptorch.Stage(3)
    poptorch.Stage('a').ipu(-1)
    poptorch.Stage('a').ipu(True)
    poptorch.Stage('a').ipu('0')
    poptorch.Phase()
    poptorch.Phase('a', 'b').stages
    poptorch.Phase(poptorch.Stage('a'), poptorch.Stage('b')).ipus(1, 0).stages
    poptorch.Phase(poptorch.Stage('a')).ipus(1, 0)
    poptorch.Phase(poptorch.Stage('a'), 'b')
    poptorch.Phase('a').stage(0)
    places(poptorch.PipelinedExecution('a', ['b', 'c'], poptorch.Stage('d').ipu(0)), 'abcd')
    places(poptorch.PipelinedExecution('a', 'b'), 'x')
    places(poptorch.PipelinedExecution(), 'ab')
    places(poptorch.PipelinedExecution(), 'ab', 1)
    places(poptorch.PipelinedExecution('a', 'b'), 'ab', 3)
    places(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), 'abca')
    places(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), 'ab', 0)
    places(poptorch.ShardedExecution(poptorch.Stage('a').ipu(1), 'b'), 'ab')
    places(poptorch.SerialPhasedExecution('a', 'b'), 'ab')
    places(poptorch.SerialPhasedExecution('a', 'b'), 'ab', 0)
    places(poptorch.ParallelPhasedExecution([poptorch.Stage('a').ipu(0), poptorch.Stage('b').ipu(2)], ['c']), 'abc', 1)
    places(poptorch.ParallelPhasedExecution([poptorch.Phase('a').ipus(0), poptorch.Phase('b').ipus(1)]), 'ab')
    placed(pipe('a', 'b'), 'ab')
    placed(pipe('a', 'b'), 'aab')
    placed(pipe('a', 'b'), 'aba')
    placed(pipe('a', 'b'), 'ba')
    placed(pipe('a', 'b'), 'ab', leading_ops=True)
    placed(pipe(), '')
    placed(pipe('a', 'b', 'c'), 'abc')
    placed(pipe('a', 'b', 'c'), 'abc', auto_round_num_ipus=True)
    placed(pipe('a'), 'a', replication_factor=3)
    placed(pipe('a'), 'a', replication_factor=3, auto_round_num_ipus=True)
    placed(pipe('a', 'b'), 'ab', replication_factor=2)
    placed(pipe(poptorch.Stage('a').ipu(70)), 'a', auto_round_num_ipus=True)
    placed(pipe(poptorch.Stage('a').ipu(127)), 'a')
    placed(pipe(poptorch.Stage('a').ipu(64)), 'a')
    placed(pipe(poptorch.Stage('a').ipu(63)), 'a')
    placed(pipe(poptorch.Stage('a').ipu(1), poptorch.Stage('b').ipu(1)), 'ab')
    placed(pipe('a'), 'b')
    placed(pipe(poptorch.AutoStage.AutoIncrement), 'abab')
    placed(serial('a', 'b'), 'ab')
    placed(serial(poptorch.Phase('a').ipus(0), poptorch.Phase('b').ipus(0)), 'ab')
    placed(serial(poptorch.Phase('a').ipus(0), poptorch.Phase('b').ipus(0)), 'ab', leading_ops=True)
    placed(serial(poptorch.Phase('a').ipus(0), poptorch.Phase('b').ipus(0)), 'ba')
    placed(serial(poptorch.Phase('a', 'b').ipus(0), poptorch.Phase('c').ipus(1)), 'abac')
    placed(parallel(poptorch.Phase('a').ipus(0), poptorch.Phase('b').ipus(1)), 'ab')
    placed(parallel(poptorch.Phase('a').ipus(0), poptorch.Phase('b').ipus(0)), 'ab')
    placed(parallel(poptorch.Phase('a').ipus(2), poptorch.Phase('b').ipus(3)), 'ab')
    blocks.module_repr(net())
    blocks.module_repr(poptorch.BeginBlock(net(), 'a', 1))
    blocks.module_repr(net(lambda m: poptorch.BeginBlock(m[1], 'b', ipu_id=0)))
    blocks.module_repr(net(lambda m: poptorch.BeginBlock(m[1][0], ipu_id=2)))
    blocks.module_repr(poptorch.BeginBlock(nn.ReLU(), 'a'))
    blocks.module_repr(3)
    blocks.module_repr(removed(poptorch.BeginBlock(net(), 'a', 1)))
    poptorch.BeginBlock(nn.ReLU(), 3)
    poptorch.BeginBlock(nn.ReLU(), 'a', -1)
    poptorch.BeginBlock(nn.ReLU(), 'a', 'b')
    poptorch.BeginBlock(3, 'a')
    poptorch.BeginBlock(poptorch.BeginBlock(nn.ReLU(), 'a'), 'b')
    poptorch.Block(3)
    poptorch.Block('a', ipu_id=-1)
    poptorch.Block('a', ipu_id='0')
    poptorch.BlockFunction('a', 1)(abs)(-3)
    poptorch.BlockFunction(3)
    poptorch.PipelinedExecution('a', 'a')
    poptorch.PipelinedExecution(3)
    poptorch.PipelinedExecution('a', poptorch.AutoStage.SameAsIpu)
    poptorch.PipelinedExecution('a', ['b', 'c'])
    poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    poptorch.PipelinedExecution('a').stage('a')
    poptorch.PipelinedExecution('a').stage('b')
    poptorch.SerialPhasedExecution()
    poptorch.SerialPhasedExecution('a').phase(0).stages
    poptorch.SerialPhasedExecution('a').phase(-1)
    poptorch.SerialPhasedExecution('a').phase('a')
    poptorch.SerialPhasedExecution('a').phases[0].stages
    poptorch.SerialPhasedExecution('a').backendOptions()
    poptorch.SerialPhasedExecution('a').setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase).backendOptions()
    poptorch.SerialPhasedExecution('a').setTensorsLiveness(1)
    poptorch.SerialPhasedExecution('a').useSeparateBackwardPhase().backendOptions()
    poptorch.SerialPhasedExecution('a').useSeparateBackwardPhase(1)
    poptorch.ParallelPhasedExecution('a').sendTensorsOffChipAfterFwd().backendOptions()
    poptorch.ParallelPhasedExecution('a').sendTensorsOffChipAfterFwd(False).liveness
    poptorch.ParallelPhasedExecution('a').sendTensorsOffChipAfterFwd(0)
    poptorch.ShardedExecution('a').backendOptions()
    poptorch.PipelinedExecution('a').backendOptions()
    (poptorch.ShardedExecution.name, poptorch.SerialPhasedExecution.name, poptorch.ParallelPhasedExecution.name)
    poptorch.Options().foo
    setattr(poptorch.Options(), 'foo', 1)
    setattr(poptorch.Options(), '_foo', 1)
    setattr(poptorch.Options(), 'device_iterations', '2')
    setattr(poptorch.Options(), 'device_iterations', True)
    poptorch.Options().set(device_iterations=3, foo=1)
    poptorch.Options().createOrSet(device_iterations='3')
    (poptorch.Options().exists('device_iterations'), poptorch.Options().exists('foo'))
    poptorch.Options()('device_iterations')
    poptorch.Options()('foo')
    deleted(poptorch.Options(), 'device_iterations').exists('device_iterations')
    deleted(poptorch.Options(), 'foo').exists('foo')
    poptorch.Options().deviceIterations(2).replicationFactor(3).inputReplicaGrouping(2, consecutive).samples_factor
    poptorch.Options().deviceIterations(2).replicationFactor(4).inputReplicaGrouping(2, consecutive).samples_factor
    [poptorch.Options().resolved_output_mode(training).name for training in (True, False)]
    poptorch.Options().TensorLocations.location('bias')
    poptorch.Options().TensorLocations.location('weight')
    poptorch.Options().TensorLocations.location('weight', False)
    sorted(poptorch.Options().toDict().items(), key=str)
    file('deviceIterations(4)', '', '# none', 'Training.gradientAccumulation(2)')
    file('deviceIterations(device_iterations=4)', 'outputMode(poptorch.OutputMode.EveryN, output_return_period=2)')
    file('setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a").ipu(1)))')
    file('deviceIterations')
    file('deviceIterations(')
    file('options.deviceIterations(2)')
    file('deviceIterations(torch.half)')
    file('deviceIterations(torch.foo)')
    file('deviceIterations(poptorch.Options)')
    file('outputMode(OutputMode.All)')
    file('outputMode(poptorch.OutputMode)')
    file('f[0](1)')
    list(loader(10, batch_size=2))
    list(loader(10, batch_size=3))
    list(loader(10, batch_size=3, drop_last=False))
    list(loader(10, o(deviceIterations=2), batch_size=2))
    list(loader(10, o(deviceIterations=2, replicationFactor=2), drop_last=False))
    [len(loader(10, batch_size=3, drop_last=drop)) for drop in (True, False)]
    [len(loader(10, batch_size=3, drop_last=drop, mode=rebatched)) for drop in (True, False)]
    list(loader(10, batch_size=3, drop_last=False, mode=rebatched, rebatched_worker_size=2))
    list(loader(10, batch_size=3, mode=rebatched, rebatched_worker_size=2))
    list(loader(10, batch_size=3, mode=asynchronous))
    list(loader(10, batch_size=3, mode=asynchronous, drop_last=False))
    list(loader(9, batch_size=3, mode=asynchronous, drop_last=False))
    loader(10, batch_size=3, mode=rebatched, rebatched_worker_size=4)
    loader(10, batch_size=3, mode=rebatched, rebatched_worker_size=0)
    loader(10, batch_size=None, mode=rebatched)
    loader(10, batch_size=0)
    loader(10, batch_size='2')
    loader(10, num_workers=-1)
    loader(10, mode='sync')
    loader(10, 5)
    loader(10, mode=asynchronous, async_options={'rebatched_size': 2})
    loader(10, mode=asynchronous, async_options={'buffer_size': 0})
    loader(10, num_workers=2, persistent_workers=True, pin_memory=True, timeout=3).requested_workers
    list(loader(10, batch_sampler=[[0, 1], [5, 6], [9, 9]]))
    list(loader(10, o(deviceIterations=2), batch_sampler=[[0, 1], [5, 6], [9, 9]]))
    list(loader(10, o(deviceIterations=2), batch_sampler=[[0, 1], [5, 6], [9, 9]], drop_last=False))
    [len(loader(10, o(deviceIterations=2), batch_sampler=[[0]] * 3, drop_last=drop)) for drop in (True, False)]
    loader(10, o(deviceIterations=2), batch_size=3).combinedBatchSize
    loader(10, batch_size=None).combinedBatchSize
    [loader(n, batch_size=3).divides for n in (9, 10)]
    list(loader(10, part(0, 2), batch_size=2))
    list(loader(10, part(1, 2), batch_size=2))
    list(loader(11, part(2, 3), batch_size=2, drop_last=False))
    list(loader(10, part(1, 2), batch_size=2, auto_distributed_partitioning=False))
    list(loader(10, part(1, 2).randomSeed(3), batch_size=2, shuffle=True))
    loader(10, part(1, 2), batch_size=2, shuffle=True)
    loader(10, part(1, 2), batch_sampler=[[0]])
    list(accessor([X, Y]))
    list(accessor([X, Y, X], rebatched_size=4))
    list(accessor([X, Y, X], buffer_size=1))
    list(accessor([{'a': X}, {'a': Y}], rebatched_size=3))
    accessor([X], rebatched_size=1)
    accessor([X], rebatched_size='2')
    accessor([X], buffer_size=0)
    accessor([3])
    accessor(7)
    list(accessor([X, 3]))
    list(accessor([]))
    len(accessor([X, Y]))
    len(accessor(loader(10, batch_size=3), rebatched_size=2))
    accessor(loader(10, batch_size=3, mode=asynchronous))
    accessor(loader(10, batch_size=3, drop_last=False))
    list(data.rebatch([X, X, X], 4, True))
    list(data.rebatch([X, X, X], 4, False))
    list(data.rebatch([X, X, X], 2, False))
    list(data.rebatch([], 2, False))
    description(poptorch.optim.SGD, lr=0.1)
    description(poptorch.optim.SGD, lr=0.1, momentum=0.9, loss_scaling=2.0, velocity_scaling=3.0)
    description(poptorch.optim.SGD, lr=0.1, velocity_scaling=3.0, use_combined_accum=True)
    description(poptorch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, use_combined_accum=True)
    description(poptorch.optim.SGD, lr=0.1, velocity_accum_type=torch.half, use_combined_accum=True)
    description(poptorch.optim.SGD, lr=0.1, accum_type=torch.half, velocity_accum_type=torch.half)
    description(poptorch.optim.SGD, lr=0.1, accum_type=torch.int8)
    description(poptorch.optim.SGD, lr=0.1, max_grad_norm=-1.0)
    description(poptorch.optim.SGD, lr=-0.1)
    description(poptorch.optim.SGD, lr='fast')
    description(poptorch.optim.SGD, lr=torch.tensor(0.5))
    description(poptorch.optim.Adam)
    description(poptorch.optim.Adam, amsgrad=True)
    description(poptorch.optim.Adam, maximize=True)
    description(poptorch.optim.Adam, betas=[0.5, 0.6])
    description(poptorch.optim.Adam, first_order_momentum_accum_type=torch.half, max_grad_norm=2.0)
    description(poptorch.optim.Adam, second_order_momentum_accum_type=torch.half)
    description(poptorch.optim.AdamW, bias_correction=False, weight_decay=0.3)
    description(poptorch.optim.AdamW, loss_scaling=8)
    description(poptorch.optim.RMSprop)
    description(poptorch.optim.RMSprop, centered=True, use_tf_variant=True, momentum=0.5)
    description(poptorch.optim.LAMB)
    description(poptorch.optim.LAMB, bias_correction=False, max_weight_norm=2.0)
    description(torch.optim.SGD, lr=0.1, momentum=0.5)
    description(torch.optim.Adam)
    description(torch.optim.AdamW)
    description(torch.optim.RMSprop)
    description(torch.optim.Adagrad)
    description(torch.optim.NAdam)
    stepped(poptorch.optim.AdamW, lr=0.1, bias_correction=False, weight_decay=0.2)
    stepped(poptorch.optim.AdamW, lr=0.1, bias_correction=False, amsgrad=True)
    stepped(poptorch.optim.AdamW, lr=0.1, bias_correction=False, maximize=True)
    stepped(poptorch.optim.LAMB, lr=0.1)
    stepped(poptorch.optim.LAMB, lr=0.1, bias_correction=False, max_weight_norm=0.5, weight_decay=0.0, betas=(0.5, 0.6))
    constant(poptorch.optim.SGD(P(), lr=0.1, momentum=0.9, loss_scaling=2.0))
    constant(poptorch.optim.SGD(P(), lr=0.1))
    constant(poptorch.optim.Adam(P(), lr=0.1, betas=(0.9, 0.999)))
    constant(poptorch.optim.LAMB(P(), lr=0.1, eps=0.1))
    errors.Error('what', type='other', location=['a', 'b']).location
    str(errors.Error('what', type='other', location=['a', 'b']))
    str(errors.Error('what'))
    (errors.RecoverableError('x').recovery_action, errors.Error().type)
"""


def P() -> list[Any]:
    """New parameters."""
    return [torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0])), torch.nn.Parameter(torch.zeros(2))]


def description(kind: Any, **named: Any) -> str:
    """What the executor knows of an optimiser."""
    spec = optimiser_description(kind(P(), **named))
    numbers = {**vars(spec), "groups": [group.values for group in spec.groups]}
    return "; ".join(f"{name}={sorted(v) if isinstance(v, frozenset) else v}" for name, v in numbers.items())


def constant(optimizer: Any) -> dict[str, bool]:
    """Which numbers cannot change."""
    names = ("lr", "betas", "eps", "weight_decay", "loss_scaling")
    return {name: optimizer.variable_attrs.isConstant(name) for name in names if name in optimizer.defaults}


def stepped(kind: Any, **named: Any) -> Any:
    """Parameters and state after two native steps."""
    parameters = P()
    optimizer = kind(parameters, **named)
    for number in (1.0, -0.5):
        for parameter in parameters:
            parameter.grad = torch.linspace(-1, number, parameter.numel())
        optimizer.step()
    return [parameters, optimizer.state_dict()["state"]]


def places(strategy: Any, uses: str, ipu: int | None = None) -> Any:
    """Where a strategy puts blocks."""
    resolver = strategy.resolver()
    return [tuple(resolver.stage_of(block, ipu)) for block in uses]


def placed(strategy: Any, uses: str, **named: Any) -> Any:
    """The stages of blocks in the order of a program."""
    return str(partition.partition(strategy, [(use, None) for use in uses], **named))


def net(change: Any = lambda module: None) -> Any:
    """A module with another one within."""
    nn = torch.nn
    module = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    change(module)
    return module


def removed(module: Any) -> Any:
    """A module without blocks."""
    poptorch.removeBlocks(module)
    return module


def level(name: Any) -> int:
    """The logger's level."""
    poptorch.setLogLevel(name)
    return int(poptorch.logger.level)


def deleted(options: Any, name: str) -> Any:
    """Options without one."""
    options.deleteIfExists(name)
    return options


def file(*lines: str) -> Any:
    """What options of a file change."""
    options, path = poptorch.Options(), Path("options")
    before = options.toDict()
    path.write_text("\n".join(lines), encoding="utf-8")
    options.loadFromFile(path)
    found = options.toDict() | {"strategy": options.execution_strategy}
    return {name: value for name, value in found.items() if before.get(name) != value}


def o(**named: Any) -> Any:
    """Options."""
    options = poptorch.Options()
    for name, value in named.items():
        getattr(options, name)(value)
    return options


def part(process: int, count: int) -> Any:
    """Options of one of several processes."""
    options = poptorch.Options()
    options.Distributed.configureProcessId(process, count)
    return options


def loader(count: int, options: Any = None, **named: Any) -> Any:
    """A loader of whole numbers."""
    dataset = torch.utils.data.TensorDataset(torch.arange(count))
    return poptorch.DataLoader(poptorch.Options() if options is None else options, dataset, **named)


NAMES = {
    **globals(),
    "nn": torch.nn,
    "pipe": poptorch.PipelinedExecution,
    "serial": poptorch.SerialPhasedExecution,
    "parallel": poptorch.ParallelPhasedExecution,
    "accessor": poptorch.AsynchronousDataAccessor,
    "rebatched": poptorch.DataLoaderMode.AsyncRebatched,
    "asynchronous": poptorch.DataLoaderMode.Async,
    "consecutive": poptorch.CommGroupType.Consecutive,
}


def shown(value: Any) -> str:
    """Numbers of tensors; no addresses."""
    if isinstance(value, torch.Tensor):
        return str([round(float(v), 5) for v in value.detach().flatten()]) + f" {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(each)}" for key, each in value.items()) + "}"
    return re.sub(r" (object )?at 0x\w+", "", repr(value))


@pytest.fixture(autouse=True)
def _quiet_again() -> Any:
    before = poptorch.logger.level
    yield
    poptorch.logger.setLevel(before)


SUBJECTS = by_subject(line.strip() for line in CALLS.strip().splitlines())


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_calls_give(
    subject: str,
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for call in SUBJECTS[subject]:
        poptorch.setLogLevel("WARN")
        caplog.clear()
        with redirect_stdout(io.StringIO()) as printed:
            text = outcome(lambda call=call: eval(call, NAMES), shown)
        told = [f"{record.levelname}: {record.getMessage()}" for record in caplog.records]
        found.append((call, "", " | ".join([text, *filter(None, [printed.getvalue()]), *told])))
    golden([" ".join(each) for each in found])
