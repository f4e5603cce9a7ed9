// Pairs of halves of the last axis, turned by an angle; `back` turns them back.
#pragma once
#include <popart/graph.hpp>
#include <popart/op.hpp>

namespace turn {
const popart::OperatorIdentifier Turn = popart::OperatorIdentifier{"test.ops", "Turn", 1, {3, 3}, 1};
const popart::OperatorIdentifier TurnBack = popart::OperatorIdentifier{"test.ops", "TurnBack", 1, {3, 3}, 1};

class TurnOp : public popart::Op {
public:
  TurnOp(const popart::OperatorIdentifier &id, float factor, bool back, const Settings &how)
      : popart::Op(id, how), factor(factor), back(back) {}
  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<TurnOp>(*this); }
  void setup() final { outInfo(0) = inInfo(0); }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override;
  static TurnOp *createOpInGraph(popart::Graph &graph, const std::map<popart::InIndex, popart::TensorId> &in,
                                 const std::map<popart::OutIndex, popart::TensorId> &out, float factor, bool back,
                                 const popart::Op::Settings &settings) {
    return graph.createConnectedOp<TurnOp>(in, out, Turn, factor, back, settings);
  }
  float factor;
  bool back;
};

class TurnBackOp : public TurnOp {
public:
  TurnBackOp(const TurnOp &op) : TurnOp(TurnBack, op.factor, !op.back, op.getSettings()) {}
  const std::vector<popart::GradInOutMapper> &gradInputInfo() const final {
    static const std::vector<popart::GradInOutMapper> info = {
        {0, 0, popart::GradOpInType::GradOut}, {1, 1, popart::GradOpInType::In}, {2, 2, popart::GradOpInType::In}};
    return info;
  }
  const std::map<int, int> &gradOutToNonGradIn() const final {
    static const std::map<int, int> info = {{0, 0}};
    return info;
  }
};
inline std::vector<std::unique_ptr<popart::Op>> TurnOp::getGradOps() {
  std::vector<std::unique_ptr<popart::Op>> ops;
  ops.push_back(std::make_unique<TurnBackOp>(*this));
  return ops;
}
}  // namespace turn
