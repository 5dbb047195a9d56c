// Operators, attributes and items of values, and loops.

#include <cmath>

#include "pare/data/jinja_evaluator.h"
#include "pare/data/utf8.h"

namespace pare::jinja {

namespace {

Value item_at(const std::vector<Value>& items, int64_t at) {
  const int64_t size = std::ssize(items), place = at < 0 ? at + size : at;
  return place < 0 || place >= size ? Value::undefined(fmt::format("item {}", at)) : items[static_cast<size_t>(place)];
}

bool is_indexed(const Sequence& sequence) {
  return sequence.flavour == Flavour::list || sequence.flavour == Flavour::tuple || sequence.flavour == Flavour::range;
}

// By reference: what computes the result is an argument too, and nobody says which of the two comes first.
int64_t checked(bool overflow, const int64_t& result) {
  if (overflow) {
    lacking("a whole number of more than 64 bits");
  }
  return result;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t n = 0; n < exponent && result != 0 && !(base == 1); ++n) {
    if (base == -1) {
      return exponent % 2 == 0 ? 1 : -1;
    }
    int64_t next = 0;
    result = checked(__builtin_mul_overflow(result, base, &next), next);
  }
  return result;
}

Value whole_arithmetic(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    return Value(checked(__builtin_add_overflow(a, b, &result), result));
  }
  if (op == "-") {
    return Value(checked(__builtin_sub_overflow(a, b, &result), result));
  }
  if (op == "*") {
    return Value(checked(__builtin_mul_overflow(a, b, &result), result));
  }
  if (op == "**") {
    return b >= 0 ? Value(power(a, b)) : Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  if (b == 0) {
    complain("a division by zero");
  }
  if (op == "/") {
    if (std::abs(static_cast<double>(a)) > 9e15 || std::abs(static_cast<double>(b)) > 9e15) {
      lacking("a quotient of numbers so large");
    }
    return Value(static_cast<double>(a) / static_cast<double>(b));
  }
  checked(b == -1 && a == INT64_MIN, 0);
  const int64_t rest = a % b, up = rest != 0 && (rest < 0) != (b < 0) ? 1 : 0;
  return op == "//" ? Value(a / b - up) : Value(rest + up * b);
}

Value real_arithmetic(const std::string& op, double a, double b) {
  if (op == "+" || op == "-" || op == "*") {
    return Value(op == "+" ? a + b : op == "-" ? a - b : a * b);
  }
  if (op == "**") {
    const double result = std::pow(a, b);
    if (std::isnan(result) || (std::isinf(result) && !std::isinf(a) && !std::isinf(b))) {
      complain("{} ** {} is no number", a, b);
    }
    return Value(result);
  }
  if (b == 0) {
    complain("a division by zero");
  }
  if (op == "/") {
    return Value(a / b);
  }
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
  }
  if (op == "%") {
    return Value(rest == 0 ? std::copysign(0.0, b) : rest);
  }
  const double quotient = (a - rest) / b;
  const double floor = std::floor(quotient);
  return Value(quotient - floor > 0.5 ? floor + 1 : quotient == 0 ? std::copysign(0.0, a / b) : floor);
}

std::string escaped_for_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    static constexpr std::string_view special = "&<>'\"";
    static const char* const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t known = special.find(c);
    out += known == special.npos ? std::string(1, c) : names[known];
  }
  return out;
}

Value repeated(const Value& what, int64_t times, StepBudget& budget) {
  times = std::max<int64_t>(times, 0);
  if (const std::string* text = what.string(); text != nullptr && !what.is_safe()) {
    budget.pay_bytes(std::min<size_t>(text->size(), 1 << 30) * static_cast<size_t>(std::min<int64_t>(times, 1 << 30)));
    std::string out;
    for (int64_t n = 0; n < times && !text->empty(); ++n) {
      out += *text;
    }
    return Value::text(std::move(out));
  }
  const Sequence* sequence = what.sequence();
  if (sequence != nullptr && (sequence->flavour == Flavour::list || sequence->flavour == Flavour::tuple)) {
    budget.pay(std::min<size_t>(sequence->items.size(), 1 << 30) *
               static_cast<size_t>(std::min<int64_t>(times, 1 << 30)));
    std::vector<Value> out;
    for (int64_t n = 0; n < times && !sequence->items.empty(); ++n) {
      out.insert(out.end(), sequence->items.begin(), sequence->items.end());
    }
    return Value::list(std::move(out), sequence->flavour);
  }
  lacking("{} times a number", what.type());
}

Value sum(const Value& a, const Value& b, StepBudget& budget) {
  if (a.string() != nullptr && b.string() != nullptr) {
    const bool safe = a.is_safe() || b.is_safe();
    const auto part = [safe](const Value& v) {
      return safe && !v.is_safe() ? escaped_for_html(*v.string()) : *v.string();
    };
    std::string text = part(a) + part(b);
    budget.pay_bytes(text.size());
    return Value::text(std::move(text), safe);
  }
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (x != nullptr && y != nullptr && x->flavour == y->flavour &&
      (x->flavour == Flavour::list || x->flavour == Flavour::tuple)) {
    std::vector<Value> items = x->items;
    items.insert(items.end(), y->items.begin(), y->items.end());
    budget.pay(items.size());
    return Value::list(std::move(items), x->flavour);
  }
  complain("{} + {} is not possible", a.type(), b.type());
}

}  // namespace

