// Calls of macros, methods and the functions that every template has.

#include "pare/data/jinja_evaluator.h"
#include "pare/support/error.h"

namespace pare::jinja {

namespace {

constexpr int64_t longest_range = 100'000;  // as in the sandbox

}  // namespace

const Value* Given::find(size_t place, std::string_view name) const {
  if (place < positional.size()) {
    return &positional[place];
  }
  for (const auto& [key, value] : named) {
    if (key == name) {
      return &value;
    }
  }
  return nullptr;
}

void Given::allow(std::string_view what, size_t most, std::initializer_list<std::string_view> names) const {
  if (positional.size() > most) {
    complain("{} takes at most {} arguments, not {}", what, most, positional.size());
  }
  for (const auto& [key, value] : named) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      complain("{} takes no argument {}", what, key);
    }
  }
}

Given Evaluator::given(const Arguments& arguments) {
  Given made;
  for (const ExpressionPtr& each : arguments.positional) {
    made.positional.push_back(evaluate(*each));
  }
  for (const auto& [key, value] : arguments.named) {
    made.named.emplace_back(key, evaluate(*value));
  }
  return made;
}

Value Evaluator::filter_chain(const Expression& filter, const Value& input) {
  const Value inner = filter.parts[0] ? filter_chain(*filter.parts[0], input) : input;
  return filtered(filter.name, inner, given(filter.arguments));
}

Value Evaluator::new_function(Function function) {
  return Value(static_cast<const Function*>(&functions_.emplace_back(std::move(function))));
}

Value Evaluator::call(const Expression& e, const Value* caller) {
  const Expression& callee = *e.parts[0];
  const auto arguments = [&] {
    Given made = given(e.arguments);
    if (caller != nullptr) {
      made.named.emplace_back("caller", *caller);
    }
    return made;
  };
  if (callee.kind == ExpressionKind::attribute) {  // a method, called at once
    const Value of = evaluate(*callee.parts[0]);
    if (has_method(of, callee.name)) {
      return call_method(of, callee.name, arguments(), budget_);
    }
    if (Loop* const* loop = of.as<Loop*>(); loop != nullptr && callee.name == "cycle") {
      return (*loop)->cycle(arguments());
    } else if (loop != nullptr && callee.name == "changed") {
      return Value((*loop)->changed(arguments(), budget_));
    }
    const Value found = attribute(of, callee.name);
    if (const Function* const* function = found.as<const Function*>()) {
      return call(**function, arguments());
    }
    complain("'{}' {}", callee.name, found.is_undefined() ? "is undefined" : "cannot be called");
  }
  const Value found = evaluate(callee);
  if (const Function* const* function = found.as<const Function*>()) {
    return call(**function, arguments());
  }
  const Undefined* const missing = found.as<Undefined>();
  complain("'{}' {}", missing ? missing->name : found.type(), missing ? "is undefined" : "cannot be called");
}

Value Evaluator::call(const Function& function, Given given) {
  switch (function.kind) {
    case FunctionKind::macro:
      return call_macro(function, std::move(given));
    case FunctionKind::method:
      return call_method(function.self, function.name, given, budget_);
    case FunctionKind::global:
      return call_global(function.name, given);
  }
  PARE_UNREACHABLE("a kind of function");
}

Value Evaluator::call_macro(const Function& function, Given given) {
  const Statement& s = *function.macro;
  const auto inner = std::make_shared<Scope>(Scope{{}, function.scope});
  if (given.positional.size() > s.parameters.size()) {
    complain("the macro {} takes {} arguments, not {}", function.name, s.parameters.size(), given.positional.size());
  }
  const std::shared_ptr<Scope> before = std::exchange(scope_, inner);
  const size_t required = s.parameters.size() - s.defaults.size();
  std::vector<bool> used(given.named.size(), false);
  for (size_t n = 0; n < s.parameters.size(); ++n) {
    const std::string& parameter = s.parameters[n];
    std::optional<Value> value;
    for (size_t k = 0; k < given.named.size(); ++k) {
      if (n >= given.positional.size() && given.named[k].first == parameter) {
        value = given.named[k].second;
        used[k] = true;
      }
    }
    if (n < given.positional.size()) {
      value = given.positional[n];
    }
    inner->values[parameter] = value           ? *value
                               : n >= required ? evaluate(*s.defaults[n - required])
                                               : Value::undefined(parameter);
  }
  for (size_t k = 0; k < given.named.size(); ++k) {
    if (!used[k] && given.named[k].first == "caller") {
      inner->values["caller"] = given.named[k].second;
    } else if (!used[k]) {
      complain("the macro {} takes no argument {}", function.name, given.named[k].first);
    }
  }
  std::string text;
  run_captured(s, text);
  scope_ = before;
  return Value::text(std::move(text));
}

