// Names of Poplar that record: tensors are views by number, programs are lists of steps in JSON.
#pragma once
#include "values.hpp"

namespace poplar {

struct poplar_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename T> class ArrayRef {
  const T *first = nullptr;
  std::size_t count = 0;

public:
  ArrayRef() = default;
  ArrayRef(const T *data, std::size_t size) : first(data), count(size) {}
  ArrayRef(const std::vector<T> &values) : first(values.data()), count(values.size()) {}
  ArrayRef(const std::initializer_list<T> &values) : first(values.begin()), count(values.size()) {}
  template <std::size_t N> ArrayRef(const std::array<T, N> &values) : first(values.data()), count(N) {}
  const T *begin() const { return first; }
  const T *end() const { return first + count; }
  const T *data() const { return first; }
  std::size_t size() const { return count; }
  bool empty() const { return !count; }
  const T &operator[](std::size_t index) const { return first[index]; }
  std::vector<T> cloneAsVector() const { return {begin(), end()}; }
  operator std::vector<T>() const { return {begin(), end()}; }
};
using StringRef = std::string;

struct SourceLocation {
  static SourceLocation Current() { return {}; }
};
struct DebugContext;
struct DebugInfo {
  DebugInfo() = default;
  DebugInfo(const DebugContext &, const std::string & = "") {}
  template <typename T> bool setValue(const std::string &, const T &) { return true; }
};
struct DebugNameAndId {
  std::string name;
  DebugNameAndId(const std::string &text = "") : name(text) {}
  DebugNameAndId(const char *text) : name(text) {}
  DebugNameAndId(const DebugInfo &, const std::string &text = "") : name(text) {}
  DebugNameAndId(const DebugNameAndId &, const std::string &text) : name(text) {}
  std::string getPathName() const { return name; }
};
struct DebugContext {
  std::string name;
  DebugContext() = default;
  DebugContext(const char *text, SourceLocation = {}) : name(text) {}
  DebugContext(const std::string &text, SourceLocation = {}) : name(text) {}
  DebugContext(const DebugInfo &, const std::string &text = "") : name(text) {}
  DebugContext(const DebugNameAndId &id, const std::string &text = "") : name(id.name + text) {}
  std::string getPathName() const { return name; }
};

struct half_t {
  float value = 0;
  half_t(float number = 0) : value(number) {}
  operator float() const { return value; }
};
using Half = half_t;
using IeeeHalf = half_t;

class Type {
public:
  std::string name = "float";
  std::size_t size = 4;
  std::string toString() const { return name; }
  bool operator==(const Type &other) const { return name == other.name; }
  bool operator!=(const Type &other) const { return name != other.name; }
  bool operator<(const Type &other) const { return name < other.name; }
};
inline std::ostream &operator<<(std::ostream &out, const Type &type) { return out << type.name; }
// NumPy's names of the types.
inline const Type BOOL{"bool", 1}, CHAR{"int8", 1}, SIGNED_CHAR{"int8", 1}, UNSIGNED_CHAR{"uint8", 1},
    SHORT{"int16", 2}, UNSIGNED_SHORT{"uint16", 2}, INT{"int32", 4}, UNSIGNED_INT{"uint32", 4}, LONG{"int64", 8},
    UNSIGNED_LONG{"uint64", 8}, LONGLONG{"int64", 8}, UNSIGNED_LONGLONG{"uint64", 8}, HALF{"float16", 2},
    FLOAT{"float32", 4};
inline Type typeNamed(const std::string &name) {
  for (auto &type : {BOOL, CHAR, UNSIGNED_CHAR, SHORT, UNSIGNED_SHORT, INT, UNSIGNED_INT, LONG, UNSIGNED_LONG, HALF, FLOAT})
    if (type.name == name) return type;
  throw poplar_error("type " + name + " is not recorded");
}
template <typename T> struct equivalent_device_type {
  Type value = std::is_same<T, half_t>::value      ? HALF
               : std::is_same<T, bool>::value      ? BOOL
               : std::is_floating_point<T>::value  ? FLOAT
               : sizeof(T) == 1                    ? (std::is_signed<T>::value ? SIGNED_CHAR : UNSIGNED_CHAR)
               : sizeof(T) == 2                    ? (std::is_signed<T>::value ? SHORT : UNSIGNED_SHORT)
               : sizeof(T) == 8                    ? (std::is_signed<T>::value ? LONGLONG : UNSIGNED_LONGLONG)
               : std::is_signed<T>::value          ? INT
                                                   : UNSIGNED_INT;
};

struct Interval {
  std::size_t lower = 0, upper = 0;
  Interval(std::size_t begin = 0, std::size_t end = 0) : lower(begin), upper(end) {}
  std::size_t begin() const { return lower; }
  std::size_t end() const { return upper; }
  std::size_t size() const { return upper - lower; }
  bool operator==(const Interval &other) const { return lower == other.lower && upper == other.upper; }
  bool operator!=(const Interval &other) const { return !(*this == other); }
  bool operator<(const Interval &other) const { return std::tie(lower, upper) < std::tie(other.lower, other.upper); }
};

class Tensor {
  // A view of this tensor.
  Tensor view(const std::string &op, const std::vector<std::size_t> &shape, const std::string &args) const {
    return Tensor(op, {number}, shape, type, args);
  }
  void within(unsigned dimension) const {
    if (dimension >= sizes.size())
      throw poplar_error(ipuperf::formatted("dimension {} of a tensor of rank {}", dimension, sizes.size()));
  }

public:
  int number = -1;
  std::vector<std::size_t> sizes;
  Type type;
  // Whether elements lie in it more than once.
  bool aliases = false;

