// Names of popops, poplin, popnn and poputil: each call becomes one step of the program.
#pragma once
#include "poplar.hpp"

namespace popops {
using namespace poplar;
using poplar::program::callStep;
using poplar::program::Sequence;

namespace expr {
// A tree in JSON, and the type that it gives for operands.
struct Expr {
  std::string tree;
  std::function<Type(const std::vector<Tensor> &)> typed;
  bool constant = false;
  std::unique_ptr<Expr> clone() const { return std::make_unique<Expr>(*this); }
  virtual ~Expr() = default;
};
using Any = Expr;
struct PlaceHolder : Expr {
  PlaceHolder(unsigned place) {
    tree = "[\"in\"," + std::to_string(place - 1) + "]";
    typed = [place](const std::vector<Tensor> &tensors) {
      if (place > tensors.size()) throw poplar_error(ipuperf::formatted("_{} of {} operands", place, tensors.size()));
      return tensors[place - 1].type;
    };
  }
};
inline const PlaceHolder _1(1), _2(2), _3(3), _4(4), _5(5), _6(6), _7(7), _8(8), _9(9), _10(10), _11(11), _12(12),
    _13(13), _14(14), _15(15), _16(16), _17(17), _18(18), _19(19), _20(20);
struct Const : Expr {
  template <typename T> Const(T value) {
    auto kind = equivalent_device_type<T>().value;
    tree = ipuperf::listed({"\"const\"", ipuperf::json(double(value)), ipuperf::json(kind.name)});
    typed = [kind](const std::vector<Tensor> &) { return kind; };
    constant = true;
  }
};
struct ConstHalf : Const {
  ConstHalf(float value) : Const(half_t(value)) {}
};
struct Cast : Expr {
  Cast(const Expr &inner, const Type &kind) {
    tree = ipuperf::listed({"\"cast\"", inner.tree, ipuperf::json(kind.name)});
    typed = [kind](const std::vector<Tensor> &) { return kind; };
  }
};
struct Node : Expr {
  Node(const std::string &op, const std::vector<Expr> &inner, bool truth) {
    std::vector<std::string> parts{ipuperf::json(op)};
    for (auto &each : inner) parts.push_back(each.tree);
    tree = ipuperf::listed(parts);
    std::vector<Expr> deciding(inner);
    if (op == "SELECT") deciding.pop_back();
    typed = [deciding, truth](const std::vector<Tensor> &tensors) {
      if (truth) return BOOL;
      // A constant takes the type of what stands beside it.
      for (auto &each : deciding)
        if (!each.constant) return each.typed(tensors);
      return deciding[0].typed(tensors);
    };
    constant = true;
    for (auto &each : inner) constant = constant && each.constant;
  }
};
}  // namespace expr

inline Tensor recordMap(Graph &graph, const expr::Expr &tree, const std::vector<Tensor> &in, Sequence &prog) {
  std::vector<std::size_t> shape;
  for (auto &tensor : in) shape = poputil::broadcastShape(shape, tensor.sizes);
  auto out = graph.addVariable(tree.typed(in), shape);
  prog.record(callStep("map", in, {out}, tree.tree));
  return out;
}
inline void recordInto(const expr::Expr &tree, const std::vector<Tensor> &in, const Tensor &out, Sequence &prog) {
  prog.record(callStep("map", in, {out}, tree.tree));
}
inline Tensor map(Graph &graph, const expr::Expr &tree, const std::vector<Tensor> &in, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  return recordMap(graph, tree, in, prog);
}
inline void mapInPlace(Graph &, const expr::Expr &tree, const std::vector<Tensor> &in, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  recordInto(tree, in, in.at(0), prog);
}
inline void mapWithOutput(Graph &, const expr::Expr &tree, const std::vector<Tensor> &in, const Tensor &out, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  recordInto(tree, in, out, prog);
}

#define IPUPERF_UNARY(Class, function, OP, truth)                                                                      \
  namespace expr {                                                                                                     \
  struct Class : Node {                                                                                                \
    Class(const Expr &a) : Node(#OP, {a}, truth) {}                                                                    \
  };                                                                                                                   \
  }                                                                                                                    \
  inline Tensor function(Graph &graph, const Tensor &a, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {  \
    return recordMap(graph, expr::Class(expr::_1), {a}, prog);                                                         \
  }                                                                                                                    \
  inline void function##InPlace(Graph &, const Tensor &a, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) { \
    recordInto(expr::Class(expr::_1), {a}, a, prog);                                                                   \
  }                                                                                                                    \
  inline void function##WithOutput(Graph &, const Tensor &a, const Tensor &out, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) { \
    recordInto(expr::Class(expr::_1), {a}, out, prog);                                                                 \
  }
#define IPUPERF_BINARY(Class, function, OP, truth)                                                                     \
  namespace expr {                                                                                                     \
  struct Class : Node {                                                                                                \
    Class(const Expr &a, const Expr &b) : Node(#OP, {a, b}, truth) {}                                                  \
  };                                                                                                                   \
  }                                                                                                                    \
  inline Tensor function(Graph &graph, const Tensor &a, const Tensor &b, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) { \
    return recordMap(graph, expr::Class(expr::_1, expr::_2), {a, b}, prog);                                            \
  }                                                                                                                    \
  template <typename T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0>                                       \
  Tensor function(Graph &graph, const Tensor &a, T b, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) { \
    return recordMap(graph, expr::Class(expr::_1, expr::Const(b)), {a}, prog);                                         \
  }                                                                                                                    \
  template <typename T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0>                                       \
  Tensor function(Graph &graph, T a, const Tensor &b, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) { \
    return recordMap(graph, expr::Class(expr::Const(a), expr::_1), {b}, prog);                                         \
  }                                                                                                                    \
  inline void function##InPlace(Graph &, const Tensor &a, const Tensor &b, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) { \
    recordInto(expr::Class(expr::_1, expr::_2), {a, b}, a, prog);                                                      \
  }                                                                                                                    \
  template <typename T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0>                                       \
  void function##InPlace(Graph &, const Tensor &a, T b, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) { \
    recordInto(expr::Class(expr::_1, expr::Const(b)), {a}, a, prog);                                                   \
  }                                                                                                                    \
  inline void function##WithOutput(Graph &, const Tensor &a, const Tensor &b, const Tensor &out, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) { \
    recordInto(expr::Class(expr::_1, expr::_2), {a, b}, out, prog);                                                    \
  }
