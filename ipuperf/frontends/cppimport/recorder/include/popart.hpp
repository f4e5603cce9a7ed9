// Names of PopART for ops of a program's own: their shapes, their gradients and what they grow.
#pragma once
#include "popops.hpp"

namespace poprithms { namespace memory { namespace inplace { struct Proposal {}; } } }

namespace popart {
using ipuperf::Value;
using InIndex = int;
using OutIndex = int;
using OpId = std::int64_t;
using OpVersion = unsigned;
using OpType = std::string;
using OpDomain = std::string;
using TensorId = std::string;
using Shape = std::vector<std::int64_t>;
using Rank = int;
using ReplicatedTensorShardingIndices = std::set<std::pair<std::set<InIndex>, std::set<OutIndex>>>;
using VGraphId = std::int64_t;
using VGraphIdAndTileSet = std::pair<VGraphId, int>;

struct error : std::runtime_error {
  template <typename... A> explicit error(const std::string &form, const A &...values)
      : std::runtime_error(ipuperf::formatted(form, values...)) {}
};
using internal_error = error;
namespace logging {
#define IPUPERF_LEVELS                                                                                                 \
  template <typename... A> void trace(A &&...) {}                                                                      \
  template <typename... A> void debug(A &&...) {}                                                                      \
  template <typename... A> void info(A &&...) {}                                                                       \
  template <typename... A> void warn(A &&...) {}                                                                       \
  template <typename... A> void err(A &&...) {}
IPUPERF_LEVELS
template <typename... A> std::string format(const std::string &form, const A &...values) { return ipuperf::formatted(form, values...); }
#define IPUPERF_LOG(name) namespace name { IPUPERF_LEVELS }
IPUPERF_LOG(session) IPUPERF_LOG(ir) IPUPERF_LOG(devicex) IPUPERF_LOG(transform) IPUPERF_LOG(pattern) IPUPERF_LOG(op)
IPUPERF_LOG(opx) IPUPERF_LOG(ces) IPUPERF_LOG(python) IPUPERF_LOG(none)
}  // namespace logging
namespace Domain {
inline const char *const ai_onnx = "ai.onnx", *const ai_onnx_ml = "ai.onnx.ml", *const ai_graphcore = "ai.graphcore";
}

enum class DataType { UINT8, INT8, UINT16, INT16, INT32, INT64, UINT32, UINT64, BOOL, FLOAT, FLOAT16, BFLOAT16, DOUBLE, COMPLEX64, COMPLEX128, STRING, UNDEFINED };
inline const std::vector<std::string> &typeNames() {
  static const std::vector<std::string> names{"uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64", "bool", "float32", "float16"};
  return names;
}
inline DataType typeOf(const std::string &name) {
  for (std::size_t i = 0; i < typeNames().size(); ++i)
    if (typeNames()[i] == name) return DataType(i);
  throw error("type {} is not recorded", name);
}
class TensorInfo {
  DataType kind = DataType::UNDEFINED;
  Shape sizes;

public:
  TensorInfo() = default;
  TensorInfo(DataType type, const Shape &shape) : kind(type), sizes(shape) {}
  TensorInfo(const std::string &type, const Shape &shape) : sizes(shape) { kind = type == "FLOAT" ? DataType::FLOAT : type == "FLOAT16" ? DataType::FLOAT16 : type == "INT32" ? DataType::INT32 : type == "BOOL" ? DataType::BOOL : typeOf(type); }
  void set(DataType type, const Shape &shape) { *this = {type, shape}; }
  void set(DataType type) { kind = type; }
  DataType dataType() const { return kind; }
  const Shape &shape() const { return sizes; }
  std::vector<std::size_t> shape_szt() const { return {sizes.begin(), sizes.end()}; }
  Rank rank() const { return Rank(sizes.size()); }
  std::int64_t dim(int index) const { return sizes.at(std::size_t(index)); }
  std::int64_t nelms() const {
    std::int64_t count = 1;
    for (auto size : sizes) count *= size;
    return count;
  }
  std::string name() const { return std::size_t(kind) < typeNames().size() ? typeNames()[std::size_t(kind)] : "undefined"; }
  std::string data_type() const { return name(); }
  bool isSet() const { return kind != DataType::UNDEFINED; }
  bool operator==(const TensorInfo &other) const { return kind == other.kind && sizes == other.sizes; }
  bool operator!=(const TensorInfo &other) const { return !(*this == other); }
  static TensorInfo of(const Value &spec) { return {typeOf(spec[1].text), spec[0].as<Shape>()}; }
  std::string json() const { return ipuperf::listed({ipuperf::json(sizes), ipuperf::json(name())}); }
};
inline std::ostream &operator<<(std::ostream &out, const TensorInfo &info) { return out << info.name() << ipuperf::json(info.shape()); }
inline std::ostream &operator<<(std::ostream &out, DataType type) { return out << TensorInfo(type, {}).name(); }
template <typename T> std::ostream &operator<<(std::ostream &out, const std::vector<T> &values) {
  for (auto &value : values) out << value << ' ';
  return out;
}
template <typename X, typename Y> std::vector<Y> vXtoY(const std::vector<X> &values) { return {values.begin(), values.end()}; }
inline Shape npOut(const Shape &first, const Shape &second) {
  auto shape = poputil::broadcastShape({first.begin(), first.end()}, {second.begin(), second.end()});
  return {shape.begin(), shape.end()};
}
inline TensorInfo npOut(const TensorInfo &first, const TensorInfo &second, const std::string & = "") { return {first.dataType(), npOut(first.shape(), second.shape())}; }

struct NumInputs {
  int min = 0, max = 0;
  NumInputs() = default;
  NumInputs(int count) : min(count), max(count) {}
  NumInputs(int least, int most) : min(least), max(most) {}
};
struct OperatorIdentifier {
  OpDomain domain;
  OpType type;
  OpVersion version;
  NumInputs numInputs;
  int numOutputs;
  OperatorIdentifier(const OpDomain &where, const OpType &name, OpVersion number, NumInputs inputs = {}, int outputs = 0)
      : domain(where), type(name), version(number), numInputs(inputs), numOutputs(outputs) {}
  bool operator==(const OperatorIdentifier &o) const { return domain == o.domain && type == o.type && version == o.version; }
  bool operator!=(const OperatorIdentifier &o) const { return !(*this == o); }
  bool operator<(const OperatorIdentifier &o) const { return std::tie(domain, type, version) < std::tie(o.domain, o.type, o.version); }
};
inline std::ostream &operator<<(std::ostream &out, const OperatorIdentifier &id) { return out << id.domain << '.' << id.type << ':' << id.version; }

class Attributes {
public:
  using Int = std::int64_t;
  using Ints = std::vector<std::int64_t>;
  using Float = float;
  using Floats = std::vector<float>;
  using String = std::string;
  using Strings = std::vector<std::string>;
  std::map<std::string, Value> values;
  bool hasAttribute(const std::string &name) const { return values.count(name) > 0; }
  template <typename T> T getAttribute(const std::string &name) const {
    auto place = values.find(name);
    if (place == values.end()) throw error("attribute {} is missing", name);
    try {
      return place->second.as<T>();
    } catch (const std::invalid_argument &problem) {
      throw error("attribute {}: {}", name, problem.what());
    }
  }
  template <typename T> T getAttribute(const std::string &name, const T &otherwise) const {
    return hasAttribute(name) ? getAttribute<T>(name) : otherwise;
  }
  template <typename T> void set(T &value, const std::string &name) const {
    if (hasAttribute(name)) value = getAttribute<T>(name);
  }
};
using OpSerialiserAttributes = Attributes;
struct OpSerialiserBase {
  template <typename... A> void appendAttribute(A &&...) {}
};

namespace view {
struct Region {
  static Region getFull(const Shape &) { return {}; }
  static Region getEmpty(Rank) { return {}; }
  template <typename... A> Region(A &&...) {}
  Region(const Region &) = default;
  Region &operator=(const Region &) = default;
};
struct Regions : std::vector<Region> {
  using std::vector<Region>::vector;
};
using RegMap = std::function<Regions(const Region &)>;
enum class AccessType { None, Read, Write, ReadWrite };
}  // namespace view
struct AliasModel {
  template <typename... A> void insertUnaryModifier0(A &&...) {}
  template <typename... A> void insertUnaryModifier(A &&...) {}
  template <typename... A> void insertBinaryModifier(A &&...) {}
  template <typename... A> void insertOp(A &&...) {}
};
enum class GradOpInType { In, Out, GradOut, IN = In, OUT = Out, GRADOUT = GradOut };
struct GradInOutMapper {
  InIndex iGrad;
  int iNonGrad;
  GradOpInType type;
  GradInOutMapper(InIndex grad, int other, GradOpInType kind) : iGrad(grad), iNonGrad(other), type(kind) {}
};
enum class ExecutionContext { Normal, AccumulateOuterFragment, WeightsFromHostFragment, WeightsToHostFragment, OptimizerFromHostFragment, Subgraph };
enum class RecomputeType { Undefined, Checkpoint, Recompute, Recomputed };
enum class ReductionType { Mean, Sum, NoReduction };
enum class CollectiveOperator { Add, Mean, Mul, Min, Max, LogicalAnd, LogicalOr, SquareAdd, Local };
enum class OptimizerReductionType { None, GradReduce, AcclReduce, AccumReduce };

class Op;
struct Tensor {
  TensorId id;
  TensorInfo info;
  bool hasProducer() const { return false; }
};
class TensorIndexMap {
public:
  std::map<int, std::shared_ptr<Tensor>> tensors_;
  int n() const { return int(tensors_.size()); }
  bool hasIndex(int index) const { return tensors_.count(index) > 0; }
  Tensor *tensor(int index) const {
    if (!hasIndex(index)) throw error("there is no tensor at index {}", index);
    return tensors_.at(index).get();
  }
  TensorId id(int index) const { return tensor(index)->id; }
};
struct SessionOptions {
  bool enableFloatingPointChecks = false, enableReplicatedGraphs = false, enablePipelining = false, enableGradientAccumulation = false;
  std::int64_t replicatedGraphCount = 1, globalReplicationFactor = 1, accumulationFactor = 1;
};
struct Ir {
  SessionOptions options;
  const SessionOptions &getSessionOptions() const { return options; }
};
class Graph {
public:
  Ir ir;
  std::vector<std::unique_ptr<Op>> ops;
  std::map<TensorId, TensorInfo> known;
  Ir &getIr() { return ir; }
  template <typename T, typename... A> T *createConnectedOp(const std::map<InIndex, TensorId> &in, const std::map<OutIndex, TensorId> &out, A &&...arguments);
};

class Op {
public:
  struct Settings {
    std::reference_wrapper<Graph> graph;
    std::string name;
    ExecutionContext executionContext = ExecutionContext::Normal;
    RecomputeType recomputeType = RecomputeType::Undefined;
    bool schedulePriority = false;
    Settings(Graph &where, const std::string &text) : graph(where), name(text) {}
    Settings copy(const std::string &text) const {
      Settings other = *this;
      other.name = text;
      return other;
    }
  };
  std::unique_ptr<TensorIndexMap> input = std::make_unique<TensorIndexMap>(), output = std::make_unique<TensorIndexMap>();
  OpId id = 0;
  OperatorIdentifier opid;
  Settings settings;

