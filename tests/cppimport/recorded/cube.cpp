#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popops/ElementWise.hpp>

namespace pe = popops::expr;
namespace ids {
const popart::OperatorIdentifier Cube = {"com.acme", "Cube", 1};
const popart::OperatorIdentifier CubeGrad = {"com.acme", "CubeGrad", 1};
}
class CubeOp;
class CubeGradOp : public popart::Op {
public:
  CubeGradOp(const CubeOp &op);
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<CubeGradOp>(*this); }
  void setup() final { outInfo(0) = inInfo(0); }
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const final {
    static const std::vector<popart::GradInOutMapper> info = {{0, 0, popart::GradOpInType::GradOut}, {1, 0, popart::GradOpInType::In}};
    return info;
  }
  const std::map<int, int> &gradOutToNonGradIn() const final {
    static const std::map<int, int> info = {{0, 0}};
    return info;
  }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
  float scale;
};
class CubeOp : public popart::Op {
public:
  CubeOp(const popart::OperatorIdentifier &id, float s, const popart::Op::Settings &settings_) : popart::Op(id, settings_), scale(s) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<CubeOp>(*this); }
  void setup() final { if (inInfo(0).rank() == 0) throw popart::error("Cube: rank {} is too small", inInfo(0).rank()); outInfo(0) = inInfo(0); }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() final {
    std::vector<std::unique_ptr<popart::Op>> ops;
    ops.emplace_back(new CubeGradOp(*this));
    return ops;
  }
  void appendOutlineAttributes(popart::OpSerialiserBase &os) const override { Op::appendOutlineAttributes(os); os.appendAttribute("scale", scale); }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
  float scale;
};
CubeGradOp::CubeGradOp(const CubeOp &op) : popart::Op(ids::CubeGrad, op.getSettings()), scale(op.scale) {}
static popart::OpDefinition::DataTypes T = {popart::DataType::FLOAT16, popart::DataType::FLOAT};
static popart::OpDefinition def({popart::OpDefinition::Inputs({{"x", T}}), popart::OpDefinition::Outputs({{"y", T}}), popart::OpDefinition::Attributes({{"scale", {"*"}}})});
static popart::OpCreator<CubeOp> creator(popart::OpDefinitions({{ids::Cube, def}}), [](const popart::OpCreatorInfo &info) {
  float scale = info.attributes.getAttribute<popart::Attributes::Float>("scale", 1.0f);
  return std::unique_ptr<popart::Op>(new CubeOp(info.opid, scale, info.settings));
}, true);
class CubeOpx : public popart::popx::Opx {
public:
  CubeOpx(popart::Op *op, popart::popx::Devicex *devicex) : popart::popx::Opx(op, devicex) { verifyOp<CubeOp>(op, {ids::Cube}); }
  void grow(poplar::program::Sequence &prog) const final {
    auto scale = getOp<CubeOp>().scale;
    insert(outId(0), popops::map(graph(), pe::Mul(pe::Const(scale), pe::_1 * pe::_1 * pe::_1), {get(inId(0))}, prog, debugContext("cube")));
  }
};
class CubeGradOpx : public popart::popx::Opx {
public:
  CubeGradOpx(popart::Op *op, popart::popx::Devicex *devicex) : popart::popx::Opx(op, devicex) { verifyOp<CubeGradOp>(op, ids::CubeGrad); }
  void grow(poplar::program::Sequence &prog) const final {
    setOutTensor(0, popops::map(graph(), pe::_1 * pe::_2 * pe::_2 * (3 * getOp<CubeGradOp>().scale), {getInTensor(0), getInTensor(1)}, prog, debugContext("grad")));
  }
};
static popart::popx::OpxCreator<CubeOpx> opx({ids::Cube});
static popart::popx::OpxCreator<CubeGradOpx> gradOpx({ids::CubeGrad});