  Tensor() = default;
  Tensor(const std::string &op, const std::vector<int> &from, const std::vector<std::size_t> &shape, const Type &kind,
         const std::string &args)
      : number(int(ipuperf::nodes().size())), sizes(shape), type(kind) {
    using namespace ipuperf;
    nodes().push_back(listed({json(op), json(from), json(shape), json(kind.name), args}));
  }

  bool valid() const { return number >= 0; }
  Type elementType() const { return type; }
  const std::vector<std::size_t> &shape() const { return sizes; }
  std::size_t rank() const { return sizes.size(); }
  std::size_t dim(unsigned index) const {
    within(index);
    return sizes[index];
  }
  std::size_t numElements() const {
    std::size_t count = 1;
    for (auto size : sizes) count *= size;
    return count;
  }
  bool isContiguous() const { return true; }
  bool containsAliases() const { return aliases; }
  bool containsConstant() const { return false; }
  bool operator==(const Tensor &other) const { return number == other.number; }
  bool operator!=(const Tensor &other) const { return number != other.number; }
  std::string shapeToString() const { return ipuperf::json(sizes); }

  Tensor slice(ArrayRef<std::size_t> begin, ArrayRef<std::size_t> end) const {
    std::vector<std::size_t> shape, from = begin, to = end;
    if (from.size() != rank() || to.size() != rank()) throw poplar_error("slice: a begin and an end for each dimension are needed");
    for (std::size_t i = 0; i < rank(); ++i) {
      if (from[i] > to[i] || to[i] > sizes[i])
        throw poplar_error(ipuperf::formatted("slice {}..{} of dimension {}, which has {} elements", from[i], to[i], i, sizes[i]));
      shape.push_back(to[i] - from[i]);
    }
    auto part = view("slice", shape, ipuperf::listed({ipuperf::json(from), ipuperf::json(to)}));
    part.aliases = aliases;
    return part;
  }
  Tensor slice(std::size_t begin, std::size_t end, unsigned dimension = 0) const {
    within(dimension);
    std::vector<std::size_t> from(rank(), 0), to = sizes;
    from[dimension] = begin;
    to[dimension] = end;
    return slice(ArrayRef<std::size_t>(from), ArrayRef<std::size_t>(to));
  }
  Tensor slice(const Interval &region, unsigned dimension = 0) const {
    return slice(region.lower, region.upper, dimension);
  }
  std::vector<Tensor> slices(ArrayRef<Interval> regions, unsigned dimension = 0) const {
    std::vector<Tensor> parts;
    for (auto &region : regions) parts.push_back(slice(region, dimension));
    return parts;
  }
  Tensor slices(const std::vector<std::vector<Interval>> &regions, unsigned dimension = 0) const;
  Tensor operator[](std::size_t index) const {
    auto shape = std::vector<std::size_t>(sizes.begin() + 1, sizes.end());
    return slice(index, index + 1, 0).reshape(shape);
  }
  Tensor index(ArrayRef<std::size_t> indices) const {
    Tensor part = *this;
    for (auto each : indices) part = part[each];
    return part;
  }
  Tensor operator[](const Interval &region) const { return slice(region, 0); }
  Tensor reshape(ArrayRef<std::size_t> shape) const {
    std::size_t count = 1;
    for (auto size : shape) count *= size;
    if (count != numElements()) throw poplar_error(ipuperf::formatted("{} elements do not fill the shape", numElements()));
    auto result = view("reshape", shape, "[]");
    result.aliases = aliases;
    return result;
  }
  Tensor reshapePartial(unsigned begin, unsigned end, ArrayRef<std::size_t> shape) const {
    std::vector<std::size_t> all(sizes.begin(), sizes.begin() + begin);
    all.insert(all.end(), shape.begin(), shape.end());
    all.insert(all.end(), sizes.begin() + end, sizes.end());
    return reshape(all);
  }
  Tensor flatten() const { return reshape({numElements()}); }
  Tensor flatten(unsigned begin, unsigned end) const {
    std::size_t count = 1;
    for (unsigned i = begin; i < end; ++i) count *= sizes[i];
    return reshapePartial(begin, end, {count});
  }
  Tensor expand(ArrayRef<std::size_t> places) const {
    std::vector<std::size_t> shape, at = places;
    for (std::size_t i = 0; i <= rank(); ++i) {
      for (auto place : at)
        if (place == i) shape.push_back(1);
      if (i < rank()) shape.push_back(sizes[i]);
    }
    return reshape(shape);
  }
  Tensor squeeze(ArrayRef<std::size_t> places) const {
    std::vector<std::size_t> shape, at = places;
    for (std::size_t i = 0; i < rank(); ++i) {
      bool away = false;
      for (auto place : at) away = away || place == i;
      if (!away) shape.push_back(sizes[i]);
    }
    return reshape(shape);
  }
  Tensor dimShuffle(ArrayRef<unsigned> permutation) const {
    std::vector<std::size_t> shape;
    for (auto place : permutation) shape.push_back(dim(place));
    auto result = view("dimShuffle", shape, ipuperf::json(std::vector<unsigned>(permutation)));
    result.aliases = aliases;
    return result;
  }
  Tensor dimShufflePartial(ArrayRef<unsigned> source, ArrayRef<unsigned> destination) const {
    std::vector<int> order(rank(), -1);
    std::vector<bool> used(rank(), false);
    for (std::size_t i = 0; i < source.size(); ++i) {
      order[destination[i]] = int(source[i]);
      used[source[i]] = true;
    }
    unsigned next = 0;
    std::vector<unsigned> permutation;
    for (auto place : order) {
      while (place < 0 && used[next]) ++next;
      permutation.push_back(place < 0 ? next++ : unsigned(place));
    }
    return dimShuffle(permutation);
  }
  Tensor dimRoll(unsigned source, unsigned destination = 0) const {
    return dimShufflePartial({source}, {destination});
  }
  Tensor transpose() const { return dimShufflePartial({0u, 1u}, {1u, 0u}); }
  Tensor reverse(unsigned dimension) const {
    within(dimension);
    return view("reverse", sizes, ipuperf::json(dimension));
  }
  Tensor subSample(unsigned stride, unsigned dimension) const {
    auto shape = sizes;
    shape[dimension] = (dim(dimension) + stride - 1) / stride;
    return view("subSample", shape, ipuperf::listed({ipuperf::json(stride), ipuperf::json(dimension)}));
  }
  Tensor broadcast(unsigned times, unsigned dimension) const {
    auto shape = sizes;
    shape[dimension] = dim(dimension) * times;
    auto result = view("broadcast", shape, ipuperf::listed({ipuperf::json(times), ipuperf::json(dimension)}));
    result.aliases = times > 1 || aliases;
    return result;
  }
  Tensor reinterpret(const Type &kind) const {
    if (kind.size != type.size) throw poplar_error("reinterpret: " + type.name + " as " + kind.name + ", whose size is another");
    auto result = view("reinterpret", sizes, "[]");
    result.type = kind;
    auto &node = ipuperf::nodes().back();
    node = ipuperf::listed({"\"reinterpret\"", ipuperf::json(std::vector<int>{number}), ipuperf::json(sizes), ipuperf::json(kind.name), "[]"});
    return result;
  }
};

inline Tensor concat(ArrayRef<Tensor> parts, unsigned dimension = 0) {
  if (parts.empty()) throw poplar_error("concat of no tensors");
  auto shape = parts[0].sizes;
  bool aliases = false;
  std::vector<int> from;
  std::size_t total = 0;
  for (auto &part : parts) {
    auto other = part.sizes;
    if (other.size() != shape.size() || part.type != parts[0].type) throw poplar_error("concat of tensors of other ranks or types");
    total += part.dim(dimension);
    other[dimension] = shape[dimension];
    if (other != shape) throw poplar_error("concat of tensors of other shapes");
    from.push_back(part.number);
    aliases = aliases || part.aliases;
  }
  shape[dimension] = total;
  Tensor result("concat", from, shape, parts[0].type, ipuperf::json(dimension));
  result.aliases = aliases;
  return result;
}
inline Tensor concat(const Tensor &first, const Tensor &second, unsigned dimension = 0) {
  std::vector<Tensor> parts{first, second};
  return concat(ArrayRef<Tensor>(parts), dimension);
}
inline Tensor append(const Tensor &first, const Tensor &second, unsigned dimension = 0) {
  return concat(first, second.expand({dimension}), dimension);
}
inline Tensor Tensor::slices(const std::vector<std::vector<Interval>> &regions, unsigned dimension) const {
  std::vector<Tensor> parts;
  for (auto &each : regions)
    for (auto &region : each) parts.push_back(slice(region, dimension));
  return concat(ArrayRef<Tensor>(parts), dimension);
}

struct OptionFlags {
  std::map<std::string, std::string> values;
  OptionFlags() = default;
  OptionFlags(std::initializer_list<std::pair<std::string, std::string>> pairs) : values(pairs.begin(), pairs.end()) {}
  void set(const std::string &key, const std::string &value) { values[key] = value; }
  void set(std::initializer_list<std::pair<std::string, std::string>> pairs) {
    for (auto &pair : pairs) values[pair.first] = pair.second;
  }
  void clear() { values.clear(); }
};

enum class TargetType { IPU, IPU_MODEL, CPU };
class Target {
public:
  unsigned getNumTiles() const { return 1472; }
  unsigned getTilesPerIPU() const { return 1472; }
  unsigned getNumIPUs() const { return 1; }
  unsigned getNumWorkerContexts() const { return 6; }
  unsigned getDataPathWidth() const { return 64; }
  unsigned getVectorWidth(const Type &type) const { return unsigned(8 / type.size); }
  unsigned getFloatVectorWidth() const { return 2; }
  unsigned getHalfVectorWidth() const { return 4; }
  unsigned getTypeSize(const Type &type) const { return unsigned(type.size); }
  unsigned getExchangeBytesPerCycle() const { return 4; }
  unsigned getBytesPerTile() const { return 638976; }
  TargetType getTargetType() const { return TargetType::IPU; }
};

enum class VariableMappingMethod { NONE, LINEAR };
enum class TensorCloneMethod { PRESERVE_ORDER_AND_ALIASES, CREATE_NEW_ORDER, PRESERVE_ORDER_UNLESS_ALIASES, GATHER_AND_PRESERVE_TILE_ORDER_AND_ALIASES };

struct ComputeSet {
  int number = -1;
};
// The vertices of each compute set, by type.
inline std::vector<std::vector<std::string>> &computeSets() {
  static std::vector<std::vector<std::string>> all;
  return all;
}
struct FieldRef {
  template <typename T> void operator=(const T &) const {}
  FieldRef operator[](const std::string &) const { return {}; }
  FieldRef operator[](std::size_t) const { return {}; }
};
struct VertexRef : FieldRef {};
struct ConnectionDesc {
  ConnectionDesc(const std::string &, const Tensor &) {}
  ConnectionDesc(const std::string &, const std::vector<Tensor> &) {}
  template <typename T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0> ConnectionDesc(const std::string &, T) {}
};
using VertexPerfEstimate = std::uint64_t;

class Graph {
public:
  using TileToTensorMapping = std::vector<std::vector<Interval>>;

