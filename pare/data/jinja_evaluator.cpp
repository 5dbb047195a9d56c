#include "pare/data/jinja_evaluator.h"

#include <nlohmann/json.hpp>

#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare::jinja {

namespace {

constexpr int64_t most_steps = 5'000'000;
constexpr int deepest_call = 1500;  // expressions and statements within each other

std::vector<Value> sliced(const std::vector<Value>& items, const std::array<std::optional<int64_t>, 3>& bounds) {
  const int64_t step = bounds[2].value_or(1), size = std::ssize(items);
  if (step == 0) {
    complain("a slice with step 0");
  }
  const int64_t least = step > 0 ? 0 : -1, most = step > 0 ? size : size - 1;
  const auto place = [&](const std::optional<int64_t>& bound, int64_t without) {
    return !bound ? without : std::clamp(*bound < 0 ? std::max(*bound, -size - 1) + size : *bound, least, most);
  };
  const int64_t from = place(bounds[0], step > 0 ? 0 : size - 1), to = place(bounds[1], step > 0 ? size : -1);
  std::vector<Value> out;
  for (int64_t at = from; step > 0 ? at < to : at > to;) {
    out.push_back(items[static_cast<size_t>(at)]);
    if (step > size || step < -size) {
      break;
    }
    at += step;
  }
  return out;
}

}  // namespace