IPUPERF_UNARY(Abs, abs, ABSOLUTE, false)
IPUPERF_UNARY(Asin, asin, ASIN, false)
IPUPERF_UNARY(BitwiseNot, bitwiseNot, BITWISE_NOT, false)
IPUPERF_UNARY(Cbrt, cbrt, CBRT, false)
IPUPERF_UNARY(Ceil, ceil, CEIL, false)
IPUPERF_UNARY(Cos, cos, COS, false)
IPUPERF_UNARY(Erf, erf, ERF, false)
IPUPERF_UNARY(Exp, exp, EXPONENT, false)
IPUPERF_UNARY(Expm1, expm1, EXPONENT_MINUS_ONE, false)
IPUPERF_UNARY(Floor, floor, FLOOR, false)
IPUPERF_UNARY(GeluErf, geluErf, GELU_ERF, false)
IPUPERF_UNARY(Inv, inv, INVERSE, false)
IPUPERF_UNARY(IsFinite, isFinite, IS_FINITE, true)
IPUPERF_UNARY(IsInf, isInf, IS_INF, true)
IPUPERF_UNARY(IsNaN, isNaN, IS_NAN, true)
IPUPERF_UNARY(Log, log, LOGARITHM, false)
IPUPERF_UNARY(Log1p, log1p, LOGARITHM_ONE_PLUS, false)
IPUPERF_UNARY(Not, logicalNot, LOGICAL_NOT, true)
IPUPERF_UNARY(Neg, neg, NEGATE, false)
IPUPERF_UNARY(NearbyInt, nearbyInt, NEARBY_INT, false)
IPUPERF_UNARY(Relu, relu, RELU, false)
IPUPERF_UNARY(Round, round, ROUND, false)
IPUPERF_UNARY(Rsqrt, rsqrt, RSQRT, false)
IPUPERF_UNARY(Sigmoid, sigmoid, SIGMOID, false)
IPUPERF_UNARY(Signum, signum, SIGNUM, false)
IPUPERF_UNARY(Sin, sin, SIN, false)
IPUPERF_UNARY(Sqrt, sqrt, SQRT, false)
IPUPERF_UNARY(Square, square, SQUARE, false)
IPUPERF_UNARY(Tan, tan, TAN, false)
IPUPERF_UNARY(Tanh, tanh, TANH, false)
IPUPERF_UNARY(Trunc, trunc, TRUNC, false)
IPUPERF_BINARY(Add, add, ADD, false)
IPUPERF_BINARY(Atan2, atan2, ATAN2, false)
IPUPERF_BINARY(BitwiseAnd, bitwiseAnd, BITWISE_AND, false)
IPUPERF_BINARY(BitwiseOr, bitwiseOr, BITWISE_OR, false)
IPUPERF_BINARY(BitwiseXor, bitwiseXor, BITWISE_XOR, false)
IPUPERF_BINARY(Divide, div, DIVIDE, false)
IPUPERF_BINARY(Equal, eq, EQUAL, true)
IPUPERF_BINARY(Gte, gteq, GREATER_THAN_EQUAL, true)
IPUPERF_BINARY(Gt, gt, GREATER_THAN, true)
IPUPERF_BINARY(Lte, lteq, LESS_THAN_EQUAL, true)
IPUPERF_BINARY(Lt, lt, LESS_THAN, true)
IPUPERF_BINARY(And, logicalAnd, LOGICAL_AND, true)
IPUPERF_BINARY(Or, logicalOr, LOGICAL_OR, true)
IPUPERF_BINARY(Max, max, MAXIMUM, false)
IPUPERF_BINARY(Min, min, MINIMUM, false)
IPUPERF_BINARY(Mul, mul, MULTIPLY, false)
IPUPERF_BINARY(NotEqual, neq, NOT_EQUAL, true)
IPUPERF_BINARY(Pow, pow, POWER, false)
IPUPERF_BINARY(Rem, rem, REMAINDER, false)
IPUPERF_BINARY(Shl, shiftLeft, SHIFT_LEFT, false)
IPUPERF_BINARY(Shr, shiftRight, SHIFT_RIGHT, false)
IPUPERF_BINARY(ShrSE, shiftRightSignExtend, SHIFT_RIGHT_SIGN_EXTEND, false)
IPUPERF_BINARY(Sub, sub, SUBTRACT, false)
IPUPERF_BINARY(VarianceToInvStdDev, varianceToInvStdDev, VARIANCE_TO_INV_STD_DEV, false)
IPUPERF_BINARY(InvStdDevToVariance, invStdDevToVariance, INV_STD_DEV_TO_VARIANCE, false)

