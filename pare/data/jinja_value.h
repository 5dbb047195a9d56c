#pragma once
// What a chat template computes with: Python's values, as far as templates meet them. Lists and dicts never change, as
// in the sandbox of transformers; only namespaces do.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace pare::jinja {

// What is wrong while a template runs. The evaluator adds file and line, and makes it an InputError.
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void complain(fmt::format_string<Args...> text, Args&&... args) {
  throw Problem(fmt::format(text, std::forward<Args>(args)...));
}

// Of Python or Jinja, but not of ours: refused, so that no text is ever wrong.
template <class... Args>
[[noreturn]] void lacking(fmt::format_string<Args...> text, Args&&... args) {
  throw Problem(fmt::format(text, std::forward<Args>(args)...) + ": pare does not support this in a template");
}

// A template comes with a model, from anywhere: all that it does is paid for, so that it ends.
class StepBudget {
 public:
  explicit StepBudget(int64_t steps) : left_(steps) {}
  void pay(size_t steps = 1) {
    left_ -= static_cast<int64_t>(std::min<size_t>(steps, INT32_MAX));
    if (left_ < 0) {
      complain("the template does not come to an end: expected at most some million steps");
    }
  }
  // For text that is made, or walked through.
  void pay_bytes(size_t bytes) { pay(1 + bytes / 64); }

 private:
  int64_t left_;
};

class Value;
struct Dict;
struct Namespace;
class Loop;
struct Function;

struct Undefined {
  std::string name;  // for messages
};
struct None {
  bool operator==(const None&) const = default;
};
struct Text {
  std::shared_ptr<const std::string> text;
  bool safe = false;  // Markup: `+` escapes what is added to it
};

enum class Flavour { list, tuple, range, keys, values, items };
struct Sequence {
  Flavour flavour = Flavour::list;
  std::vector<Value> items;
  int depth = 0;
};
// What may be walked through once, as what `map` and `select` hand back.
struct Generator {
  std::vector<Value> items;
  size_t next = 0;
  int depth = 0;
};

// Namespaces, loops and functions belong to the evaluator: what refers to itself would never go away.
class Value {
 public:
  using Content =
      std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const Sequence>,
                   std::shared_ptr<const Dict>, std::shared_ptr<Generator>, Namespace*, Loop*, const Function*>;

  Value() = default;  // undefined
  Value(Content content) : content_(std::move(content)) {}
  static Value none() { return Value(Content(None())); }
  static Value text(std::string text, bool safe = false);
  static Value list(std::vector<Value> items, Flavour flavour = Flavour::list);
  static Value generator(std::vector<Value> items);
  static Value dict(Dict entries);
  static Value undefined(std::string name) { return Value(Content(Undefined{std::move(name)})); }
  static Value from_json(const nlohmann::ordered_json& json);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&content_);
  }
  const Content& content() const { return content_; }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  const std::string* string() const;  // of a text
  const Sequence* sequence() const;   // of any flavour
  const Dict* dict() const;
  bool is_safe() const;
  std::optional<int64_t> integer() const;  // of an int or a bool
  std::optional<double> number() const;    // of any number
  std::string type() const;                // as Python names it, for messages
  int depth() const;

 private:
  Content content_;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  int depth = 0;

  const Value* find(const Value& key, StepBudget& budget) const;
  void set(Value key, Value value, StepBudget& budget);  // while it is made

 private:
  std::unordered_map<std::string, size_t> places_;
};

bool truth(const Value& value);
bool equal(const Value& a, const Value& b, StepBudget& budget);
bool less(const Value& a, const Value& b, StepBudget& budget);  // Problem where Python has no order
bool contains(const Value& container, const Value& item, StepBudget& budget);

std::string str(const Value& value, StepBudget& budget);   // as {{ }} prints it
std::string repr(const Value& value, StepBudget& budget);  // as it is printed within a list
std::string number_text(double number);

// All items of what can be iterated; Problem where it cannot. A generator is empty afterwards.
std::vector<Value> items_of(const Value& value, StepBudget& budget);
bool is_iterable(const Value& value);
int64_t length_of(const Value& value, StepBudget& budget);

// Where a text begins in another, at `from` or later, or for the last time; npos: nowhere.
size_t find_text(std::string_view text, std::string_view wanted, size_t from, StepBudget& budget);
size_t find_last_text(std::string_view text, std::string_view wanted, StepBudget& budget);

struct JsonStyle {
  bool ascii = false, sorted = false;
  std::optional<std::string> indent;
  std::string between = ", ", after_key = ": ";
};
std::string json_of(const Value& value, const JsonStyle& style, StepBudget& budget);

bool is_space(char32_t point);  // by Python
std::string_view stripped(std::string_view text, bool left, bool right);

}  // namespace pare::jinja
