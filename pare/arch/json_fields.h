#pragma once
// Reading and writing plain structs as JSON from one description each.
// A struct's `describe(io, value)` names its fields once; JsonReader and JsonWriter both run it.

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pare/support/error.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"

namespace pare {

template <class E>
using Words = std::vector<std::pair<E, const char*>>;  // specialised through words(E) for every enumeration

template <class E>
const char* word_of(E value) {
  for (const auto& [enumerator, text] : words(E{})) {
    if (enumerator == value) {
      return text;
    }
  }
  PARE_UNREACHABLE("an enumerator without a word");
}

class JsonReader {
 public:
  // `problems`: what cannot be read; `contradictions`: what can, and does not fit together.
  JsonReader(const nlohmann::json& json, std::string path, Problems& problems, Problems& contradictions)
      : json_(json), path_(std::move(path)), problems_(problems), contradictions_(contradictions) {}

  template <class T>
  void required(const char* key, T& value) {
    if (const nlohmann::json* found = find(key); found) {
      read(*found, at(key), value);
    } else {
      problems_.add(at(key) + ": is required");
    }
  }
  template <class T>
  void optional(const char* key, T& value, T fallback) {
    value = std::move(fallback);
    if (const nlohmann::json* found = find(key); found) {
      read(*found, at(key), value);
    }
  }
  template <class T>
  void nullable(const char* key, std::optional<T>& value) {
    value.reset();
    if (const nlohmann::json* found = find(key); found && !found->is_null()) {
      read(*found, at(key), value.emplace());
    }
  }
  // The field of a value that is one of several kinds, once the kind is known.
  template <class Kind, class Variant>
  Kind& chosen(Variant& value) {
    return value.template emplace<Kind>();
  }
  // What the fields say does not fit together.
  void contradiction(const std::string& key, const std::string& text) { contradictions_.add(at(key) + ": " + text); }
  // Names every key of the object that no field asked for.
  void finish() {
    for (const auto& [key, value] : json_.items()) {
      if (known_.contains(key)) {
        continue;
      }
      problems_.add(at(key) + ": unknown key" +
                    did_you_mean(key, {known_.begin(), known_.end()}, " (did you mean '{}'?)"));
    }
  }

  template <class T>
  void read(const nlohmann::json& json, const std::string& path, T& value);

 private:
  const nlohmann::json* find(const char* key) {
    known_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  std::string at(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  void wrong(const std::string& path, const nlohmann::json& found, const std::string& expected) {
    std::string text = found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (text.size() > 40) {
      text = text.substr(0, 37) + "...";
    }
    problems_.add(fmt::format("{}{} is not {}", path.empty() ? "" : path + ": ", text, expected));
  }

  const nlohmann::json& json_;
  std::string path_;
  Problems& problems_;
  Problems& contradictions_;
  std::set<std::string> known_;
};

class JsonWriter {
 public:
  template <class T>
  void required(const char* key, T& value) {
    json[key] = write(value);
  }
  template <class T>
  void optional(const char* key, T& value, const T&) {
    json[key] = write(value);
  }
  template <class T>
  void nullable(const char* key, std::optional<T>& value) {
    json[key] = value ? write(*value) : nlohmann::ordered_json(nullptr);
  }
  template <class Kind, class Variant>
  Kind& chosen(Variant& value) {
    return std::get<Kind>(value);
  }
  void contradiction(const std::string&, const std::string&) { PARE_UNREACHABLE("a value that cannot be written"); }
  void finish() {}

  template <class T>
  static nlohmann::ordered_json write(T& value);

  nlohmann::ordered_json json = nlohmann::ordered_json::object();
};

template <class T>
void JsonReader::read(const nlohmann::json& json, const std::string& path, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    json.is_boolean() ? void(value = json.get<bool>()) : wrong(path, json, "true or false");
  } else if constexpr (std::is_same_v<T, int64_t>) {
    const bool fits = json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= INT64_MAX);
    fits ? void(value = json.get<int64_t>()) : wrong(path, json, "a whole number");
  } else if constexpr (std::is_same_v<T, double>) {
    json.is_number() && std::isfinite(json.get<double>()) ? void(value = json.get<double>())
                                                          : wrong(path, json, "a finite number");
  } else if constexpr (std::is_same_v<T, std::string>) {
    json.is_string() ? void(value = json.get<std::string>()) : wrong(path, json, "a string");
  } else if constexpr (std::is_enum_v<T>) {
    std::string choices;
    for (const auto& [enumerator, text] : words(T{})) {
      if (json.is_string() && json.get_ref<const std::string&>() == text) {
        value = enumerator;
        return;
      }
      choices += (choices.empty() ? "" : ", ") + std::string(text);
    }
    wrong(path, json, "one of " + choices);
  } else if constexpr (requires { typename T::value_type; }) {
    value.clear();
    if (std::is_same_v<T, std::vector<std::string>> && json.is_string()) {  // one of them
      return read(json, path, value.emplace_back());
    }
    if (!json.is_array()) {
      return wrong(path, json, "a list");
    }
    for (size_t i = 0; i < json.size(); ++i) {
      read(json[i], fmt::format("{}[{}]", path, i), value.emplace_back());
    }
  } else if constexpr (requires { read_special(json, value); }) {
    if (const std::string expected = read_special(json, value); !expected.empty()) {
      wrong(path, json, expected);
    }
  } else {
    if (!json.is_object()) {
      return wrong(path, json, "an object");
    }
    JsonReader inner(json, path, problems_, contradictions_);
    describe(inner, value);
    inner.finish();
  }
}

template <class T>
nlohmann::ordered_json JsonWriter::write(T& value) {
  if constexpr (std::is_enum_v<T>) {
    return word_of(value);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (requires { typename T::value_type; }) {
    return mapped(value, [](auto& item) { return write(item); });
  } else if constexpr (requires { write_special(value); }) {
    return write_special(value);
  } else {
    JsonWriter inner;
    describe(inner, value);
    return std::move(inner.json);
  }
}

}  // namespace pare