namespace expr {
struct Select : Node {
  Select(const Expr &a, const Expr &b, const Expr &condition) : Node("SELECT", {a, b, condition}, false) {}
};
struct Clamp : Node {
  Clamp(const Expr &a, const Expr &low, const Expr &high) : Node("CLAMP", {a, low, high}, false) {}
};
template <typename T> using Number = std::enable_if_t<std::is_arithmetic<T>::value, int>;
#define IPUPERF_OPERATOR(sign, Class)                                                                                  \
  inline Class operator sign(const Expr &a, const Expr &b) { return {a, b}; }                                          \
  template <typename T, Number<T> = 0> Class operator sign(const Expr &a, T b) { return {a, Const(b)}; }               \
  template <typename T, Number<T> = 0> Class operator sign(T a, const Expr &b) { return {Const(a), b}; }
IPUPERF_OPERATOR(+, Add)
IPUPERF_OPERATOR(-, Sub)
IPUPERF_OPERATOR(*, Mul)
IPUPERF_OPERATOR(/, Divide)
IPUPERF_OPERATOR(%, Rem)
IPUPERF_OPERATOR(==, Equal)
IPUPERF_OPERATOR(!=, NotEqual)
IPUPERF_OPERATOR(<, Lt)
IPUPERF_OPERATOR(<=, Lte)
IPUPERF_OPERATOR(>, Gt)
IPUPERF_OPERATOR(>=, Gte)
IPUPERF_OPERATOR(&&, And)
IPUPERF_OPERATOR(||, Or)
IPUPERF_OPERATOR(&, BitwiseAnd)
IPUPERF_OPERATOR(|, BitwiseOr)
IPUPERF_OPERATOR(^, BitwiseXor)
IPUPERF_OPERATOR(<<, Shl)
IPUPERF_OPERATOR(>>, Shr)
inline Neg operator-(const Expr &a) { return {a}; }
inline Not operator!(const Expr &a) { return {a}; }
inline BitwiseNot operator~(const Expr &a) { return {a}; }
}  // namespace expr

