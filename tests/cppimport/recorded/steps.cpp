// One call of PopLibs, or a few, for each name; tests compare them with NumPy.
#include <poplar/Graph.hpp>
#include <poplin/MatMul.hpp>
#include <popnn/NonLinearity.hpp>
#include <popops/Cast.hpp>
#include <popops/DynamicSlice.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Gather.hpp>
#include <popops/Reduce.hpp>
#include <popops/ScaledAdd.hpp>
#include <popops/Zero.hpp>
#include <poputil/Broadcast.hpp>
#include <poputil/TileMapping.hpp>

namespace pe = popops::expr;
using poplar::Tensor;
using poplar::program::Copy;
using poplar::program::Sequence;

extern "C" poplar::program::Program Build(poplar::Graph &graph, const std::vector<Tensor> &in, std::vector<Tensor> &out,
                                          const std::string &name, const std::string &debug) {
  Sequence prog;
  const auto &x = in[0];
  const Tensor &y = in.size() > 1 ? in[1] : in[0];
  auto result = [&](const Tensor &tensor) { out.push_back(tensor); };
  if (name == "select") {
    auto negative = pe::Lt(pe::_1, pe::Const(0.0f));
    result(popops::map(graph, pe::Select(pe::Mul(pe::Const(0.1f), pe::_1), pe::_1, negative), {x}, prog, "select"));
    result(popops::lt(graph, x, y, prog));
    result(popops::map(graph, pe::Clamp(pe::_1, pe::Const(-0.5f), pe::Const(0.5f)), {x}, prog));
  } else if (name == "in place") {
    popops::mapInPlace(graph, pe::Abs(pe::_1) + 1, {x}, prog, debug);
    result(x);
  } else if (name == "views") {
    auto v = graph.addVariable(x.elementType(), {4, 6}, {debug, "v"});
    poputil::mapTensorLinearly(graph, v);
    popops::zero(graph, v, prog, debug);
    prog.add(Copy(x.slice({0, 0}, {2, 3}), v.slice({1, 2}, {3, 5})));
    prog.add(Copy(x[3].subSample(2, 0), v.dimShuffle({1, 0}).slice(0, 3, 0)[1].slice(0, 3)));
    prog.add(Copy(x.slice(0, 2, 1), poplar::concat({v.slice(0, 2, 1).reverse(0), v.slice(0, 2, 1).reverse(0)}, 0).slice(4, 8)));
    popops::mulInPlace(graph, v.flatten().slice(20, 24), 2.0f, prog);
    result(v);
    result(x.transpose().expand({1}).broadcast(3, 1));
  } else if (name == "reduce") {
    auto scale = graph.addConstant<float>(poplar::FLOAT, {}, 0.5f);
    auto into = popops::reduce(graph, x, {0}, {popops::Operation::ADD, false, scale}, prog, debug);
    popops::reduceWithOutput(graph, x, into, {0}, {popops::Operation::ADD, true}, prog, debug);
    result(into);
    result(popops::reduce(graph, x, poplar::FLOAT, {1}, popops::Operation::SQUARE_ADD, prog));
    result(popops::reduce(graph, x, {0, 1}, {popops::Operation::MAX}, prog));
  } else if (name == "types") {
    auto whole = popops::cast(graph, x, poplar::INT, prog);
    result(whole);
    result(popops::div(graph, whole, graph.addConstant(poplar::INT, {1}, 2), prog));
    result(popops::rem(graph, whole, 2, prog));
    result(x.reinterpret(poplar::INT));
    result(popops::map(graph, pe::Cast(pe::_1 > pe::_2, poplar::FLOAT), {x, y}, prog));
  } else if (name == "sums") {
    auto sum = poputil::duplicate(graph, x, prog);
    popops::scaledAddTo(graph, sum, y, 0.25f, prog);
    popops::scaledSubtractFrom(graph, sum, y, graph.addConstant(poplar::FLOAT, {1}, 2.0f), prog);
    prog.add(poplar::program::Repeat(3, Sequence({Copy(popops::add(graph, sum, 1.0f, prog), sum)})));
    result(sum);
  } else if (name == "activations") {
    result(popnn::nonLinearity(graph, popnn::NonLinearityType::GELU, x, prog));
    result(popnn::nonLinearity(graph, popnn::NonLinearityType::SOFTMAX, x, prog, {debug}));
    result(popops::tanh(graph, x, prog));
  } else if (name == "products") {
    result(poplin::matMul(graph, x, y.transpose(), prog, poplar::FLOAT, debug, {{"partialsType", "float"}}));
    auto grouped = poplin::matMulGrouped(graph, x.expand({0}), y.transpose().expand({0}), prog, poplar::FLOAT);
    Tensor a = y.slice(0, 1), b = x;
    poputil::broadcastToMatch(a, b);
    result(popops::map(graph, pe::Sub(pe::_1, pe::_2), {a, b}, prog, {debug, "difference"}));
    result(grouped[0]);
  } else if (name == "rows") {
    auto places = popops::cast(graph, y, poplar::UNSIGNED_INT, prog);
    result(popops::gather(graph, x, places, 1, prog, popops::GatherParams{}));
    auto table = graph.clone(x);
    prog.add(Copy(x, table));
    auto one = graph.addConstant(x.elementType(), {}, 1.0f);
    auto rows = popops::multiSlice(graph, x, places.expand({1}), {0}, {1}, prog, popops::SlicePlan(), {}, debug);
    popops::multiUpdateAdd(graph, table, rows, places.expand({1}), one, {0}, {1}, prog, popops::SlicePlan(), {}, debug);
    result(table);
  } else if (name == "program") {
    prog.add(poplar::program::If(x, Sequence(), Sequence()));
  } else {
    throw poputil::poplibs_error("no such name: " + name);
  }
  return prog;
}