Value arithmetic(const std::string& op, const Value& a, const Value& b, StepBudget& budget) {
  for (const Value* each : {&a, &b}) {
    if (each->is_undefined()) {
      complain("'{}' is undefined", each->as<Undefined>()->name);
    }
  }
  if (a.integer() && b.integer()) {
    return whole_arithmetic(op, *a.integer(), *b.integer());
  }
  if (a.number() && b.number()) {
    return real_arithmetic(op, *a.number(), *b.number());
  }
  if (op == "+") {
    return sum(a, b, budget);
  }
  if (op == "*" && b.integer()) {
    return repeated(a, *b.integer(), budget);
  }
  if (op == "*" && a.integer()) {
    return repeated(b, *a.integer(), budget);
  }
  if (op == "%" && a.string() != nullptr) {
    lacking("a string % values");
  }
  complain("{} {} {} is not possible", a.type(), op, b.type());
}

// ---- loops

Loop::Loop(std::vector<Value> items, std::function<bool(const Value&)> wanted)
    : items_(std::move(items)), wanted_(std::move(wanted)) {}

std::optional<Value> Loop::pull() {
  while (next_ < items_.size()) {
    const Value& item = items_[next_++];
    if (!wanted_ || wanted_(item)) {
      return item;
    }
  }
  return std::nullopt;
}

const std::optional<Value>& Loop::peek() {
  if (!std::exchange(peeked_, true)) {
    after_ = pull();
  }
  return after_;
}

bool Loop::advance() {
  std::optional<Value> next = peek();
  peeked_ = false;
  if (!next) {
    return false;
  }
  ++index_;
  before_ = std::move(current_);
  current_ = std::move(next);
  return true;
}

// All that is left is asked for, as jinja2 does.
int64_t Loop::length() {
  peek();
  if (wanted_) {
    std::vector<Value> rest;
    while (std::optional<Value> item = pull()) {
      rest.push_back(std::move(*item));
    }
    items_ = std::move(rest);
    next_ = 0;
    wanted_ = nullptr;
  }
  return index_ + 1 + (after_ ? 1 : 0) + std::ssize(items_) - static_cast<int64_t>(next_);
}

Value Loop::attribute(const std::string& name) {
  if (name == "index" || name == "index0") {
    return Value(index_ + (name == "index" ? 1 : 0));
  }
  if (name == "first") {
    return Value(index_ == 0);
  }
  if (name == "last") {
    return Value(!peek().has_value());
  }
  if (name == "length") {
    return Value(length());
  }
  if (name == "revindex" || name == "revindex0") {
    return Value(length() - index_ - (name == "revindex" ? 0 : 1));
  }
  if (name == "previtem") {
    return before_.value_or(Value::undefined("there is no previous item"));
  }
  if (name == "nextitem") {
    return peek().value_or(Value::undefined("there is no next item"));
  }
  if (name == "depth" || name == "depth0") {
    return Value(int64_t{name == "depth" ? 1 : 0});  // of recursive loops, which there are not
  }
  lacking("loop.{}", name);
}

Value Loop::cycle(const Given& given) const {
  if (given.positional.empty()) {
    complain("loop.cycle without values");
  }
  return given.positional[static_cast<size_t>(index_) % given.positional.size()];
}

bool Loop::changed(const Given& given, StepBudget& budget) {
  const bool same = last_ && equal(Value::list(*last_), Value::list(given.positional), budget);
  last_ = given.positional;
  return !same;
}

// ---- attributes and items

Value Evaluator::attribute(const Value& of, const std::string& name) {
  if (of.is_undefined()) {
    complain("'{}' is undefined, and has no attribute '{}'", of.as<Undefined>()->name, name);
  }
  if (name.starts_with("__")) {
    lacking("the attribute {}", name);
  }
  if (has_method(of, name)) {
    return new_function({.kind = FunctionKind::method, .name = name, .self = of, .macro = nullptr, .scope = {}});
  }
  if (const Dict* dict = of.dict()) {
    const Value* found = dict->find(Value::text(name), budget_);
    return found != nullptr ? *found : Value::undefined(name);
  }
  if (Namespace* const* space = of.as<Namespace*>()) {
    const auto found = (*space)->values.find(name);
    return found != (*space)->values.end() ? found->second : Value::undefined(name);
  }
  if (Loop* const* loop = of.as<Loop*>()) {
    return (*loop)->attribute(name);
  }
  if (of.as<const Function*>() != nullptr || of.as<std::shared_ptr<Generator>>() != nullptr) {
    lacking("the attribute {} of a {}", name, of.type());
  }
  return Value::undefined(name);
}

Value Evaluator::item(const Value& of, const Value& key) {
  budget_.pay(key.string() != nullptr ? key.string()->size() / 64 : 0);
  if (of.is_undefined()) {
    complain("'{}' is undefined, and has no items", of.as<Undefined>()->name);
  }
  if (const Dict* dict = of.dict()) {
    const bool hashed = key.sequence() == nullptr && key.dict() == nullptr && !key.is_undefined();
    if (const Value* found = hashed ? dict->find(key, budget_) : nullptr) {
      return *found;
    }
  } else if (const Sequence* sequence = of.sequence(); sequence != nullptr && key.integer() && is_indexed(*sequence)) {
    return item_at(sequence->items, *key.integer());
  } else if (of.string() != nullptr && key.integer()) {
    return item_at(items_of(of, budget_), *key.integer());
  }
  if (const std::string* name = key.string()) {
    return of.dict() != nullptr && !has_method(of, *name) ? Value::undefined(*name) : attribute(of, *name);
  }
  return Value::undefined("an item of " + of.type());
}

Value Evaluator::item_by_path(const Value& of, const Value& path) {
  if (path.string() == nullptr) {
    return path.is_none() ? of : item(of, path);
  }
  Value found = of;
  const std::string& text = *path.string();
  budget_.pay_bytes(text.size());
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    const bool number = !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == name.npos;
    found = item(found, number ? Value(int64_t{std::stoi(name)}) : Value::text(name));
    begin = end + 1;
  }
  return found;
}

}  // namespace pare::jinja