inline Tensor select(Graph &graph, const Tensor &a, const Tensor &b, const Tensor &condition, Sequence &prog, const DebugContext & = {}) {
  return recordMap(graph, expr::Select(expr::_1, expr::_2, expr::_3), {a, b, condition}, prog);
}
inline void selectInPlace(Graph &, const Tensor &a, const Tensor &b, const Tensor &condition, Sequence &prog, const DebugContext & = {}) {
  recordInto(expr::Select(expr::_1, expr::_2, expr::_3), {a, b, condition}, a, prog);
}
inline Tensor clamp(Graph &graph, const Tensor &a, const Tensor &low, const Tensor &high, Sequence &prog, const DebugContext & = {}) {
  return recordMap(graph, expr::Clamp(expr::_1, expr::_2, expr::_3), {a, low, high}, prog);
}

template <typename... A> void addCodelets(A &&...) {}
inline Tensor cast(Graph &graph, const Tensor &source, const Type &kind, Sequence &prog, const DebugContext & = {}) {
  auto out = graph.addVariable(kind, source.sizes);
  prog.record(callStep("cast", {source}, {out}));
  return out;
}
inline program::Program cast(Graph &, const Tensor &source, const Tensor &target, const DebugContext & = {}) {
  program::Program result;
  result.steps.push_back(callStep("cast", {source}, {target}));
  return result;
}
template <typename T> void fill(Graph &, const Tensor &tensor, Sequence &prog, T value, const DebugContext & = {}) {
  prog.record(callStep("fill", {}, {tensor}, ipuperf::json(double(value))));
}
inline void zero(Graph &graph, const Tensor &tensor, Sequence &prog, const DebugContext & = {}) { fill(graph, tensor, prog, 0); }

enum class Operation { ADD, MUL, MIN, MAX, LOGICAL_AND, LOGICAL_OR, SQUARE_ADD, LOG_ADD };
struct ReduceParams {
  Operation op = Operation::ADD;
  bool update = false;
  Tensor scale;
  ReduceParams(Operation operation = Operation::ADD, bool into = false) : op(operation), update(into) {}
  ReduceParams(Operation operation, bool into, const Tensor &factor) : op(operation), update(into), scale(factor) {}
};
inline void reduceWithOutput(Graph &, const Tensor &in, const Tensor &out, ArrayRef<std::size_t> dims, const ReduceParams &params, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  static const char *const names[] = {"ADD", "MUL", "MIN", "MAX", "LOGICAL_AND", "LOGICAL_OR", "SQUARE_ADD", "LOG_ADD"};
  std::vector<Tensor> operands{in};
  if (params.scale.valid()) operands.push_back(params.scale);
  prog.record(callStep("reduce", operands, {out}, ipuperf::listed({ipuperf::json(names[int(params.op)]), ipuperf::json(std::vector<std::size_t>(dims)), ipuperf::json(params.update)})));
}
inline Tensor reduce(Graph &graph, const Tensor &in, const Type &kind, ArrayRef<std::size_t> dims, const ReduceParams &params, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  std::set<std::size_t> away(dims.begin(), dims.end());
  std::vector<std::size_t> shape;
  for (std::size_t i = 0; i < in.rank(); ++i)
    if (!away.count(i)) shape.push_back(in.sizes[i]);
  auto out = graph.addVariable(kind, shape);
  reduceWithOutput(graph, in, out, dims, params, prog);
  return out;
}
inline Tensor reduce(Graph &graph, const Tensor &in, ArrayRef<std::size_t> dims, const ReduceParams &params, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  bool truth = params.op == Operation::LOGICAL_AND || params.op == Operation::LOGICAL_OR;
  return reduce(graph, in, truth ? BOOL : in.type, dims, params, prog);
}

