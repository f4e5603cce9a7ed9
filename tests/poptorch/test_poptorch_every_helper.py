"""Functions that models reach only through a compilation, called by themselves: what each gives or refuses."""

import collections
import dataclasses
import importlib
import json
import logging
import operator  # noqa: F401  # calls use it
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from outcomes import by_subject, outcome
from rows import Golden

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.ir import FLOAT16, FLOAT32  # noqa: E402
from ipuperf.poptorch import enums, log  # noqa: E402
from ipuperf.poptorch.export import codec  # noqa: E402
from ipuperf.poptorch.export import structure as custom_arguments  # noqa: E402
from ipuperf.poptorch.export import substitutes as export_mixed  # noqa: E402
from ipuperf.poptorch.optimisers import replica_groups, update_rules  # noqa: E402
from ipuperf.poptorch.optimisers.classes import LAMB, SGD, Adam, AdamW, RMSprop, optimiser_description  # noqa: E402, F401
from ipuperf.poptorch.optimisers.state import Plain, SgdProducts  # noqa: E402, F401
from ipuperf.poptorch.optimisers.streams import _variable  # noqa: E402
from ipuperf.runtime.run_context import RUN  # noqa: E402

X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
Pair = collections.namedtuple("Pair", "one other")


@dataclasses.dataclass
class Both:
    """Two members."""

    one: Any
    other: Any


class Weight:
    """What a rule asks of a variable."""

    def __init__(self, *shape: int, dtype: Any = FLOAT32) -> None:
        self.shape, self.dtype = shape, dtype


PARAMETERS = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2))]


def rule_of(kind: Any, automatic: bool = False, apart: bool = False, **named: Any) -> Any:
    """A rule and the variables of two parameters; ``groups`` has numbers of the second one."""
    given: Any = PARAMETERS
    if "groups" in named:
        given = [{"params": PARAMETERS[:1]}, {"params": PARAMETERS[1:], **named.pop("groups")}]
    spec = dataclasses.replace(optimiser_description(kind(given, **named)), apart=apart)
    variables = [Weight(3), Weight(2, 2, dtype=FLOAT16)]
    group_of = {variable: n * (len(spec.groups) > 1) for n, variable in enumerate(variables)}
    return update_rules.TorchRule(spec, group_of, 2.0, automatic=automatic), variables


def rule(kind: Any, **named: Any) -> Any:
    """What a rule tells the builder of a pipeline."""
    made, variables = rule_of(kind, **named)
    of_each = [
        {
            "end": made.end_of(variable),
            "state": made.state(variable),
            "combined": made.combined(variable),
            "momentum": kind is SGD and made.has_momentum(variable),
            "sent": list(_variable(made.spec, made.options(variable))),
        }
        for variable in variables
    ]
    return [made.scalars(), of_each, len(made.trained), made.end_of(Weight())]


def renewed(
    kind: Any, before: dict[str, Any], after: dict[str, Any], other: Any = None, automatic: bool = False
) -> Any:
    """The scalars with the numbers of another optimiser."""
    made, _ = rule_of(kind, automatic=automatic, **before)
    return made.scalars_of(rule_of(other or kind, **after)[0].spec)


def both_ways(words: Any, **scalars: float) -> Any:
    """What is shown of scalars, and whether these come back."""
    shown = words.shown(scalars)
    back = words.scalars(shown, scalars)
    return shown, back.keys() == scalars.keys() and np.allclose([*back.values()], [scalars[name] for name in back])


def stored(value: Any) -> Any:
    """A value as JSON, and what comes back, if that is another."""
    tensors: list[Any] = []
    text = json.dumps(codec.encode(value, tensors))
    back = codec.decode(json.loads(text), tensors)
    return text, len(tensors), "" if repr(back) == repr(value) and type(back) is type(value) else back