  const Target &getTarget() const {
    static const Target target;
    return target;
  }
  Graph &getTopLevelGraph() { return *this; }
  Graph &createVirtualGraph(unsigned, unsigned) { return *this; }
  unsigned getReplicationFactor() const { return 1; }
  Tensor addVariable(const Type &type, ArrayRef<std::size_t> shape, const DebugContext & = {}) {
    return Tensor("variable", {}, shape, type, "[]");
  }
  Tensor addVariable(const Type &type, ArrayRef<std::size_t> shape, VariableMappingMethod, const DebugContext & = {}) {
    return addVariable(type, shape);
  }
  template <typename T> Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, ArrayRef<T> values, const DebugContext & = {}) {
    std::vector<double> numbers(values.begin(), values.end());
    return Tensor("constant", {}, shape, type, ipuperf::json(numbers));
  }
  template <typename T> Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, const std::vector<T> &values, const DebugContext & = {}) {
    return addConstant(type, shape, ArrayRef<T>(values));
  }
  template <typename T> Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, const std::initializer_list<T> &values, const DebugContext & = {}) {
    return addConstant(type, shape, ArrayRef<T>(values));
  }
  template <typename T> Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, const T *values, const DebugContext & = {}) {
    std::size_t count = 1;
    for (auto size : shape) count *= size;
    return addConstant(type, shape, ArrayRef<T>(values, count));
  }
  template <typename T, std::enable_if_t<std::is_arithmetic<T>::value || std::is_same<T, half_t>::value, int> = 0>
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, T value, const DebugContext & = {}) {
    std::vector<double> numbers{double(value)};
    return Tensor("constant", {}, shape, type, ipuperf::json(numbers));
  }
  Tensor clone(const Tensor &tensor, const DebugContext & = {}, TensorCloneMethod = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES) {
    return addVariable(tensor.type, tensor.sizes);
  }
  Tensor clone(const Type &type, const Tensor &tensor, const DebugContext & = {}, TensorCloneMethod = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES) {
    return addVariable(type, tensor.sizes);
  }
  template <typename V> void setTileMapping(const V &, unsigned) {}
  void setTileMapping(const Tensor &, const TileToTensorMapping &) {}
  TileToTensorMapping getTileMapping(const Tensor &tensor) const {
    // ipuperf maps tensors itself; a linear mapping is what it begins with.
    TileToTensorMapping mapping(getTarget().getNumTiles());
    std::size_t each = (tensor.numElements() + mapping.size() - 1) / mapping.size();
    for (std::size_t tile = 0; tile < mapping.size(); ++tile) {
      auto begin = std::min(tile * each, tensor.numElements()), end = std::min((tile + 1) * each, tensor.numElements());
      if (begin < end) mapping[tile].push_back({begin, end});
    }
    return mapping;
  }
  std::vector<std::vector<Interval>> getSortedContiguousRegions(const Tensor &, ArrayRef<Interval> regions, bool = false) const {
    return {std::vector<Interval>(regions)};
  }
  template <typename... A> bool addCodelets(A &&...) { return true; }
  ComputeSet addComputeSet(const DebugContext & = {}) {
    computeSets().emplace_back();
    return {int(computeSets().size()) - 1};
  }
  template <typename... A> VertexRef addVertex(const ComputeSet &set, const std::string &type, A &&...) {
    computeSets().at(std::size_t(set.number)).push_back(type);
    return {};
  }
  VertexRef addVertex(const ComputeSet &set, const std::string &type, std::initializer_list<ConnectionDesc>) {
    return addVertex(set, type);
  }
  template <typename F, typename T> void connect(const F &, const T &) {}
  template <typename F> void connect(const F &, const std::vector<Tensor> &) {}
  template <typename F, typename T> void setInitialValue(const F &, const T &) {}
  template <typename F> void setFieldSize(const F &, std::size_t) {}
  template <typename... A> void setPerfEstimate(A &&...) {}
  template <typename... A> void setCycleEstimate(A &&...) {}
  template <typename... A> void createHostWrite(A &&...) {}
  template <typename... A> void createHostRead(A &&...) {}
};