  Op(const OperatorIdentifier &identifier, const Settings &how) : opid(identifier), settings(how) {}
  Op(const Op &other) : opid(other.opid), settings(other.settings) {}
  Op &operator=(const Op &) = delete;
  virtual ~Op() = default;

  virtual std::unique_ptr<Op> clone() const = 0;
  virtual void setup() { throw error("{} has no setup()", opid); }
  virtual std::vector<std::unique_ptr<Op>> getGradOps() { return {}; }
  virtual const std::vector<GradInOutMapper> &gradInputInfo() const { throw error("{} has no gradInputInfo()", opid); }
  virtual const std::map<int, int> &gradOutToNonGradIn() const { throw error("{} has no gradOutToNonGradIn()", opid); }
  virtual int getNonGradInIndex(int index) const { return gradOutToNonGradIn().at(index); }
  virtual void appendAttributes(OpSerialiserBase &) const {}
  virtual void appendOutlineAttributes(OpSerialiserBase &) const {}
  virtual void appendMore(OpSerialiserBase &) const {}
  virtual float getSubgraphValue() const { return 0; }
  float getHighSubgraphValue() const { return 1000; }
  float getLowSubgraphValue() const { return 1; }
  virtual bool requiresRandomSeed() const { return false; }
  virtual InIndex getSeedInIndex() const { return -1; }
  virtual bool hasSideEffect() const { return false; }
  virtual bool canRecompute() const { return true; }
  virtual bool isOutlineable() const { return true; }
  virtual bool isNorm() const { return false; }
  virtual bool isOptimizerOp() const { return false; }
  virtual bool canShard() const { return false; }
  virtual bool canBeReplacedByIdentity() const { return false; }
  virtual std::string name() const { return settings.name; }
  virtual std::string debugName() const { return opid.type; }
  virtual std::set<InIndex> optionalInputs() const { return {}; }
  virtual std::vector<std::tuple<OperatorIdentifier, float>> inplacePriorityDefault() const { return {}; }
  virtual std::unique_ptr<Op> getInplaceVariant(const OperatorIdentifier &which) const { throw error("{} has no variant {}", opid, which); }
  virtual view::Regions modifies(InIndex) const { return {}; }
  virtual view::Regions uses(InIndex) const { return {}; }
  virtual view::Regions aliases(InIndex, OutIndex) const { return {}; }
  virtual view::RegMap fwdRegMap(InIndex, OutIndex) const { return {}; }
  virtual view::RegMap bwdRegMap(InIndex, OutIndex) const { return {}; }
  virtual void growAliasModel(AliasModel &) const {}
  virtual poprithms::memory::inplace::Proposal mapInplaceProposal(const AliasModel &, OperatorIdentifier) const { return {}; }
  poprithms::memory::inplace::Proposal mapInplaceProposalGate0(const AliasModel &, OperatorIdentifier) const { return {}; }
  virtual ReplicatedTensorShardingIndices getReplicatedTensorShardingIndices() const { return {}; }
  virtual int getInBatchAxis(InIndex) const { return 0; }
  virtual int getOutBatchAxis(OutIndex) const { return 0; }
  virtual ReductionType getShardReductionType(OutIndex) const { return ReductionType::NoReduction; }