inline void scaledStep(const Tensor &a, const Tensor &b, const std::vector<Tensor> &factors, double first, double second, Sequence &prog) {
  std::vector<Tensor> in{a, b};
  in.insert(in.end(), factors.begin(), factors.end());
  prog.record(callStep("scaledAdd", in, {a}, ipuperf::json(std::vector<double>{first, second})));
}
inline void scaledAddTo(Graph &, const Tensor &a, const Tensor &b, const Tensor &scale, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  scaledStep(a, b, {scale}, 1, 1, prog);
}
inline void scaledAddTo(Graph &, const Tensor &a, const Tensor &b, float scale, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  scaledStep(a, b, {}, 1, scale, prog);
}
inline void scaledAddTo(Graph &, const Tensor &a, float first, const Tensor &b, float second, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  scaledStep(a, b, {}, first, second, prog);
}
inline void scaledSubtractFrom(Graph &, const Tensor &a, const Tensor &b, const Tensor &scale, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  scaledStep(a, b, {scale}, 1, -1, prog);
}
inline void scaledSubtractFrom(Graph &, const Tensor &a, const Tensor &b, float scale, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}) {
  scaledStep(a, b, {}, 1, -scale, prog);
}

namespace rearrange {
inline Tensor regroupIfBeneficial(Graph &, const Tensor &in, std::size_t, Sequence &, const DebugContext & = {}) { return in; }
inline Tensor regroupIfBeneficial(Graph &, const Tensor &in, const Tensor &, Sequence &, const DebugContext & = {}) { return in; }
}  // namespace rearrange

