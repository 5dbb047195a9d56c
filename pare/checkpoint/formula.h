#pragma once
// How a tensor was made, as an expression over the names of others: Θ₃⁻¹ · blocks.3.attention.key.weight.
// As in the theorems, a row of activations stands before the matrix it is multiplied with: matrices are [in, out].

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pare {

class Formula {
 public:
  Formula() = default;        // of a weight that there is not
  Formula(std::string name);  // a tensor, a number, I
  Formula(const char* name) : Formula(std::string(name)) {}
  // Θ₃: what is long, or occurs often, has a name and is written out once.
  static Formula symbol(std::string letter, int64_t number, Formula definition);
  static Formula diagonal(Formula vector);
  // Other words around a formula: enclosed("gauge(", f, ")").
  static Formula enclosed(std::string before, Formula inside, std::string after);
  // A function of several: call("value_gauge", {v, b, o}).
  static Formula call(std::string function, std::vector<Formula> arguments);

  Formula inverse() const;
  Formula transposed() const;
  friend Formula operator+(Formula left, Formula right);
  friend Formula operator*(Formula left, Formula right);

 private:
  friend class Notation;
  struct Expression;
  explicit Formula(Expression expression);
  std::shared_ptr<const Expression> expression_;
};

std::string subscript(int64_t number);  // "₁₂"

// Writes formulas down. Symbols that occur get a name of their own, and are defined once.
class Notation {
 public:
  std::string text(const Formula& formula);
  // In the order in which they were met, what a definition needs before it.
  const std::vector<std::pair<std::string, std::string>>& definitions() const { return definitions_; }

 private:
  std::string at_least(const Formula& formula, int precedence);  // in parentheses, where it binds less
  std::string symbol(const Formula& formula);
  std::map<std::shared_ptr<const Formula::Expression>, std::string> symbols_;
  std::vector<std::pair<std::string, std::string>> definitions_;
};

}  // namespace pare
