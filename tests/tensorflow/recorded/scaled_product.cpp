// A product times a number, which the attributes say, and its row sums; with gradients of both operands.
#include <poplar/Graph.hpp>
#include <poplin/MatMul.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Reduce.hpp>
#include <poputil/exceptions.hpp>

extern "C" {
int32_t custom_op_api_level = 5;

void Build_metadata(std::vector<std::int64_t> &, std::vector<std::int64_t> &, std::map<std::int64_t, std::int64_t> &,
                    bool &is_elementwise, bool &is_stateless, bool &is_hashable, std::uint32_t) {
  is_stateless = true;
}

poplar::program::Program Build(poplar::Graph &graph, const std::vector<poplar::Tensor> &inputs,
                               std::vector<poplar::Tensor> &outputs, const std::string &attributes,
                               const std::string &debug_prefix) {
  if (inputs.size() != 2) throw poputil::poplibs_error("two matrices are needed");
  poplar::program::Sequence prog;
  auto product = poplin::matMul(graph, inputs[0], inputs[1], prog, inputs[0].elementType(), debug_prefix + "/product");
  popops::mulInPlace(graph, product, std::stof(attributes), prog, {debug_prefix, "/scale"});
  outputs.push_back(product);
  outputs.push_back(popops::reduce(graph, product, {1}, {popops::Operation::ADD}, prog, debug_prefix));
  return prog;
}

poplar::program::Program Build_grad(poplar::Graph &graph, int number, const std::vector<poplar::Tensor> &gradients,
                                    const std::vector<poplar::Tensor> &inputs,
                                    const std::vector<poplar::Tensor> &results, std::vector<poplar::Tensor> &outputs,
                                    const std::string &attributes, const std::string &debug_prefix) {
  poplar::program::Sequence prog;
  auto scale = graph.addConstant<float>(gradients[0].elementType(), {}, std::stof(attributes));
  auto rows = gradients[1].expand({1}).broadcast(gradients[0].dim(1), 1);
  auto grad = popops::mul(graph, popops::add(graph, gradients[0], rows, prog), scale, prog);
  if (number == 0) outputs.push_back(poplin::matMul(graph, grad, inputs[1].transpose(), prog, grad.elementType()));
  else outputs.push_back(poplin::matMul(graph, inputs[0].transpose(), grad, prog, grad.elementType()));
  return prog;
}
}