  std::string str() const { return opid.type; }
  const Settings &getSettings() const { return settings; }
  Settings &getSettings() { return settings; }
  Graph &getGraph() const { return settings.graph; }
  Ir &getIr() const { return getGraph().getIr(); }
  TensorInfo &inInfo(InIndex index) { return input->tensor(index)->info; }
  const TensorInfo &inInfo(InIndex index) const { return input->tensor(index)->info; }
  // Outputs come into being where setup() speaks of them.
  TensorInfo &outInfo(OutIndex index) {
    if (!output->hasIndex(index)) connectOut(index, "out" + std::to_string(index));
    return output->tensor(index)->info;
  }
  const TensorInfo &outInfo(OutIndex index) const { return output->tensor(index)->info; }
  const Shape &inShape(InIndex index) const { return inInfo(index).shape(); }
  const Shape &outShape(OutIndex index) const { return outInfo(index).shape(); }
  Rank inRank(InIndex index) const { return inInfo(index).rank(); }
  Rank outRank(OutIndex index) const { return outInfo(index).rank(); }
  Tensor *inTensor(InIndex index) { return input->tensor(index); }
  const Tensor *inTensor(InIndex index) const { return input->tensor(index); }
  Tensor *outTensor(OutIndex index) { return output->tensor(index); }
  const Tensor *outTensor(OutIndex index) const { return output->tensor(index); }
  TensorId inId(InIndex index) const { return input->id(index); }
  TensorId outId(OutIndex index) const { return output->id(index); }
  bool hasInput(InIndex index) const { return input->hasIndex(index); }
  bool hasOutput(OutIndex index) const { return output->hasIndex(index); }
  template <typename T> bool isConvertibleTo() const { return dynamic_cast<const T *>(this) != nullptr; }
  void connectIn(InIndex index, const TensorId &name, const TensorInfo &info) {
    input->tensors_[index] = std::make_shared<Tensor>(Tensor{name, info});
  }
  void connectOut(OutIndex index, const TensorId &name) {
    output->tensors_[index] = std::make_shared<Tensor>(Tensor{name, {}});
  }
  void connectInTensor(InIndex index, const TensorId &name) { connectIn(index, name, getGraph().known.at(name)); }
  void connectOutTensor(OutIndex index, const TensorId &name) { connectOut(index, name); }
  void createAndConnectOutTensor(OutIndex index, const TensorId &name) { connectOut(index, name); }
  void disconnectAllInputs() { input->tensors_.clear(); }
  void disconnectAllOutputs() { output->tensors_.clear(); }
};

template <typename T, typename... A>
T *Graph::createConnectedOp(const std::map<InIndex, TensorId> &in, const std::map<OutIndex, TensorId> &out, A &&...arguments) {
  auto made = std::make_unique<T>(std::forward<A>(arguments)...);
  for (auto &pair : in) made->connectInTensor(pair.first, pair.second);
  for (auto &pair : out) made->connectOut(pair.first, pair.second);
  auto *op = made.get();
  ops.push_back(std::move(made));
  op->setup();
  return op;
}

// What Python asks for: an op, its values, and the tensors that it reads.
struct Request {
  Graph graph;
  std::vector<Value> values;
  std::vector<std::map<int, std::string>> maps;
  std::size_t map = 0;
  std::map<int, std::string> nextMap() { return maps.at(map++); }
};
struct Binding {
  // The names of the op's own values.
  std::vector<std::string> arguments;
  std::function<Op *(Request &)> make;
};
inline std::map<std::string, Binding> &bindings() {
  static std::map<std::string, Binding> all;
  return all;
}
struct OpCreatorInfo {
  const OperatorIdentifier &opid;
  const Op::Settings &settings;
  const Attributes &attributes;
  std::vector<TensorId> inputs, outputs;
  const std::vector<TensorId> &getInputIds() const { return inputs; }
  const std::vector<TensorId> &getOutputIds() const { return outputs; }
  bool hasInputTensor(int index) const { return index < int(inputs.size()); }
};
using MakeOp = std::function<std::unique_ptr<Op>(const OpCreatorInfo &)>;
inline std::map<OperatorIdentifier, MakeOp> &creators() {
  static std::map<OperatorIdentifier, MakeOp> all;
  return all;
}

class OpDefinition {
public:
  using DataTypes = std::vector<DataType>;
  struct Input {
    Input(const std::string &, const DataTypes &, bool = false) {}
  };
  struct Attribute {
    Attribute(const std::string &) {}
  };
  using Output = Input;
  using Inputs = std::vector<Input>;
  using Outputs = std::vector<Output>;
  using Attributes = std::map<std::string, Attribute>;
  OpDefinition() = default;
  OpDefinition(const Inputs &, const Outputs &, const Attributes &) {}
};
class OpDefinitions : public std::map<OperatorIdentifier, OpDefinition> {
public:
  using std::map<OperatorIdentifier, OpDefinition>::map;
};
template <typename T> class OpCreator {
public:
  OpCreator(const OpDefinitions &definitions, bool = true) {
    add(definitions, [](const OpCreatorInfo &info) -> std::unique_ptr<Op> {
      if constexpr (std::is_constructible<T, const OperatorIdentifier &, const Op::Settings &>::value)
        return std::make_unique<T>(info.opid, info.settings);
      else
        throw error("{}: its creator has no function", info.opid);
    });
  }
  template <typename F, std::enable_if_t<std::is_invocable<F, const OpCreatorInfo &>::value, int> = 0>
  OpCreator(const OpDefinitions &definitions, F make, bool = true) {
    add(definitions, [make](const OpCreatorInfo &info) -> std::unique_ptr<Op> { return make(info); });
  }
  template <typename F, std::enable_if_t<std::is_invocable<F, const OperatorIdentifier &, const Op::Settings &, const Attributes &>::value, int> = 0>
  OpCreator(const OpDefinitions &definitions, F make, bool = true) {
    add(definitions, [make](const OpCreatorInfo &info) -> std::unique_ptr<Op> { return make(info.opid, info.settings, info.attributes); });
  }

private:
  static void add(const OpDefinitions &definitions, const MakeOp &make) {
    for (auto &pair : definitions) creators()[pair.first] = make;
  }
};
struct RegisterShapeInferenceFunction {
  template <typename... A> RegisterShapeInferenceFunction(A &&...) {}
};
class PreAliasPattern {
public:
  virtual ~PreAliasPattern() = default;
};
template <typename T> struct PatternCreator {
  template <typename... A> PatternCreator(A &&...) {}
};

// Ops whose gradient reads the gradient of the result, or that and the operand.
class ElementWiseUnaryOp : public Op {
public:
  using Op::Op;
  static InIndex getInIndex() { return 0; }
  static OutIndex getOutIndex() { return 0; }
  void setup() override { outInfo(0) = inInfo(0); }
};
class ElementWiseNonLinearUnaryGradOp : public Op {
public:
  ElementWiseNonLinearUnaryGradOp(const OperatorIdentifier &identifier, const Op &forward) : Op(identifier, forward.getSettings()) {}
  static InIndex getGradInIndex() { return 0; }
  static InIndex getFwdArgInIndex() { return 1; }
  static OutIndex getOutIndex() { return 0; }
  void setup() override { outInfo(0) = inInfo(1); }
  const std::vector<GradInOutMapper> &gradInputInfo() const override {
    static const std::vector<GradInOutMapper> info{{0, 0, GradOpInType::GradOut}, {1, 0, GradOpInType::In}};
    return info;
  }
  const std::map<int, int> &gradOutToNonGradIn() const override {
    static const std::map<int, int> info{{0, 0}};
    return info;
  }
};
class IdentityGradOp : public Op {
public:
  IdentityGradOp(const Settings &how) : Op({Domain::ai_graphcore, "IdentityGrad", 1}, how) {}
  IdentityGradOp(const Op &forward) : IdentityGradOp(forward.getSettings()) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<IdentityGradOp>(*this); }
  void setup() override { outInfo(0) = inInfo(0); }
  const std::vector<GradInOutMapper> &gradInputInfo() const override {
    static const std::vector<GradInOutMapper> info{{0, 0, GradOpInType::GradOut}};
    return info;
  }
  const std::map<int, int> &gradOutToNonGradIn() const override {
    static const std::map<int, int> info{{0, 0}};
    return info;
  }
};

