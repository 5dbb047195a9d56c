#pragma once
// Runs a chat template: statements write text, expressions have values.

#include <array>
#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "pare/data/jinja_syntax.h"

namespace pare::jinja {

// What a call was given.
struct Given {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a place or of a name; null where neither was given.
  const Value* find(size_t place, std::string_view name) const;
  // Problem where something was given that `what` does not take.
  void allow(std::string_view what, size_t most, std::initializer_list<std::string_view> names = {}) const;
};

struct Scope {
  std::unordered_map<std::string, Value> values;
  std::shared_ptr<Scope> outer;
};

struct Namespace {
  std::unordered_map<std::string, Value> values;
};

enum class FunctionKind { macro, method, global };
struct Function {
  FunctionKind kind = FunctionKind::global;
  std::string name;
  Value self;                        // of a method
  const Statement* macro = nullptr;  // or the block of a call
  std::shared_ptr<Scope> scope;      // where it was defined
};

// The `loop` of a loop. Items come one by one, since what a condition says may change on the way.
class Loop {
 public:
  Loop(std::vector<Value> items, std::function<bool(const Value&)> wanted);
  bool advance();
  const Value& current() const { return *current_; }
  Value attribute(const std::string& name);
  Value cycle(const Given& given) const;
  bool changed(const Given& given, StepBudget& budget);

 private:
  std::optional<Value> pull();
  const std::optional<Value>& peek();
  int64_t length();
  std::vector<Value> items_;
  std::function<bool(const Value&)> wanted_;
  size_t next_ = 0;
  int64_t index_ = -1;
  bool peeked_ = false;
  std::optional<Value> before_, current_, after_;
  std::optional<std::vector<Value>> last_;
};

class Evaluator {
 public:
  Evaluator(const std::string& subject, const nlohmann::ordered_json& variables, const std::tm& now);
  std::string render(const Tree& tree);

  StepBudget& budget() { return budget_; }
  Value attribute(const Value& of, const std::string& name);
  Value item(const Value& of, const Value& key);
  // The same as a filter has it: a.b.0, each by `item`.
  Value item_by_path(const Value& of, const Value& path);
  Value filtered(const std::string& name, const Value& input, const Given& given);
  bool tested(const std::string& name, const Value& value, const Given& given);

 private:
  enum class Flow { on, leave, next };
  class Deeper;

  Flow run(const Statements& statements);
  Flow run(const Statement& statement);
  Flow run_loop(const Statement& statement);
  Flow run_inside(const Statement& statement, size_t body);
  Flow run_captured(const Statement& statement, std::string& text);
  void enter(const std::vector<std::string>& hidden);
  void write(const std::string& text);
  void assign(const Expression& target, const Value& value);

  Value evaluate(const Expression& expression);
  Value evaluate_plainly(const Expression& expression);
  Value name(const std::string& name);
  Value compare(const Expression& expression);
  Value slice(const Expression& expression);
  Value call(const Expression& expression, const Value* caller = nullptr);
  Value call(const Function& function, Given given);
  Value call_macro(const Function& function, Given given);
  Value call_global(const std::string& name, const Given& given);
  Value filter_chain(const Expression& filter, const Value& input);
  Given given(const Arguments& arguments);
  Value new_function(Function function);
  Value new_namespace(const Dict& entries);
  Dict entries_of(const Given& given);

  const std::string& subject_;
  std::tm now_;
  StepBudget budget_;
  std::deque<Namespace> namespaces_;
  std::deque<Function> functions_;
  std::deque<Loop> loops_;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  int depth_ = 0;
};

// Operators of Python.
Value arithmetic(const std::string& op, const Value& a, const Value& b, StepBudget& budget);

// Methods of strings, lists and dicts. Whether Python has such an attribute; and what a call hands back.
bool has_method(const Value& of, const std::string& name);
Value call_method(const Value& self, const std::string& name, const Given& given, StepBudget& budget);
std::string upper_text(const std::string& text);
std::string lower_text(const std::string& text);
std::string capital_text(const std::string& text);
std::string title_by_filter(const std::string& text);
std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                     StepBudget& budget);
std::vector<std::string> lines_of(const std::string& text);
std::string stripped_of(const std::string& text, const Value* characters, bool left, bool right, StepBudget& budget);

}  // namespace pare::jinja