def kept_hooks() -> Any:
    """Hooks of a layer after its block is removed."""
    layer = torch.nn.ReLU()
    layer.register_forward_pre_hook(len)
    poptorch.BeginBlock(layer, "a")
    before = len(layer._forward_pre_hooks)
    poptorch.removeBlocks(torch.nn.Sequential(layer))
    return before, list(layer._forward_pre_hooks.values())


def one_replica(
    replicas: int, *shape: int, kind: str = "Consecutive", size: int = 2, name: str = "w", mode: int = 0
) -> Any:
    """What a replica sees of a grouped parameter, and that the whole is there again."""
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.arange(float(np.prod(shape))).reshape(shape))
    setting = (getattr(enums.CommGroupType, kind), size, enums.VariableRetrievalMode(mode))
    with replica_groups.one_replica(module, {name: setting}, replicas) as found:
        ((parameter, whole),) = found.items()
        seen = parameter.detach().clone(), tuple(whole.values.shape), str(whole.grouping)
    return *seen, tuple(module.w.shape)


def mixed(name: str, *args: Any, **named: Any) -> Any:
    """The type of the result of a function of PyTorch, and what it made of its operands."""
    result = export_mixed.call_with_one_type(getattr(torch.nn.functional, name), name, args, named)
    return result, [value for value in (*args, *named.values()) if isinstance(value, torch.Tensor) and value.dim() == 1]


def fresh_log(level: str | None) -> Any:
    """The logger as a new process sets it up."""
    handlers, before = log.logger.handlers[:], log.logger.level
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log.logger, "handlers", [])
            patch.delenv("POPTORCH_LOG_LEVEL", raising=False)
            if level is not None:
                patch.setenv("POPTORCH_LOG_LEVEL", level)
            logging.addLevelName(log.TRACE, "gone")
            log._set_up()
            (handler,) = log.logger.handlers
            record = logging.LogRecord("poptorch", log.TRACE, "file", 1, "said %d", (3,), None)
            record.created = 0.0
            text = handler.format(record)
            patch.setattr(logging.getLogger(), "handlers", [])
            alone = handler.filters[0].filter(record)
            patch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
            return log.logger.level, text[text.index("]") :], len(text), alone, handler.filters[0].filter(record)
    finally:
        log.logger.handlers[:] = handlers
        log.logger.setLevel(before)


def parsers() -> Any:
    """Parsers of two classes, registered for one run and for all, in this run and in the next."""

    class Once:
        """Known to one run."""

    class Always(Once):
        """Known to all."""

    class Parser(poptorch.ICustomArgParser):
        """Nothing is asked of it."""

        yieldTensors = reconstruct = print

    def known() -> list[bool]:
        return [custom_arguments.parser_of(value) is not None for value in (Once(), Always(), 3)]

    with RUN.fresh(custom_arguments.CustomArgParsers):
        before = known()
        poptorch.registerCustomArgParser(Once, Parser())
        once = known()
        custom_arguments.register_for_all_runs(Always, Parser())
        both = known()
    try:
        with RUN.fresh(custom_arguments.CustomArgParsers):
            return before, once, both, known()
    finally:
        del custom_arguments._LASTING[Always]