struct Function {
  std::vector<std::string> steps;
};

namespace program {
class Program {
public:
  std::vector<std::string> steps;
};
inline std::string callStep(const std::string &name, const std::vector<Tensor> &in, const std::vector<Tensor> &out, const std::string &args = "{}") {
  using namespace ipuperf;
  std::vector<int> from, to;
  for (auto &tensor : in) from.push_back(tensor.number);
  for (auto &tensor : out) to.push_back(tensor.number);
  return listed({json(name), json(from), json(to), args});
}
class Sequence : public Program {
public:
  Sequence() = default;
  Sequence(const DebugContext &) {}
  Sequence(std::initializer_list<Program> programs, const DebugContext & = {}) {
    for (auto &each : programs) add(each);
  }
  template <typename... Rest, std::enable_if_t<(std::is_base_of<Program, Rest>::value && ...), int> = 0>
  Sequence(const Program &first, const Program &second, const Rest &...rest) {
    for (auto &each : std::initializer_list<Program>{first, second, rest...}) add(each);
  }
  void add(const Program &program) { steps.insert(steps.end(), program.steps.begin(), program.steps.end()); }
  void record(const std::string &step) { steps.push_back(step); }
};
struct Copy : Program {
  Copy(const Tensor &source, const Tensor &target, bool = false, const DebugContext & = {}) {
    if (source.numElements() != target.numElements() || source.type != target.type)
      throw poplar_error("Copy between tensors of other sizes or types");
    steps.push_back(callStep("copy", {source}, {target}));
  }
  Copy(const Tensor &source, const Tensor &target, const DebugContext &) : Copy(source, target) {}
};
struct WriteUndef : Program {
  WriteUndef(const Tensor &, const DebugContext & = {}) {}
};
struct Sync : Program {
  template <typename... A> Sync(A &&...) {}
};
struct PrintTensor : Program {
  template <typename... A> PrintTensor(A &&...) {}
};
struct Execute : Program {
  Execute(const ComputeSet &set, const DebugContext & = {}) {
    for (auto &type : computeSets().at(std::size_t(set.number)))
      steps.push_back(callStep("vertex", {}, {}, ipuperf::json(type)));
  }
};
struct Repeat : Program {
  Repeat(std::size_t count, const Program &body, const DebugContext & = {}) {
    steps.push_back(ipuperf::listed({"\"repeat\"", ipuperf::json(count), ipuperf::listed(body.steps)}));
  }
};
struct Call : Program {
  Call(const Function &function, const DebugContext & = {}) { steps = function.steps; }
};
// Paths that depend on data.
struct If : Program {
  template <typename... A> If(A &&...) { steps.push_back(callStep("program", {}, {}, "\"If\"")); }
};
struct RepeatWhileTrue : Program {
  template <typename... A> RepeatWhileTrue(A &&...) { steps.push_back(callStep("program", {}, {}, "\"RepeatWhileTrue\"")); }
};
struct RepeatWhileFalse : Program {
  template <typename... A> RepeatWhileFalse(A &&...) { steps.push_back(callStep("program", {}, {}, "\"RepeatWhileFalse\"")); }
};
struct ErrorProgram : Program {
  template <typename... A> ErrorProgram(A &&...) {}
};
}  // namespace program
}  // namespace poplar