// Lookups: rows of one table, or of one for each group.
struct SlicePlan {
  template <typename T> bool operator==(const T &) const { return true; }
};
struct GatherParams {
  std::size_t maxElementsPerTile = 65535;
};
namespace embedding {
inline SlicePlan plan(const Graph &, const Type &, std::size_t, std::size_t, const std::vector<std::size_t> &, const OptionFlags & = {}) { return {}; }
inline SlicePlan plan(const Graph &, const Type &, std::size_t, std::size_t, std::size_t, const std::vector<std::size_t> &, const OptionFlags & = {}) { return {}; }
}
using ShapeRef = ArrayRef<std::size_t>;
inline Tensor gathered(Graph &graph, const Tensor &table, const Tensor &indices, bool grouped, const std::vector<std::size_t> &shape, Sequence &prog) {
  auto out = graph.addVariable(table.type, shape);
  prog.record(callStep("multiSlice", {table, indices}, {out}, ipuperf::json(grouped)));
  return out;
}
inline void wholeRows(const std::vector<std::size_t> &dims, const std::vector<std::size_t> &sizes) {
  if (dims != std::vector<std::size_t>{0} || sizes != std::vector<std::size_t>{1})
    throw poplar_error("multiSlice: only slices of one row of dimension 0 are recorded");
}
inline Tensor multiSlice(Graph &graph, const Tensor &table, const Tensor &indices, ShapeRef dims, ShapeRef sizes, Sequence &prog, const SlicePlan & = {}, const OptionFlags & = {}, const DebugContext & = {}) {
  wholeRows(dims, sizes);
  return gathered(graph, table, indices, false, {indices.dim(0), 1, table.dim(1)}, prog);
}
inline Tensor groupedMultiSlice(Graph &graph, const Tensor &table, const Tensor &indices, ShapeRef dims, ShapeRef sizes, Sequence &prog, const SlicePlan & = {}, const OptionFlags & = {}, const DebugContext & = {}) {
  wholeRows(dims, sizes);
  return gathered(graph, table, indices, true, {table.dim(0), indices.dim(1), 1, table.dim(2)}, prog);
}
inline Tensor gather(Graph &graph, const Tensor &in, const Tensor &indices, unsigned axis, Sequence &prog, const GatherParams & = {}, const DebugContext & = {}) {
  auto rows = in.dimRoll(axis, 0);
  auto width = rows.numElements() / std::max<std::size_t>(1, rows.dim(0));
  auto shape = rows.sizes;
  shape[0] = indices.numElements();
  auto flat = gathered(graph, rows.reshape({rows.dim(0), width}), indices.flatten().expand({1}), false, {shape[0], 1, width}, prog);
  return flat.reshape(shape).dimRoll(0, axis);
}
inline void updateAdd(const Tensor &table, const Tensor &rows, const Tensor &indices, const Tensor &scale, bool grouped, Sequence &prog) {
  prog.record(callStep("multiUpdateAdd", {table, rows, indices, scale}, {table}, ipuperf::json(grouped)));
}
inline void multiUpdateAdd(Graph &, const Tensor &table, const Tensor &rows, const Tensor &indices, const Tensor &scale, ShapeRef dims, ShapeRef sizes, Sequence &prog, const SlicePlan & = {}, const OptionFlags & = {}, const DebugContext & = {}) {
  wholeRows(dims, sizes);
  updateAdd(table, rows, indices, scale, false, prog);
}
inline void groupedMultiUpdateAdd(Graph &, const Tensor &table, const Tensor &rows, const Tensor &indices, const Tensor &scale, ShapeRef dims, ShapeRef sizes, Sequence &prog, const SlicePlan & = {}, const OptionFlags & = {}, const DebugContext & = {}) {
  wholeRows(dims, sizes);
  updateAdd(table, rows, indices, scale, true, prog);
}
template <typename... A> Tensor createSliceableTensor(Graph &graph, const Type &kind, ShapeRef shape, ShapeRef, ShapeRef, A &&...) { return graph.addVariable(kind, shape); }
template <typename... A> Tensor createGatherInput(Graph &graph, const Type &kind, ShapeRef shape, A &&...) { return graph.addVariable(kind, shape); }
template <typename... A> Tensor createGroupedSliceableTensor(Graph &graph, const Type &kind, std::size_t groups, ShapeRef shape, ShapeRef, ShapeRef, A &&...) {
  std::vector<std::size_t> all{groups};
  all.insert(all.end(), shape.begin(), shape.end());
  return graph.addVariable(kind, all);
}
template <typename... A> Tensor createGroupedSliceTensor(Graph &graph, const Type &kind, std::size_t groups, ShapeRef shape, ShapeRef, ShapeRef sizes, std::size_t lookups, A &&...) {
  return graph.addVariable(kind, {groups, lookups, sizes[0], shape[1]});
}
template <typename... A> Tensor createGroupedIndicesTensor(Graph &graph, std::size_t groups, ShapeRef, std::size_t lookups, A &&...) {
  return graph.addVariable(UNSIGNED_INT, {groups, lookups, 1});
}
}  // namespace popops