MODES = enums.OutputMode
CALLS = """
    rule(SGD, lr=0.1)
    rule(SGD, lr=0.1, loss_scaling=2.0)
    rule(SGD, lr=0.1, momentum=0.9, dampening=0.25, weight_decay=0.5)
    rule(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.5)
    rule(SGD, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=3.0)
    rule(SGD, lr=0.1, use_combined_accum=True, weight_decay=0.0)
    rule(SGD, lr=0.1, momentum=0.0, velocity_accum_type=torch.half)
    rule(SGD, lr=0.1, apart=True, momentum=0.9)
    rule(SGD, lr=0.1, groups={'lr': 0.5, 'momentum': 0.5})
    rule(SGD, lr=0.1, groups={'lr': 0.5}, apart=True)
    rule(torch.optim.SGD, lr=0.1)
    rule(torch.optim.SGD, lr=0.1, momentum=0.5, dampening=0.5)
    rule(torch.optim.SGD, lr=0.1, momentum=0.5, nesterov=True)
    rule(Adam)
    rule(Adam, lr=0.5, betas=(0.5, 0.25), eps=0.125, weight_decay=0.0625)
    rule(AdamW, lr=0.5, weight_decay=0.01, first_order_momentum_accum_type=torch.half)
    rule(AdamW, bias_correction=False, loss_scaling=3.0)
    rule(torch.optim.AdamW, lr=0.5)
    rule(torch.optim.AdamW, weight_decay=0.0, eps=0.5)
    rule(torch.optim.Adam, weight_decay=0.01)
    rule(LAMB, max_weight_norm=2.0, weight_decay=0.5)
    rule(LAMB, weight_decay=0.0)
    rule(RMSprop)
    rule(RMSprop, lr=0.5, alpha=0.25, eps=0.5, momentum=0.5, centered=True, weight_decay=0.5)
    rule(RMSprop, lr=0.5, use_tf_variant=True, second_order_momentum_accum_type=torch.float32)
    rule(torch.optim.RMSprop, momentum=0.5, alpha=0.5)
    renewed(SGD, {'lr': 0.1}, {'lr': 0.2})
    renewed(SGD, {'lr': 0.1}, {'lr': 0.2, 'momentum': 0.5})
    renewed(SGD, {'lr': 0.1}, {'lr': 0.2, 'weight_decay': 0.5})
    renewed(SGD, {'lr': 0.1, 'momentum': 0.5}, {'lr': 0.2, 'momentum': 0.25})
    renewed(SGD, {'lr': 0.1, 'momentum': 0.5}, {'lr': 0.2, 'momentum': 0.0})
    renewed(SGD, {'lr': 0.1, 'momentum': 0.5}, {'lr': 0.2})
    renewed(SGD, {'lr': 0.1, 'momentum': 0.5}, {'lr': 0.2, 'momentum': 0.5, 'nesterov': True})
    renewed(SGD, {'lr': 0.1, 'momentum': 0.0}, {'lr': 0.1, 'momentum': 0.5})
    renewed(SGD, {'lr': 0.1, 'weight_decay': 0.5}, {'lr': 0.1, 'weight_decay': 0.25})
    renewed(SGD, {'lr': 0.1}, {'lr': 0.1, 'loss_scaling': 2.0})
    renewed(SGD, {'lr': 0.1}, {'lr': 0.1, 'loss_scaling': 2.0}, automatic=True)
    renewed(SGD, {'lr': 0.1, 'loss_scaling': 2.0}, {'lr': 0.1, 'loss_scaling': 4.0})
    renewed(SGD, {'lr': 0.1}, {'lr': 0.1, 'max_grad_norm': 4.0})
    renewed(SGD, {'lr': 0.1}, {'lr': 0.1, 'accum_type': torch.half})
    renewed(SGD, {'lr': 0.1}, {'lr': 0.1, 'groups': {'lr': 0.5}})
    renewed(SGD, {'lr': 0.1, 'groups': {'lr': 0.5}}, {'lr': 0.1, 'groups': {'lr': 0.25}})
    renewed(SGD, {'lr': 0.1, 'apart': True}, {'lr': 0.2, 'apart': True})
    renewed(SGD, {'lr': 0.1, 'momentum': 0.5, 'use_combined_accum': True, 'velocity_scaling': 2.0},
            {'lr': 0.1, 'momentum': 0.5, 'use_combined_accum': True, 'velocity_scaling': 3.0})
    renewed(SGD, {'lr': 0.1}, {}, Adam)
    renewed(AdamW, {'lr': 0.1}, {'lr': 0.1, 'betas': (0.5, 0.5)})
    renewed(AdamW, {'lr': 0.1, 'betas': (0.9, 0.9), 'eps': 0.5}, {'lr': 0.1, 'betas': (0.5, 0.25), 'eps': 0.125})
    renewed(AdamW, {'lr': 0.1}, {'lr': 0.1, 'bias_correction': False})
    renewed(AdamW, {'lr': 0.1, 'weight_decay': 0.0}, {'lr': 0.1, 'weight_decay': 0.5})
    renewed(LAMB, {'lr': 0.1}, {'lr': 0.1, 'max_weight_norm': 2.0})
    renewed(RMSprop, {'lr': 0.1}, {'lr': 0.1, 'centered': True})
    renewed(RMSprop, {'lr': 0.1, 'alpha': 0.5}, {'lr': 0.1, 'alpha': 0.25})
    renewed(torch.optim.SGD, {'lr': 0.1}, {'lr': 0.2})
    both_ways(Plain(), rate=-0.1, undamped=0.75, momentum=0.5, weight_decay=0.25)
    both_ways(SgdProducts(2.0, 3.0, 4.0, 0), rate=-0.1)
    both_ways(SgdProducts(2.0, 3.0, 4.0, 0), rate=-0.1, weight_decay=0.5)
    both_ways(SgdProducts(2.0, 3.0, 4.0, 0), rate=-0.1, undamped=0.75, momentum=0.5)
    both_ways(SgdProducts(2.0, 3.0, 4.0, 5), rate=-0.1, undamped=0.75, momentum=0.5, weight_decay=0.25)
    both_ways(SgdProducts(2.0, 3.0, 4.0, 1), rate=0.0, weight_decay=0.0)
    SgdProducts(1.0, 1.0, 1.0, 0).scalars({'scaledLearningRate0': 0.0, 'weightDecayScaleFactor0': 0.5},
                                          {'weight_decay': 1})
    [export_composites.may_decompose(op) for op in (A.full.default, A.arange.default, A.add.Tensor, A.silu.default)]
    [export_composites.may_decompose(op) for op in (A.dropout.default, A.rand_like.default, operator.getitem)]
    export_composites.stays(torch.ops.aten.full.default)
    [aten.is_view(op) for op in (operator.getitem, len, A.view.default, A.add.Tensor, A.add_.Tensor, A.split.Tensor)]
    [aten.name_of(op) for op in (A.view.default, A.add_.Tensor, torch.ops.ipuperf.identity_loss.default, len)]
    [aten.handler_of(op) is None for op in (A.randint.low, A.median.dim, A.median.default, A.poisson.default)]
    [aten.handler_of(op) is None for op in (torch.ops.ipuperf.identity_loss.default, operator.getitem)]
    [aten.decomposition_of(op) is None for op in (A.silu_backward.default, operator.getitem, A.chunk.default)]
    joined(np.arange(24).reshape(4, 2, 3, 1), (3, 1), MODES.All, 1)
    joined(np.arange(24).reshape(4, 2, 3, 1), (3, 1), MODES.EveryN, 2)
    joined(np.arange(24).reshape(4, 2, 3, 1), (3, 1), MODES.EveryN, 4)
    joined(np.arange(24).reshape(4, 2, 3, 1), (3, 1), MODES.Sum, 1)
    joined(np.arange(6).reshape(1, 2, 3), (3,), MODES.Sum, 1)
    joined(np.arange(6).reshape(1, 2, 3), (3,), MODES.Final, 1)
    joined(np.arange(4).reshape(2, 2), (), MODES.All, 1)
    joined(np.arange(4).reshape(4, 1), (), MODES.Sum, 1)
    latency.Latencies._in_order([(1, 5, 6), (0, 1, 2), (0, 7, 9), (1, 8, 9)])
    latency.Latencies._in_order([])
    calls.first_micro_batch({'a': X, 'b': (torch.tensor(1.0), 3)}, 2)
    [tuple(each.shape) if hasattr(each, 'shape') else each for each in calls.ExecutableInputs.of({'b': X, 'a': 3}).args]
    export_structure.flatten({'b': X, 'a': [Y, (3, None)], 'c': {}})
    export_structure.flatten({'b': X, 'a': Y}, 'in', export_structure.flatten({'a': X, 'b': X})[0])
    export_structure.flatten({'b': X}, like=export_structure.flatten({'a': X, 'b': X})[0])
    export_structure.flatten(Pair(X, Both(Y, 2)))
    export_structure.flatten(Both)
    list(export_structure.fixed_values(export_structure.flatten(Pair(1, Both(Y, [2])))[0]))
    export_structure.rebuild(export_structure.flatten({'b': Pair(X, 1), 'a': Both(Y, (2,))})[0], [10, 20].__getitem__)
    stored((1, [2.5, 'a', None, True]))
    stored({'a': {2, 1}, 3: frozenset([1])})
    stored([torch.float16, torch.strided, torch.contiguous_format, torch.device('cpu')])
    stored((enums.OutputMode.All, FLOAT16, 1 + 2j, operator.getitem, torch.ops.aten.add.Tensor, dict, tuple))
    stored([X, X, Y])
    stored(export_structure.flatten((X, {'a': 1}))[0])
    stored(len)
    stored(Weight(1))
    stored(collections.OrderedDict)
    stored(collections.Counter.fromkeys)
    codec.decode({'~': 'op', 'v': 'mine.add.Tensor'}, [])
    codec.decode({'~': 'torch', 'v': 'nn'}, [])
    codec.decode({'~': 'class', 'v': 'os:system'}, [])
    codec.decode({'~': 'class', 'v': 'no_such_module:Class'}, [])
    codec.decode({'~': 'class', 'v': 'collections:OrderedDict'}, [])
    codec.decode({'~': 'node', 'v': 'a'}, [], {'a': 5})
    codec.decode({'~': 'node', 'v': 'a'}, [])
    codec.decode({'~': 'object', 'v': ['Weight', []]}, [])
    kept_hooks()
    one_replica(4, 2, 3)
    one_replica(4, 2, 3, kind='Orthogonal')
    one_replica(4, 1, 3, kind='All')
    one_replica(4, 4, kind='NoGrouping', size=9, mode=2)
    one_replica(4, 4, size=1, kind='Orthogonal')
    one_replica(4, 2, 3, mode=2)
    one_replica(4, 3)
    one_replica(4)
    one_replica(4, 2, size=3)
    one_replica(4, 2, size=0)
    one_replica(4, 2, name='v')
    replica_groups.setting_of('w', (1, 2))
    replica_groups.setting_of('w', [1, 2, 0])
    replica_groups.setting_of('w', (9, 2, 0))
    replica_groups.setting_of('w', (1, True, 0))
    replica_groups.setting_of('w', (1, 2.0, 0))
    replica_groups.setting_of('w', (1, 2, 9))
    replica_groups.setting_of('w', (1, 2, 0))
    mixed('linear', X.half(), Y)
    mixed('linear', X.half(), Y.half())
    mixed('layer_norm', Y, (3,), torch.ones(3).half())
    mixed('layer_norm', Y.half(), (3,), torch.ones(3))
    mixed('batch_norm', X, torch.zeros(3).half(), torch.ones(3).half(), None, None, True, 0.5)
    mixed('batch_norm', X, torch.zeros(3).half(), torch.ones(3).half(), None, None, False, 0.5)
    mixed('batch_norm', X, running_mean=torch.zeros(3).half(), running_var=torch.ones(3).half(), training=True)
    mixed('batch_norm', X, running_mean=torch.zeros(3).half(), running_var=torch.ones(3))
    export_device.arguments_on(torch.device('cpu'), torch.ones, (2, 'ipu'), {'device': 'ipu:0'})
    export_device.arguments_on(torch.device('cpu'), torch.ones, (2, torch.device('ipu', 0), 'ipu'), {'device': 'cuda'})
    export_device.arguments_on(torch.device('cpu'), torch.Tensor.to, (2, 'ipu:1'), {})
    [export_device._is_ipu(each) for each in ('ipu', 'ipu:3', 'ip', torch.device('ipu'), None, 'cpu', 3)]
    [export_device.attribute_of(each) for each in (torch.Tensor.shape.__get__, torch.relu, torch.Tensor.dim, 3)]
    export_memory.check_memory({'a': X, 'b': X}, ['a'])
    export_memory.check_memory({'a': X, 'b': X.t(), 'c': Y}, ['b'])
    export_memory.check_memory({'a': X, 'b': X.t(), 'c': Y}, ['c'])
    export_memory.check_memory({'a': X[0], 'b': X[1]}, ['a'])
    export_memory.check_memory({'a': X[:1], 'b': X[0]}, ['a'])
    export_memory.check_memory({'a': X[:, ::2], 'b': X[:, 1]}, ['a', 'b'])
    export_memory.check_memory({'a': X[:, 1:], 'b': X[:, :2]}, ['a', 'b'])
    export_memory.check_memory({'a': Y[:1].expand(4, 3)}, ['a'])
    export_memory.check_memory({'a': Y[:1].expand(1, 3)}, ['a'])
    export_memory.overlap_of(torch.nn.Linear(2, 2))
    multi_conv.MultiConv._each('shares', (1,), [1, 2])
    multi_conv.MultiConv._each('shares', (1, 2), [1, 2])
    multi_conv.MultiConv._each('shares', None, [1, 2])
    multi_conv.MultiConv._each('shares', (1, 2, 3), [1, 2])
    [multi_conv._several(each) for each in (1, [1, 2], (3,))]
    optimizer_state.states_of({'ipu_state': None, 'ipu_param': {'a': X}})
    optimizer_state.states_of({'ipu_state': None})
    optimizer_state.states_of({'ipu_state': {1: X}, 'ipu_param': None})
    optimizer_state.states_of({'ipu_state': None, 'ipu_param': {'a': 1}})
    [fresh_log(level) for level in (None, 'debug', '0', 'OFF')]
    fresh_log('loud')
    parsers()
    poptorch.profiling.Channel('c').instrument(X, 'sum', 'nosuch')
"""


