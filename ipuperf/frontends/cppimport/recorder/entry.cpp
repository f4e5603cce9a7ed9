// The functions of a recorded library that Python calls.
#include "popart.hpp"

namespace ipuperf_entry {
using namespace ipuperf;
using poplar::Tensor;
using Tensors = std::vector<Tensor>;
using poplar::program::Program;

inline Tensors inputs(const Value &specs, std::size_t first = 0) {
  Tensors tensors;
  for (auto &spec : specs.items)
    tensors.emplace_back("input", std::vector<int>{}, spec[0].as<std::vector<std::size_t>>(), poplar::typeNamed(spec[1].text), json(first++));
  return tensors;
}

inline std::string recording(const Tensors &results, const std::vector<std::string> &steps, const std::string &name, const std::string &gradients) {
  std::vector<int> numbers;
  for (auto &each : results) {
    if (!each.valid()) throw popart::error("{}: a result has no tensor", name);
    numbers.push_back(each.number);
  }
  return "{\"type\":" + json(name) + ",\"nodes\":" + listed(nodes()) + ",\"steps\":" + listed(steps) +
         ",\"results\":" + json(numbers) + ",\"gradients\":" + gradients + "}";
}

inline void connect(popart::Op &op, const Value &specs) {
  for (std::size_t i = 0; i < specs.items.size(); ++i)
    op.connectIn(int(i), "in" + std::to_string(i), popart::TensorInfo::of(specs[i]));
}

// Which tensors of an op each of its gradient ops reads, and whose gradients it gives.
inline std::string gradientsOf(popart::Op &op) {
  std::vector<std::string> all;
  for (auto &gradient : op.getGradOps()) {
    std::vector<std::string> reads, gives;
    for (auto &each : gradient->gradInputInfo())
      reads.push_back(listed({json(each.iGrad), json(each.iNonGrad), json(int(each.type))}));
    for (auto &pair : gradient->gradOutToNonGradIn()) gives.push_back(listed({json(pair.first), json(pair.second)}));
    all.push_back(listed({json(gradient->opid.type), listed(reads), listed(gives)}));
  }
  return listed(all);
}

inline std::string recordOp(const Value &request) {
  using namespace popart;
  Request made;
  const auto &specs = request[3], &values = request[2];
  for (std::size_t i = 0; i < specs.items.size(); ++i) made.graph.known["in" + std::to_string(i)] = TensorInfo::of(specs[i]);
  std::unique_ptr<Op> owned;
  Op *op = nullptr;
  if (request[0].text == "op") {
    OperatorIdentifier id(request[1][0].text, request[1][1].text, OpVersion(request[1][2].whole));
    auto creator = creators().find(id);
    if (creator == creators().end()) throw error("the library has no op {}", id);
    Attributes attributes;
    for (auto &pair : values.items) attributes.values[pair[0].text] = pair[1];
    Op::Settings settings(made.graph, id.type);
    OpCreatorInfo info{creator->first, settings, attributes, {}, {}};
    for (std::size_t i = 0; i < specs.items.size(); ++i) info.inputs.push_back("in" + std::to_string(i));
    owned = creator->second(info);
    op = owned.get();
    connect(*op, specs);
    op->setup();
  } else {
    std::map<int, std::string> in, out;
    for (std::size_t i = 0; i < specs.items.size(); ++i) in[int(i)] = "in" + std::to_string(i);
    for (int i = 0; i < int(request[1][1].whole); ++i) out[i] = "out" + std::to_string(i);
    made.maps = {in, out};
    for (auto &pair : values.items) made.values.push_back(pair[1]);
    op = bindings().at(request[1][0].text).make(made);
  }
  const Value *read = &specs;
  for (auto &level : request[4].items) {
    auto gradients = op->getGradOps();
    auto next = std::move(gradients.at(std::size_t(level[0].whole)));
    read = &level.items[1];
    connect(*next, *read);
    next->setup();
    owned.swap(next);
    op = owned.get();
  }
  auto creator = popx::opxCreators().find(op->opid);
  if (creator == popx::opxCreators().end()) throw error("no Opx is registered for {}", op->opid);
  popx::Devicex device;
  auto opx = creator->second(op, &device);
  auto tensors = inputs(*read);
  for (std::size_t i = 0; i < tensors.size(); ++i) opx->tensors["in" + std::to_string(i)] = tensors[i];
  poplar::program::Sequence prog;
  opx->grow(prog);
  Tensors results;
  for (auto &pair : op->output->tensors_) {
    auto place = opx->tensors.find(pair.second->id);
    if (place == opx->tensors.end()) throw error("grow() sets no output {}", pair.first);
    const auto &info = pair.second->info;
    if (place->second.shape() != info.shape_szt() || place->second.type.name != info.name())
      throw error("output {} is {}{}, and setup() says {}", pair.first, place->second.type, place->second.shapeToString(), info);
    results.push_back(place->second);
  }
  return recording(results, prog.steps, op->opid.type, gradientsOf(*op));
}

// TensorFlow's functions, whose addresses Python looks up.
inline std::string recordBuild(const Value &request) {
  poplar::Graph graph;
  auto address = reinterpret_cast<void *>(request[1][0].whole);
  const auto &name = request[1][1].text, &attributes = request[2].text;
  Tensors results;
  if (request[0].text == "build") {
    using Build = Program (*)(poplar::Graph &, const Tensors &, Tensors &, const std::string &, const std::string &);
    auto in = inputs(request[3]);
    auto prog = reinterpret_cast<Build>(address)(graph, in, results, attributes, name);
    return recording(results, prog.steps, name, "[]");
  }
  using Grad = Program (*)(poplar::Graph &, int, const Tensors &, const Tensors &, const Tensors &, Tensors &, const std::string &, const std::string &);
  std::vector<Tensors> groups;
  std::size_t first = 0;
  for (auto &group : request[3].items) {
    groups.push_back(inputs(group, first));
    first += group.items.size();
  }
  auto prog = reinterpret_cast<Grad>(address)(graph, int(request[1][2].whole), groups[0], groups[1], groups[2], results, attributes, name);
  return recording(results, prog.steps, name, "[]");
}
}  // namespace ipuperf_entry

static popart::popx::OpxCreator<popart::popx::IdentityGradOpx> ipuperf_identity({popart::Domain::ai_graphcore, "IdentityGrad", 1});

extern "C" const char *ipuperf_record(const char *text, std::size_t size) {
  using namespace ipuperf_entry;
  static std::string answer;
  nodes().clear();
  poplar::computeSets().clear();
  try {
    std::istringstream in(std::string(text, size));
    auto request = Value::read(in);
    bool op = request[0].text == "op" || request[0].text == "binding";
    answer = op ? recordOp(request) : recordBuild(request);
  } catch (const std::exception &problem) {
    answer = "{\"error\":" + json(problem.what()) + "}";
  }
  return answer.c_str();
}

extern "C" const char *ipuperf_contents() {
  using namespace ipuperf;
  static std::string answer;
  std::vector<std::string> ops, classes;
  for (auto &pair : popart::creators())
    ops.push_back(listed({json(pair.first.type), json(pair.first.domain), json(pair.first.version)}));
  for (auto &pair : popart::bindings())
    classes.push_back(listed({json(pair.first), json(pair.second.arguments)}));
  answer = "{\"ops\":" + listed(ops) + ",\"bindings\":" + listed(classes) + "}";
  return answer.c_str();
}