// How deep an evaluation is, so that no template uses up the stack.
class Evaluator::Deeper {
 public:
  explicit Deeper(Evaluator& evaluator) : evaluator_(evaluator) {
    if (++evaluator_.depth_ > deepest_call) {
      --evaluator_.depth_;
      complain("calls within calls, more than {} deep", deepest_call);
    }
    evaluator_.budget_.pay();
  }
  ~Deeper() { --evaluator_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Evaluator& evaluator_;
};

Evaluator::Evaluator(const std::string& subject, const nlohmann::ordered_json& variables, const std::tm& now)
    : subject_(subject), now_(now), budget_(most_steps), scope_(std::make_shared<Scope>()) {
  for (const char* const each :
       {"range", "dict", "namespace", "raise_exception", "strftime_now", "lipsum", "cycler", "joiner"}) {
    scope_->values[each] = new_function({.kind = FunctionKind::global, .name = each});
  }
  for (const auto& [key, value] : variables.items()) {
    scope_->values[key] = Value::from_json(value);
  }
}

std::string Evaluator::render(const Tree& tree) {
  std::string out;
  out_ = &out;
  enter(tree.hidden);
  run(tree.statements);
  return out;
}

// A scope of its own, until scope_ is put back.
void Evaluator::enter(const std::vector<std::string>& hidden) {
  scope_ = std::make_shared<Scope>(Scope{{}, scope_});
  for (const std::string& name : hidden) {
    scope_->values[name] = Value::undefined(name);
  }
}

void Evaluator::write(const std::string& text) {
  budget_.pay_bytes(text.size());
  *out_ += text;
}

// ---- statements

Evaluator::Flow Evaluator::run(const Statements& statements) {
  for (const Statement& each : statements) {
    try {
      const Deeper deeper(*this);
      if (const Flow flow = run(each); flow != Flow::on) {
        return flow;
      }
    } catch (const Problem& problem) {
      throw InputError(fmt::format("{}: line {}: {}", subject_, each.line, escaped(problem.what())));
    }
  }
  return Flow::on;
}

Evaluator::Flow Evaluator::run_inside(const Statement& s, size_t body) {
  const std::shared_ptr<Scope> outer = scope_;
  enter(s.hidden[body]);
  const Flow flow = run(s.bodies[body]);  // an error ends the whole evaluation: nothing to put back
  scope_ = outer;
  return flow;
}

Evaluator::Flow Evaluator::run_captured(const Statement& s, std::string& text) {
  std::string* const before = std::exchange(out_, &text);
  const Flow flow = run_inside(s, 0);
  out_ = before;
  return flow;
}

Evaluator::Flow Evaluator::run(const Statement& s) {
  switch (s.kind) {
    case StatementKind::text:
      write(s.text);
      return Flow::on;
    case StatementKind::output:
      write(str(evaluate(*s.value), budget_));
      return Flow::on;
    case StatementKind::choice:
      for (size_t n = 0; n < s.conditions.size(); ++n) {
        if (truth(evaluate(*s.conditions[n]))) {
          return run(s.bodies[n]);
        }
      }
      return s.bodies.size() > s.conditions.size() ? run(s.bodies.back()) : Flow::on;
    case StatementKind::loop:
      return run_loop(s);
    case StatementKind::assign:
      assign(*s.target, evaluate(*s.value));
      return Flow::on;
    case StatementKind::capture:
    case StatementKind::filter: {
      std::string text;
      if (const Flow flow = run_captured(s, text); flow != Flow::on) {
        return flow;
      }
      Value value = Value::text(std::move(text));
      if (s.value) {
        value = filter_chain(*s.value, value);
      }
      if (s.kind == StatementKind::filter) {
        write(str(value, budget_));
      } else {
        assign(*s.target, value);
      }
      return Flow::on;
    }
    case StatementKind::macro:
      scope_->values[s.text] =
          new_function({.kind = FunctionKind::macro, .name = s.text, .self = {}, .macro = &s, .scope = scope_});
      return Flow::on;
    case StatementKind::call: {
      const Value caller =
          new_function({.kind = FunctionKind::macro, .name = "caller", .self = {}, .macro = &s, .scope = scope_});
      write(str(call(*s.value, &caller), budget_));
      return Flow::on;
    }
    case StatementKind::with: {
      const std::shared_ptr<Scope> outer = scope_;
      const auto inner = std::make_shared<Scope>(Scope{{}, outer});
      for (size_t n = 0; n < s.parameters.size(); ++n) {
        inner->values[s.parameters[n]] = evaluate(*s.defaults[n]);
      }
      scope_ = inner;
      const Flow flow = run_inside(s, 0);
      scope_ = outer;
      return flow;
    }
    case StatementKind::generation: {
      std::string text;
      run_captured(s, text);
      write(text);
      return Flow::on;
    }
    case StatementKind::leave:
      return Flow::leave;
    case StatementKind::next:
      return Flow::next;
  }
  PARE_UNREACHABLE("a kind of statement");
}

Evaluator::Flow Evaluator::run_loop(const Statement& s) {
  const std::shared_ptr<Scope> outer = scope_;
  std::function<bool(const Value&)> wanted;
  if (!s.conditions.empty()) {
    wanted = [&](const Value& each) {
      const std::shared_ptr<Scope> before = scope_;
      scope_ = std::make_shared<Scope>(Scope{{}, outer});
      assign(*s.target, each);
      const bool answer = truth(evaluate(*s.conditions[0]));
      scope_ = before;
      return answer;
    };
  }
  Loop& loop = loops_.emplace_back(items_of(evaluate(*s.value), budget_), std::move(wanted));
  bool whole = false;  // a body ran to its end, which is what jinja2 asks before an else
  while (loop.advance()) {
    scope_ = outer;
    enter(s.hidden[0]);
    scope_->values["loop"] = Value(&loop);
    assign(*s.target, loop.current());
    const Flow flow = run(s.bodies[0]);
    if (flow == Flow::leave) {
      break;
    }
    whole = whole || flow == Flow::on;
  }
  scope_ = outer;
  return !whole && s.bodies.size() > 1 ? run_inside(s, 1) : Flow::on;
}

void Evaluator::assign(const Expression& target, const Value& value) {
  if (target.kind == ExpressionKind::name) {
    scope_->values[target.name] = value;
    return;
  }
  if (target.kind == ExpressionKind::attribute) {
    const Value of = name(target.parts[0]->name);
    Namespace* const* space = of.as<Namespace*>();
    if (space == nullptr) {
      complain("{}.{} is set, but {} is of type {}, expected a namespace", target.parts[0]->name, target.name,
               target.parts[0]->name, of.type());
    }
    if (target.name.starts_with('_')) {
      complain("a namespace has no attribute {}: it begins with an underscore", target.name);
    }
    (*space)->values[target.name] = value;
    return;
  }
  const std::vector<Value> items = items_of(value, budget_);
  if (items.size() != target.parts.size()) {
    complain("{} values for {} names", items.size(), target.parts.size());
  }
  for (size_t n = 0; n < items.size(); ++n) {
    assign(*target.parts[n], items[n]);
  }
}

// ---- expressions

Value Evaluator::evaluate(const Expression& expression) {
  try {
    const Deeper deeper(*this);
    return evaluate_plainly(expression);
  } catch (const Problem& problem) {
    throw InputError(fmt::format("{}: line {}: {}", subject_, expression.line, escaped(problem.what())));
  }
}

Value Evaluator::evaluate_plainly(const Expression& e) {
  const auto part = [&](size_t n) { return evaluate(*e.parts[n]); };
  switch (e.kind) {
    case ExpressionKind::constant:
      return e.value;
    case ExpressionKind::name:
      return name(e.name);
    case ExpressionKind::list:
    case ExpressionKind::tuple: {
      std::vector<Value> items;
      for (const ExpressionPtr& each : e.parts) {
        items.push_back(evaluate(*each));
      }
      return Value::list(std::move(items), e.kind == ExpressionKind::list ? Flavour::list : Flavour::tuple);
    }
    case ExpressionKind::dict: {
      Dict dict;
      for (size_t n = 0; n < e.parts.size(); n += 2) {
        Value key = part(n);
        dict.set(std::move(key), part(n + 1), budget_);
      }
      return Value::dict(std::move(dict));
    }
    case ExpressionKind::attribute:
      return attribute(part(0), e.name);
    case ExpressionKind::item: {
      const Value of = part(0);
      return item(of, part(1));
    }
    case ExpressionKind::slice:
      return slice(e);
    case ExpressionKind::call:
      return call(e);
    case ExpressionKind::filter: {
      const Value input = part(0);
      return filtered(e.name, input, given(e.arguments));
    }
    case ExpressionKind::test: {
      const Value value = part(0);
      return Value(tested(e.name, value, given(e.arguments)));
    }
    case ExpressionKind::negate: {
      const Value value = part(0);
      const double* number = value.as<double>();  // 0 - 0.0 is not -0.0
      return number != nullptr ? Value(-*number) : arithmetic("-", Value(int64_t{0}), value, budget_);
    }
    case ExpressionKind::plus:
      return arithmetic("+", Value(int64_t{0}), part(0), budget_);
    case ExpressionKind::invert:
      return Value(!truth(part(0)));
    case ExpressionKind::binary: {
      const Value a = part(0);
      return arithmetic(e.name, a, part(1), budget_);
    }
    case ExpressionKind::concat: {
      std::string text;
      for (const ExpressionPtr& each : e.parts) {
        text += str(evaluate(*each), budget_);
      }
      budget_.pay_bytes(text.size());
      return Value::text(std::move(text));
    }
    case ExpressionKind::compare:
      return compare(e);
    case ExpressionKind::both:
    case ExpressionKind::either: {
      Value left = part(0);
      return truth(left) == (e.kind == ExpressionKind::either) ? left : part(1);
    }
    case ExpressionKind::choice:
      if (truth(part(0))) {
        return part(1);
      }
      return e.parts[2] ? part(2) : Value::undefined("the value of an 'if' without 'else'");
  }
  PARE_UNREACHABLE("a kind of expression");
}

Value Evaluator::name(const std::string& name) {
  size_t walked = 0;
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
    budget_.pay(++walked % 8 == 0 ? 1 : 0);  // templates of people stand in few scopes
    const auto found = scope->values.find(name);
    if (found != scope->values.end()) {
      return found->second;
    }
  }
  if (name == "varargs" || name == "kwargs" || name == "self") {
    lacking("{}", name);
  }
  return Value::undefined(name);
}