namespace poputil {
struct poplibs_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
using poplar::Graph;
using poplar::Tensor;
template <typename... A> void mapTensorLinearly(A &&...) {}
template <typename... A> void mapTensorLinearlyWithOffset(A &&...) {}
template <typename... A> void mapOutputForElementWiseOp(A &&...) {}
template <typename... A> Graph::TileToTensorMapping calcLinearTileMapping(const Graph &graph, const Tensor &tensor, A &&...) {
  return graph.getTileMapping(tensor);
}
template <typename... A> std::vector<std::pair<unsigned, unsigned>> detectDimGroupings(A &&...) { return {}; }
template <typename... A> std::vector<std::vector<poplar::Interval>> splitRegionsBetweenWorkers(const poplar::Target &, const std::vector<std::vector<poplar::Interval>> &regions, A &&...) {
  return regions;
}
template <typename... A> std::vector<std::vector<poplar::Interval>> splitRegionsBetweenWorkers(const poplar::Target &, const std::vector<poplar::Interval> &regions, A &&...) {
  return {regions};
}
template <typename... A> std::string templateVertex(const std::string &name, A &&...) { return name; }
inline Tensor duplicate(Graph &graph, const Tensor &in, poplar::program::Sequence &prog, const poplar::DebugContext & = {}, poplar::TensorCloneMethod = {}) {
  auto copy = graph.clone(in);
  prog.add(poplar::program::Copy(in, copy));
  return copy;
}
inline std::vector<std::size_t> broadcastShape(const std::vector<std::size_t> &first, const std::vector<std::size_t> &second) {
  auto longer = first.size() >= second.size() ? first : second, shorter = first.size() >= second.size() ? second : first;
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    auto &size = longer[longer.size() - shorter.size() + i];
    if (size != shorter[i] && size != 1 && shorter[i] != 1)
      throw poplibs_error(ipuperf::formatted("dimensions {} and {} cannot be broadcast together", size, shorter[i]));
    size = size == 1 ? shorter[i] : size;
  }
  return longer;
}
inline Tensor broadcastTo(Tensor tensor, const std::vector<std::size_t> &shape) {
  std::vector<std::size_t> filled(shape.size() - tensor.rank(), 1);
  filled.insert(filled.end(), tensor.sizes.begin(), tensor.sizes.end());
  if (filled != tensor.sizes) tensor = tensor.reshape(filled);
  for (unsigned i = 0; i < shape.size(); ++i)
    if (filled[i] != shape[i]) tensor = tensor.broadcast(unsigned(shape[i]), i);
  return tensor;
}
inline void broadcastToMatch(Tensor &a, const std::vector<std::size_t> &shape) { a = broadcastTo(a, shape); }
inline void broadcastToMatch(Tensor &a, Tensor &b) {
  auto shape = broadcastShape(a.sizes, b.sizes);
  a = broadcastTo(a, shape);
  b = broadcastTo(b, shape);
}
struct OpDebugInfo : poplar::DebugInfo {
  template <typename... A> OpDebugInfo(A &&...) {}
  template <typename... A> void addOutputs(A &&...) {}
  template <typename... A> void addOutput(A &&...) {}
  template <typename... A> void add(A &&...) {}
};
using PoplibsOpDebugInfo = OpDebugInfo;
}  // namespace poputil
#define DI_ARGS(...) 0
#define DI_KEY_ARGS(...) 0

namespace snap {
using poplar::Graph;
using poplar::Tensor;
namespace program = poplar::program;
}  // namespace snap
