// cppimport
#include "turn.hpp"
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

PYBIND11_MODULE(turn_binding, m) {
  py::class_<turn::TurnOp, popart::Op, std::shared_ptr<turn::TurnOp>> binding(m, "TurnOp");
  binding.def_static("createOpInGraph", &turn::TurnOp::createOpInGraph, py::arg("graph"), py::arg("inputs"),
                     py::arg("outputs"), py::arg("factor"), py::arg("back") = false, py::arg("settings"),
                     py::return_value_policy::reference);
  binding.def("outTensor", py::overload_cast<int>(&turn::TurnOp::outTensor), py::return_value_policy::reference);
}
/*
<%
cfg['sources'] = ['turn_opx.cpp']
cfg['libraries'] = ['popart', 'popops']
setup_pybind11(cfg)
%>
*/