// As dict() takes them: another dict, and names.
Dict Evaluator::entries_of(const Given& given) {
  Dict dict;
  if (given.positional.size() > 1 || (given.positional.size() == 1 && given.positional[0].dict() == nullptr)) {
    lacking("a dict of anything but a dict and names");
  }
  if (!given.positional.empty()) {
    const Dict& other = *given.positional[0].dict();
    for (const auto& [key, value] : other.entries) {
      budget_.pay_bytes(key.string() != nullptr ? key.string()->size() : 0);
    }
    dict = other;
  }
  for (const auto& [key, value] : given.named) {
    dict.set(Value::text(key), value, budget_);
  }
  return dict;
}

Value Evaluator::new_namespace(const Dict& entries) {
  Namespace& space = namespaces_.emplace_back();
  for (const auto& [key, value] : entries.entries) {
    if (key.string() == nullptr || key.string()->starts_with('_')) {
      complain("a namespace has no attribute {}", repr(key, budget_));
    }
    space.values[*key.string()] = value;
  }
  return Value(&space);
}

Value Evaluator::call_global(const std::string& name, const Given& given) {
  if (name == "range") {
    given.allow("range", 3);
    std::array<int64_t, 3> bounds = {0, 0, 1};
    for (size_t n = 0; n < given.positional.size(); ++n) {
      const std::optional<int64_t> bound = given.positional[n].integer();
      if (!bound) {
        complain("range takes whole numbers, not {}", given.positional[n].type());
      }
      bounds[given.positional.size() == 1 ? 1 : n] = *bound;
    }
    const auto [from, to, step] = bounds;
    if (given.positional.empty() || step == 0) {
      complain("range without {}", step == 0 ? "a step" : "an end");
    }
    std::vector<Value> items;
    for (int64_t at = from; step > 0 ? at < to : at > to;) {
      items.push_back(Value(at));
      if (std::ssize(items) > longest_range) {
        complain("a range of more than {} numbers", longest_range);
      }
      if (__builtin_add_overflow(at, step, &at)) {
        break;
      }
    }
    budget_.pay(items.size());
    return Value::list(std::move(items), Flavour::range);
  }
  if (name == "dict" || name == "namespace") {
    return name == "dict" ? Value::dict(entries_of(given)) : new_namespace(entries_of(given));
  }
  if (name == "raise_exception") {
    given.allow(name, 1, {"message"});
    const Value* message = given.find(0, "message");
    complain("the template refuses this conversation: {}", message != nullptr ? str(*message, budget_) : "");
  }
  if (name == "strftime_now") {
    given.allow(name, 1, {"format"});
    const Value* format = given.find(0, "format");
    if (format == nullptr || format->string() == nullptr) {
      complain("strftime_now takes a format");
    }
    for (const char* const not_of_a_clock : {"%f", "%z", "%Z", "%s", "%:"}) {
      if (format->string()->find(not_of_a_clock) != std::string::npos) {
        lacking("strftime_now with {}", not_of_a_clock);
      }
    }
    budget_.pay_bytes(format->string()->size() * 64);
    std::string text(format->string()->size() * 64 + 64, '\0');
    text.resize(std::strftime(text.data(), text.size(), format->string()->c_str(), &now_));
    return Value::text(std::move(text));
  }
  lacking("the function {}", name);
}

}  // namespace pare::jinja