namespace poplin {
using namespace poplar;
using poplar::program::Sequence;
struct PlanningCache {};
namespace matmul {
using PlanningCache = poplin::PlanningCache;
}
template <typename... A> void addCodelets(A &&...) {}
inline void matMulGroupedWithOutput(Graph &, const Tensor &a, const Tensor &b, const Tensor &out, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}, PlanningCache * = nullptr) {
  if (a.dim(2) != b.dim(1) || a.dim(0) != b.dim(0)) throw poputil::poplibs_error("matMul of " + a.shapeToString() + " and " + b.shapeToString());
  prog.record(poplar::program::callStep("matMul", {a, b}, {out}));
}
inline Tensor matMulGrouped(Graph &graph, const Tensor &a, const Tensor &b, Sequence &prog, const Type &kind, const DebugContext & = {}, const OptionFlags & = {}, PlanningCache * = nullptr) {
  auto out = graph.addVariable(kind, {a.dim(0), a.dim(1), b.dim(2)});
  matMulGroupedWithOutput(graph, a, b, out, prog);
  return out;
}
inline Tensor matMul(Graph &graph, const Tensor &a, const Tensor &b, Sequence &prog, const Type &kind, const DebugContext & = {}, const OptionFlags & = {}, PlanningCache * = nullptr) {
  return matMulGrouped(graph, a.expand({0}), b.expand({0}), prog, kind).squeeze({0});
}
inline Tensor matMul(Graph &graph, const Tensor &a, const Tensor &b, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}, PlanningCache * = nullptr) {
  return matMul(graph, a, b, prog, a.type);
}
inline void matMulAcc(Graph &graph, const Tensor &c, float scale, const Tensor &a, const Tensor &b, Sequence &prog, const DebugContext & = {}, const OptionFlags & = {}, PlanningCache * = nullptr) {
  popops::scaledAddTo(graph, c, matMul(graph, a, b, prog, c.type), scale, prog);
}
inline Tensor createMatMulInputLHS(Graph &graph, const Type &kind, ArrayRef<std::size_t> first, ArrayRef<std::size_t>, const DebugContext & = {}, const OptionFlags & = {}, PlanningCache * = nullptr) {
  return graph.addVariable(kind, first);
}
inline Tensor createMatMulInputRHS(Graph &graph, const Type &kind, ArrayRef<std::size_t>, ArrayRef<std::size_t> second, const DebugContext & = {}, const OptionFlags & = {}, PlanningCache * = nullptr) {
  return graph.addVariable(kind, second);
}
}  // namespace poplin

namespace popnn {
using namespace poplar;
using poplar::program::Sequence;
enum class NonLinearityType { SIGMOID, HARD_SIGMOID, RELU, TANH, SOFTMAX, SOFTMAX_STABLE, SOFTMAX_SCALED, GELU, SWISH, GELU_ERF };
template <typename... A> void addCodelets(A &&...) {}
inline std::string nameOf(NonLinearityType type) {
  static const char *const names[] = {"SIGMOID", "HARD_SIGMOID", "RELU", "TANH", "SOFTMAX", "SOFTMAX", "SOFTMAX", "GELU", "SWISH", "GELU_ERF"};
  return ipuperf::json(names[int(type)]);
}
inline Tensor nonLinearity(Graph &graph, NonLinearityType type, const Tensor &in, Sequence &prog, const DebugContext & = {}) {
  auto out = graph.clone(in);
  prog.record(poplar::program::callStep("nonLinearity", {in}, {out}, nameOf(type)));
  return out;
}
inline void nonLinearityInPlace(Graph &, NonLinearityType type, const Tensor &in, Sequence &prog, const DebugContext & = {}) {
  prog.record(poplar::program::callStep("nonLinearity", {in}, {in}, nameOf(type)));
}
#define IPUPERF_ACTIVATION(name, TYPE)                                                                                 \
  inline Tensor name(Graph &graph, const Tensor &in, Sequence &prog, const DebugContext & = {}) {                      \
    return nonLinearity(graph, NonLinearityType::TYPE, in, prog);                                                      \
  }                                                                                                                    \
  inline void name##InPlace(Graph &graph, const Tensor &in, Sequence &prog, const DebugContext & = {}) {               \
    nonLinearityInPlace(graph, NonLinearityType::TYPE, in, prog);                                                      \
  }
IPUPERF_ACTIVATION(sigmoid, SIGMOID)
IPUPERF_ACTIVATION(relu, RELU)
IPUPERF_ACTIVATION(tanh, TANH)
IPUPERF_ACTIVATION(gelu, GELU)
IPUPERF_ACTIVATION(softmax, SOFTMAX)
}  // namespace popnn
