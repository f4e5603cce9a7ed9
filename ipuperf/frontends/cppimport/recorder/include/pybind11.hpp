// pybind11's names for modules of ops: what a module exports is noted for Python's side.
#pragma once
#include "popart.hpp"

namespace pybind11 {
struct arg {
  const char *name;
  explicit arg(const char *text) : name(text) {}
  template <typename T> arg &operator=(const T &) { return *this; }
};
inline namespace literals {
inline arg operator""_a(const char *name, std::size_t) { return arg(name); }
}
enum class return_value_policy { automatic, reference, reference_internal, copy, move, take_ownership };
template <typename... A> struct init {
  template <typename... B> init(B &&...) {}
};
template <typename... A> struct overload {
  template <typename R> constexpr auto operator()(R (*function)(A...)) const { return function; }
  template <typename R, typename C> constexpr auto operator()(R (C::*function)(A...)) const { return function; }
  template <typename R, typename C> constexpr auto operator()(R (C::*function)(A...) const, std::true_type) const { return function; }
};
template <typename... A> static constexpr overload<A...> overload_cast{};
static constexpr std::true_type const_{};

class module_ {
public:
  template <typename... A> module_ &def(A &&...) { return *this; }
  const char *doc() { return ""; }
  template <typename T> void attr(T) {}
  static module_ import(const char *) { return {}; }
};
using module = module_;

// The arguments of a function that takes a graph, inputs, outputs, the op's own values and its settings.
template <typename T> std::decay_t<T> argument(popart::Request &request, std::size_t &next) {
  return request.values.at(next++).as<std::decay_t<T>>();
}
template <typename T> struct Argument {
  static std::decay_t<T> of(popart::Request &request, std::size_t &next) { return argument<T>(request, next); }
};
template <> struct Argument<popart::Graph &> {
  static popart::Graph &of(popart::Request &request, std::size_t &) { return request.graph; }
};
template <> struct Argument<const std::map<int, std::string> &> {
  static std::map<int, std::string> of(popart::Request &request, std::size_t &) { return request.nextMap(); }
};
template <> struct Argument<const popart::Op::Settings &> {
  static popart::Op::Settings of(popart::Request &request, std::size_t &) { return {request.graph, "op"}; }
};
template <> struct Argument<popart::Op::Settings> : Argument<const popart::Op::Settings &> {};

template <typename T, typename... Bases> class class_ {
  std::string name;

public:
  template <typename... A> class_(const module_ &, const char *text, A &&...) : name(text) {}
  template <typename F, typename... A> class_ &def(const char *, F &&, A &&...) { return *this; }
  template <typename... A> class_ &def(A &&...) { return *this; }
  template <typename... A> class_ &def_readwrite(A &&...) { return *this; }
  template <typename... A> class_ &def_readonly(A &&...) { return *this; }
  template <typename... A> class_ &def_property_readonly(A &&...) { return *this; }
  template <typename F, typename... A> class_ &def_static(const char *method, F function, const A &...extra) {
    exported(method, function, extra...);
    return *this;
  }

private:
  template <typename F, typename... A> void exported(const char *, F &, const A &...) {}
  template <typename R, typename... P, typename... A> void exported(const char *method, R *(*function)(P...), const A &...extra) {
    std::vector<std::string> names, values;
    (note(names, extra), ...);
    auto &entry = popart::bindings()[name + "." + method];
    std::size_t place = 0;
    ((isValue<P>() ? values.push_back(place < names.size() ? names[place] : "value" + std::to_string(place)) : void(), ++place), ...);
    entry.arguments = values;
    entry.make = [function](popart::Request &request) -> popart::Op * {
      std::size_t next = 0;
      // Braces fix the order in which arguments are read.
      std::tuple<decltype(Argument<P>::of(request, next))...> arguments{Argument<P>::of(request, next)...};
      return std::apply([&](auto &...each) -> popart::Op * { return function(each...); }, arguments);
    };
  }
  template <typename P> static constexpr bool isValue() {
    using D = std::decay_t<P>;
    return !(std::is_same<D, popart::Graph>::value || std::is_same<D, std::map<int, std::string>>::value || std::is_same<D, popart::Op::Settings>::value);
  }
  static void note(std::vector<std::string> &names, const arg &each) { names.push_back(each.name); }
  template <typename E> static void note(std::vector<std::string> &, const E &) {}
};
template <typename T> class enum_ {
public:
  template <typename... A> enum_(A &&...) {}
  template <typename... A> enum_ &value(A &&...) { return *this; }
  enum_ &export_values() { return *this; }
};
}  // namespace pybind11

#define PYBIND11_MODULE(name, variable)                                                                                \
  static void ipuperf_module_##name(pybind11::module_ &);                                                              \
  static const bool ipuperf_module_made_##name = [] {                                                                  \
    pybind11::module_ made;                                                                                            \
    ipuperf_module_##name(made);                                                                                       \
    return true;                                                                                                       \
  }();                                                                                                                 \
  static void ipuperf_module_##name(pybind11::module_ &variable)