Value Evaluator::compare(const Expression& e) {
  Value left = evaluate(*e.parts[0]);
  for (size_t n = 0; n < e.operators.size(); ++n) {
    const Value right = evaluate(*e.parts[n + 1]);
    const std::string& op = e.operators[n];
    const bool holds = op == "=="       ? equal(left, right, budget_)
                       : op == "!="     ? !equal(left, right, budget_)
                       : op == "in"     ? contains(right, left, budget_)
                       : op == "not in" ? !contains(right, left, budget_)
                       : op == "<"      ? less(left, right, budget_)
                       : op == ">"      ? less(right, left, budget_)
                       : op == "<="     ? less(left, right, budget_) || equal(left, right, budget_)
                                        : less(right, left, budget_) || equal(left, right, budget_);
    if (!holds) {
      return Value(false);
    }
    left = right;
  }
  return Value(true);
}

Value Evaluator::slice(const Expression& e) {
  const Value of = evaluate(*e.parts[0]);
  std::array<std::optional<int64_t>, 3> bounds;
  for (size_t n = 0; n < 3; ++n) {
    const Value bound = e.parts[n + 1] ? evaluate(*e.parts[n + 1]) : Value::none();
    bounds[n] = bound.integer();
    if (!bounds[n] && !bound.is_none()) {
      complain("a slice at {}, expected a whole number", bound.type());
    }
  }
  if (of.is_undefined()) {
    complain("'{}' is undefined", of.as<Undefined>()->name);
  }
  const Sequence* sequence = of.sequence();
  if (sequence != nullptr && sequence->flavour == Flavour::range) {
    lacking("a slice of a range");
  }
  if (sequence != nullptr && (sequence->flavour == Flavour::list || sequence->flavour == Flavour::tuple)) {
    budget_.pay(sequence->items.size());
    return Value::list(sliced(sequence->items, bounds), sequence->flavour);
  }
  if (of.string() == nullptr) {
    complain("a slice of {}, expected a list or a string", of.type());
  }
  std::string text;
  for (const Value& each : sliced(items_of(of, budget_), bounds)) {
    text += *each.string();
  }
  return Value::text(std::move(text), of.is_safe());
}

}  // namespace pare::jinja
