// What passes between Python and a recorded library: requests in, JSON out.
#pragma once
#include <stddef.h>

#include <array>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ipuperf {

// A value of a request: `i` whole number, `f` number, `s` text, `l` list.
struct Value {
  char kind = 'l';
  std::int64_t whole = 0;
  double number = 0;
  std::string text;
  std::vector<Value> items;

  static Value read(std::istream &in) {
    Value value;
    in >> value.kind;
    std::size_t count = 0;
    if (value.kind == 'i') {
      in >> value.whole;
      value.number = double(value.whole);
    } else if (value.kind == 'f') {
      std::string digits;  // streams do not read "inf"
      in >> digits;
      value.number = std::strtod(digits.c_str(), nullptr);
      value.whole = std::int64_t(value.number);
    } else if (value.kind == 's') {
      in >> count;
      in.get();
      value.text.resize(count);
      in.read(&value.text[0], std::streamsize(count));
    } else {
      in >> count;
      for (std::size_t i = 0; i < count; ++i) value.items.push_back(read(in));
    }
    return value;
  }

  const Value &operator[](std::size_t index) const { return items.at(index); }

  // The value as a type of C++.
  template <typename T> T as() const { return Cast<T>::of(*this); }

  template <typename T, typename = void> struct Cast;
};

template <typename T>
struct Value::Cast<T, std::enable_if_t<std::is_arithmetic<T>::value || std::is_enum<T>::value>> {
  static T of(const Value &value) {
    if (value.kind != 'i' && value.kind != 'f') throw std::invalid_argument("a number is needed");
    return std::is_floating_point<T>::value ? static_cast<T>(value.number) : static_cast<T>(value.whole);
  }
};
template <> struct Value::Cast<std::string> {
  static std::string of(const Value &value) {
    if (value.kind != 's') throw std::invalid_argument("a text is needed");
    return value.text;
  }
};
template <typename T> struct Value::Cast<std::vector<T>> {
  static std::vector<T> of(const Value &value) {
    std::vector<T> members;
    for (auto &item : value.items) members.push_back(item.as<T>());
    return members;
  }
};
template <typename K, typename T> struct Value::Cast<std::map<K, T>> {
  static std::map<K, T> of(const Value &value) {
    std::map<K, T> members;
    for (auto &item : value.items) members[item[0].as<K>()] = item[1].as<T>();
    return members;
  }
};

inline std::string quoted(const std::string &text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += char(c);
    } else if (c < 32) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += char(c);
    }
  }
  return out + "\"";
}

inline std::string json(const std::string &text) { return quoted(text); }
inline std::string json(const char *text) { return quoted(text); }
inline std::string json(bool value) { return value ? "true" : "false"; }
template <typename T, std::enable_if_t<std::is_integral<T>::value, int> = 0> std::string json(T value) {
  return std::to_string(value);
}
inline std::string json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  return digits;
}
inline std::string json(float value) { return json(double(value)); }
template <typename T> std::string json(const std::vector<T> &values) {
  std::string out = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value = values[i];
    out += (i ? "," : "") + json(value);
  }
  return out + "]";
}
// Text that is JSON already.
inline std::string listed(const std::vector<std::string> &parts) {
  std::string out = "[";
  for (std::size_t i = 0; i < parts.size(); ++i) out += (i ? "," : "") + parts[i];
  return out + "]";
}

// The tensors of the recording that is being made; their numbers are their places.
inline std::vector<std::string> &nodes() {
  static std::vector<std::string> all;
  return all;
}

// Errors and log lines put their arguments in place of {}.
inline void put(std::ostream &out, const char *form) { out << form; }
template <typename T, typename = void> struct Shown {
  static void show(std::ostream &out, const T &) { out << "?"; }
};
template <typename T>
struct Shown<T, std::void_t<decltype(std::declval<std::ostream &>() << std::declval<const T &>())>> {
  static void show(std::ostream &out, const T &value) { out << value; }
};
template <typename T, typename... Rest> void put(std::ostream &out, const char *form, const T &first, const Rest &...rest) {
  for (; *form; ++form) {
    if (form[0] == '{' && std::strchr(form, '}')) {
      Shown<T>::show(out, first);
      return put(out, std::strchr(form, '}') + 1, rest...);
    }
    out << *form;
  }
}
template <typename... Values> std::string formatted(const std::string &form, const Values &...values) {
  std::ostringstream out;
  put(out, form.c_str(), values...);
  return out.str();
}

}  // namespace ipuperf
