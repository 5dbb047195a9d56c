#include "pare/checkpoint/formula.h"

#include <doctest/doctest.h>

using namespace pare;

namespace {

std::string written(const Formula& formula) {
  return Notation().text(formula);
}

const Formula a = "a", b = "b", c = "c";

}  // namespace

TEST_CASE("a formula has the parentheses it needs, and no others") {
  CHECK(written(a * b * c) == "a · b · c");
  CHECK(written(a * (b * c)) == "a · b · c");
  CHECK(written(a + b * c) == "a + b · c");
  CHECK(written((a + b) * c) == "(a + b) · c");
  CHECK(written(a * (b + c)) == "a · (b + c)");
  CHECK(written((a * b).inverse()) == "(a · b)⁻¹");
  CHECK(written(a.inverse() * b.transposed()) == "a⁻¹ · bᵀ");
  CHECK(written(Formula::diagonal(a + b) * c) == "diag(a + b) · c");
  CHECK(written(Formula::enclosed("(", a.inverse(), " ⊕ I)") * b) == "(a⁻¹ ⊕ I) · b");
  CHECK(written(Formula::call("order", {a * b, c}).transposed()) == "order(a · b, c)ᵀ");
}

TEST_CASE("inverses and transposes cancel") {
  CHECK(written(a.inverse().transposed()) == "a⁻ᵀ");
  CHECK(written(a.transposed().inverse()) == "a⁻ᵀ");
  CHECK(written(a.inverse().inverse()) == "a");
  CHECK(written(a.inverse().transposed().inverse()) == "aᵀ");
  CHECK(written(a.inverse().transposed().transposed().inverse()) == "a");
  CHECK(written(Formula::diagonal(a).transposed()) == "diag(a)");
}

TEST_CASE("a symbol is defined once, after those that it needs, and two of one name are told apart") {
  Notation notation;
  const Formula r = Formula::symbol("R", 10, Formula::enclosed("gauge(", a, ")"));
  const Formula theta = Formula::symbol("Θ", 3, a * r.inverse());
  CHECK(notation.text(theta.inverse() * b) == "Θ₃⁻¹ · b");
  CHECK(notation.text(c * theta) == "c · Θ₃");
  CHECK(notation.text(Formula::symbol("Θ", 3, b) * theta) == "Θ₃′ · Θ₃");
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"R₁₀", "gauge(a)"}, {"Θ₃", "a · R₁₀⁻¹"}, {"Θ₃′", "b"}};
  CHECK(notation.definitions() == expected);
}