namespace popx {
inline poplar::Type popType(const TensorInfo &info) { return poplar::typeNamed(info.name()); }
inline poplar::Type popType(DataType type) { return popType(TensorInfo(type, {})); }
struct IrLowering {
  poplin::PlanningCache cache;
  poplin::PlanningCache *getMatMulCache() { return &cache; }
};
struct Devicex {
  IrLowering lowered;
  poplin::PlanningCache matmulCache;
  IrLowering &lowering() { return lowered; }
};
enum class InputCreatorType { CanCreate, CanUnwind, CanCreateOrUnwind, Deadend, CanDelegate, CanDelegateOrUnwind, CANCREATE = CanCreate, CANUNWIND = CanUnwind, DEADEND = Deadend };
class Opx {
  mutable poplar::Graph poplar_graph;

public:
  Op *op_p;
  mutable std::map<TensorId, poplar::Tensor> tensors;
  double inputCreatorPriority = 0;

  Opx(Op *op, Devicex *device) : op_p(op), dv_p(device) {}
  virtual ~Opx() = default;
  virtual void grow(poplar::program::Sequence &) const { throw error("{} has no grow()", op_p->opid); }
  virtual InputCreatorType getInputCreatorType(InIndex) const { return InputCreatorType::Deadend; }
  virtual poplar::Tensor createInput(InIndex, const poplar::DebugNameAndId &) const { throw error("no createInput()"); }
  virtual poplar::Tensor createInputTensor(InIndex, const poplar::DebugNameAndId &) const { throw error("no createInputTensor()"); }
  virtual bool createsEquiv(int, const Opx *, int) const { return false; }
  virtual std::set<TensorId> mustExistBeforeCreate(int) const { return {}; }
  virtual poplar::Tensor unwindTensorLayout(poplar::Tensor tensor, InIndex, OutIndex) const { return tensor; }
  virtual view::RegMap unwindRegion(InIndex, OutIndex) const { return {}; }
  virtual bool canUnwind(InIndex, OutIndex) const { return false; }
  virtual bool outputCreatedExternally(OutIndex) const { return false; }
  poplar::Graph &graph() const { return poplar_graph; }
  poplar::Graph &srcGraph(InIndex) const { return poplar_graph; }
  poplar::Graph &dstGraph(OutIndex) const { return poplar_graph; }
  TensorId inId(InIndex index) const { return op_p->inId(index); }
  TensorId outId(OutIndex index) const { return op_p->outId(index); }
  const TensorInfo &inInfo(InIndex index) const { return static_cast<const Op *>(op_p)->inInfo(index); }
  const TensorInfo &outInfo(OutIndex index) const { return static_cast<const Op *>(op_p)->outInfo(index); }
  const Shape &inShape(InIndex index) const { return op_p->inShape(index); }
  const Shape &outShape(OutIndex index) const { return op_p->outShape(index); }
  Tensor *inTensor(InIndex index) const { return op_p->inTensor(index); }
  Tensor *outTensor(OutIndex index) const { return op_p->outTensor(index); }
  bool hasInput(InIndex index) const { return op_p->hasInput(index); }
  bool hasOutput(OutIndex index) const { return op_p->hasOutput(index); }
  const poplar::Tensor &get(const TensorId &name) const { return tensors.at(name); }
  const poplar::Tensor &getView(const TensorId &name) const { return tensors.at(name); }
  void insert(const TensorId &name, const poplar::Tensor &tensor) const { tensors[name] = tensor; }
  const poplar::Tensor &getInTensor(InIndex index) const { return tensors.at(inId(index)); }
  const poplar::Tensor &getInView(InIndex index) const { return getInTensor(index); }
  const poplar::Tensor &getOutTensor(OutIndex index) const { return tensors.at(outId(index)); }
  void setOutTensor(OutIndex index, const poplar::Tensor &tensor) const { tensors[outId(index)] = tensor; }
  poplar::Tensor cloneNcopy(poplar::program::Sequence &prog, const poplar::Tensor &tensor, const std::string & = "") const {
    return poputil::duplicate(poplar_graph, tensor, prog);
  }
  poplar::Tensor cloneNcopy(poplar::program::Sequence &prog, const TensorId &name) const { return cloneNcopy(prog, get(name)); }
  poplar::Tensor broadcast(const Shape &shape, const poplar::Tensor &tensor) const { return poputil::broadcastTo(tensor, {shape.begin(), shape.end()}); }
  poplar::Tensor broadcast(const Shape &shape, const TensorId &name) const { return broadcast(shape, get(name)); }
  poplar::Tensor getConst(const poplar::Type &type, const std::vector<std::size_t> &shape, double value, const std::string & = "") const {
    return poplar_graph.addConstant(type, shape, value);
  }
  poplar::Tensor getScalarVariable(const poplar::Type &type, const std::string & = "") const { return poplar_graph.addVariable(type, {}); }
  template <typename... A> poplar::DebugContext debugContext(A &&...) const { return {}; }
  template <typename... A> poplar::DebugContext debugPrefix(A &&...) const { return {}; }
  poplar::DebugNameAndId getDebugNameAndId(const std::string &name = "") const { return name; }
  template <typename T> T &getOp() const {
    auto *op = dynamic_cast<T *>(op_p);
    if (!op) throw error("{} is not an op of the class that its Opx asks for", op_p->opid);
    return *op;
  }
  template <typename T> void verifyOp(Op *op, const OperatorIdentifier &which) const {
    if (op->opid.domain != which.domain || op->opid.type != which.type) throw error("an Opx of {} was made for {}", which, op->opid);
  }
  template <typename T> void verifyOp(Op *op, const std::vector<OperatorIdentifier> &which) const {
    for (auto &each : which)
      if (each == op->opid) return;
    throw error("an Opx was made for {}", op->opid);
  }
  template <typename T> void verifyOp(Op *op) const { getOp<T>(); }

protected:
  Devicex *dv_p;
};
using PopOpx = Opx;
using MakeOpx = std::function<std::unique_ptr<Opx>(Op *, Devicex *)>;
inline std::map<OperatorIdentifier, MakeOpx> &opxCreators() {
  static std::map<OperatorIdentifier, MakeOpx> all;
  return all;
}
template <typename T> class OpxCreator {
public:
  OpxCreator(const OperatorIdentifier &which, double = 0) { opxCreators()[which] = made; }
  OpxCreator(const std::vector<OperatorIdentifier> &which, double = 0) {
    for (auto &each : which) opxCreators()[each] = made;
  }

private:
  static std::unique_ptr<Opx> made(Op *op, Devicex *device) { return std::make_unique<T>(op, device); }
};
class IdentityGradOpx : public Opx {
public:
  using Opx::Opx;
  void grow(poplar::program::Sequence &prog) const override { setOutTensor(0, cloneNcopy(prog, getInTensor(0))); }
};
}  // namespace popx
}  // namespace popart

using InMapType = std::map<popart::InIndex, popart::TensorId>;
using OutMapType = std::map<popart::OutIndex, popart::TensorId>;