MODULES = {
    "aten": "aten.table",
    "calls": "executor.program",
    "executor_data": "executor.data",
    "export_composites": "export.composites",
    "export_device": "export.surroundings",
    "export_memory": "export.module_state",
    "export_structure": "export.structure",
    "latency": "executor.latency",
    "multi_conv": "multi_conv",
    "optimizer_state": "optimisers.state",
    "optimizer_streams": "optimisers.streams",
}
NAMES = {**globals(), **{name: importlib.import_module(f"ipuperf.poptorch.{path}") for name, path in MODULES.items()}}
NAMES |= {"A": torch.ops.aten, "joined": NAMES["executor_data"].CallData.joined}


def shown(value: Any) -> str:
    """Numbers and their types; no addresses."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{[round(float(v), 5) for v in value.reshape(-1).tolist()]} {tuple(value.shape)} {kind}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(each)}" for key, each in value.items()) + "}"
    return repr(value)


def calls_of(text: str) -> Iterator[str]:
    """A call on each line, or on several until its brackets are closed."""
    call = ""
    for line in text.strip().splitlines():
        call = f"{call} {line.strip()}".strip()
        if call.count("(") == call.count(")"):
            yield call
            call = ""


SUBJECTS = by_subject(calls_of(CALLS))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_calls_give(subject: str, golden: Golden) -> None:
    found = []
    for call in SUBJECTS[subject]:
        text = outcome(lambda call=call: eval(call, NAMES), shown)
        found.append((call, "", re.sub(r"[\w.]*test_poptorch_every_helper\.|at 0x\w+", "", text)))
    golden([" ".join(each) for each in found])


def test_cycles_are_counted_once_a_model_has_run() -> None:
    options = poptorch.Options().logCycleCount(True).showCompilationProgressBar(False)
    model = poptorch.inferenceModel(torch.nn.ReLU(), options)
    for prepare in (lambda: None, lambda: model.compile(X)):
        prepare()
        with pytest.raises(poptorch.Error, match="run the model at least once"):
            model.cycleCount()
    model(X)
    assert model.cycleCount() > 0
