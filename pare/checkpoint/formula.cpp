#include "pare/checkpoint/formula.h"

#include <algorithm>

#include "pare/support/error.h"

namespace pare {

namespace {

enum class Kind { sum, product, power, name, symbol, enclosed };

// What binds less comes first; the last four need no parentheses anywhere.
int precedence_of(Kind kind) {
  return std::min(static_cast<int>(kind), static_cast<int>(Kind::name));
}

}  // namespace

std::string subscript(int64_t number) {
  std::string text;
  for (const char digit : std::to_string(number)) {
    text += "\u2080";  // the subscripts of 0 to 9 follow each other in their last byte
    text.back() = static_cast<char>(text.back() + (digit - '0'));
  }
  return text;
}

struct Formula::Expression {
  Kind kind = Kind::name;
  std::string text = {}, after = {};  // the name, the letter, or what encloses
  std::vector<Formula> parts = {};
  int64_t number = 0;
  bool symmetric = false, inverted = false, transposed = false;  // the last two of a power
};

Formula::Formula(Expression expression) : expression_(std::make_shared<const Expression>(std::move(expression))) {}

Formula::Formula(std::string name) : Formula(Expression{.kind = Kind::name, .text = std::move(name)}) {}

Formula Formula::symbol(std::string letter, int64_t number, Formula definition) {
  return Formula({.kind = Kind::symbol, .text = std::move(letter), .parts = {std::move(definition)}, .number = number});
}

Formula Formula::diagonal(Formula vector) {
  return Formula(
      {.kind = Kind::enclosed, .text = "diag(", .after = ")", .parts = {std::move(vector)}, .symmetric = true});
}

Formula Formula::enclosed(std::string before, Formula inside, std::string after) {
  return Formula(
      {.kind = Kind::enclosed, .text = std::move(before), .after = std::move(after), .parts = {std::move(inside)}});
}

Formula Formula::call(std::string function, std::vector<Formula> arguments) {
  PARE_CHECK(!arguments.empty(), "a function of nothing");
  return Formula(
      {.kind = Kind::enclosed, .text = std::move(function) + "(", .after = ")", .parts = std::move(arguments)});
}

Formula Formula::inverse() const {
  Expression power{.kind = Kind::power, .parts = {*this}};
  if (expression_->kind == Kind::power) {
    power = *expression_;
  }
  power.inverted = !power.inverted;
  return power.inverted || power.transposed ? Formula(std::move(power)) : power.parts.front();
}

Formula Formula::transposed() const {
  if (expression_->symmetric) {
    return *this;
  }
  Expression power{.kind = Kind::power, .parts = {*this}};
  if (expression_->kind == Kind::power) {
    power = *expression_;
  }
  power.transposed = !power.transposed;
  return power.inverted || power.transposed ? Formula(std::move(power)) : power.parts.front();
}

Formula operator+(Formula left, Formula right) {
  return Formula({.kind = Kind::sum, .parts = {std::move(left), std::move(right)}});
}

Formula operator*(Formula left, Formula right) {
  return Formula({.kind = Kind::product, .parts = {std::move(left), std::move(right)}});
}

std::string Notation::text(const Formula& formula) {
  PARE_CHECK(formula.expression_, "there is nothing to write down");
  const Formula::Expression& e = *formula.expression_;
  const int precedence = precedence_of(e.kind);
  switch (e.kind) {
    case Kind::sum:
    case Kind::product:
      return at_least(e.parts[0], precedence) + (e.kind == Kind::sum ? " + " : " · ") +
             at_least(e.parts[1], precedence);
    case Kind::power:
      return at_least(e.parts[0], precedence + 1) + (e.inverted && e.transposed ? "⁻ᵀ" : e.inverted ? "⁻¹" : "ᵀ");
    case Kind::name:
      return e.text;
    case Kind::symbol:
      return symbol(formula);
    case Kind::enclosed: {
      std::string inside = text(e.parts[0]);
      for (size_t i = 1; i < e.parts.size(); ++i) {
        inside += ", " + text(e.parts[i]);
      }
      return e.text + inside + e.after;
    }
  }
  PARE_CHECK(false, "an expression without words");
}

std::string Notation::at_least(const Formula& formula, int precedence) {
  const bool binds = precedence_of(formula.expression_->kind) >= precedence;
  return binds ? text(formula) : "(" + text(formula) + ")";
}

std::string Notation::symbol(const Formula& formula) {
  if (const auto known = symbols_.find(formula.expression_); known != symbols_.end()) {
    return known->second;
  }
  const Formula::Expression& e = *formula.expression_;
  const std::string definition = text(e.parts[0]);
  std::string name = e.text + subscript(e.number);
  while (std::ranges::any_of(definitions_, [&](const auto& d) { return d.first == name; })) {
    name += "′";  // another Θ₃: two passes met in block 3
  }
  symbols_[formula.expression_] = name;
  definitions_.emplace_back(name, definition);
  return name;
}

}  // namespace pare
