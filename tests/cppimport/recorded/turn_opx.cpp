#include "turn.hpp"
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popops/ElementWise.hpp>

namespace pe = popops::expr;

namespace turn {
class TurnOpx : public popart::popx::Opx {
public:
  TurnOpx(popart::Op *op, popart::popx::Devicex *device) : popart::popx::Opx(op, device) {
    verifyOp<TurnOp>(op, {Turn, TurnBack});
  }
  void grow(poplar::program::Sequence &prog) const final {
    auto &op = getOp<TurnOp>();
    auto x = getInTensor(0), sin = getInTensor(1), cos = getInTensor(2);
    auto last = x.rank() - 1, half = x.dim(last) / 2;
    auto a = x.slice(0, half, last), b = x.slice({half, 2 * half}, last);
    auto sign = op.back ? -1.0f : 1.0f;
    auto y1 = popops::map(graph(), pe::_1 * pe::_4 - pe::Const(sign) * pe::_2 * pe::_3, {a, b, sin, cos}, prog);
    auto y2 = popops::map(graph(), pe::_2 * pe::_4 + pe::Const(sign) * pe::_1 * pe::_3, {a, b, sin, cos}, prog);
    auto y = graph().clone(x);
    // The halves are written through views of the result.
    prog.add(poplar::program::Copy(poplar::concat({y1, y2}, last), y));
    popops::mulInPlace(graph(), y.reshape({y.numElements()}), op.factor, prog, debugContext("factor"));
    setOutTensor(0, y);
  }
};
static popart::popx::OpxCreator<TurnOpx> opx({Turn, TurnBack});
}  // namespace turn
