#pragma once
// Reads expressions of a template from its tokens: jinja2's grammar, rule by rule.

#include <set>

#include "pare/data/jinja_syntax.h"
#include "pare/support/error.h"

namespace pare::jinja {

constexpr int deepest_nesting = 100;     // of brackets and blocks
constexpr int deepest_expression = 400;  // of a chain such as a + b + c

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const std::string& subject)
      : tokens_(std::move(tokens)), subject_(subject) {}

 protected:
  using Ends = std::set<std::string_view>;

  const Token& now() const { return tokens_[at_]; }
  const Token& then() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is_op(std::string_view op) const { return now().kind == TokenKind::op && now().text == op; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::name && now().text == name; }
  bool skip_op(std::string_view op) { return is_op(op) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }

  [[noreturn]] void fail(int line, const std::string& what) const {
    throw InputError(fmt::format("{}: line {}: {}", subject_, line, what));
  }
  [[noreturn]] void fail_expected(std::string_view what) const;
  void expect_op(std::string_view op) {
    if (!skip_op(op)) {
      fail_expected(fmt::format("'{}'", op));
    }
  }
  std::string expect_name(std::string_view what) {
    if (now().kind != TokenKind::name) {
      fail_expected(what);
    }
    return take().text;
  }
  void expect(TokenKind kind, std::string_view what) {
    if (now().kind != kind) {
      fail_expected(what);
    }
    take();
  }

  class Nested {
   public:
    explicit Nested(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > deepest_nesting) {
        parser_.fail(parser_.now().line, fmt::format("nested more than {} deep", deepest_nesting));
      }
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

  template <class... Parts>
  ExpressionPtr make(ExpressionKind kind, int line, std::string name, Parts... parts) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = line;
    made->name = std::move(name);
    (adopt(*made, std::move(parts)), ...);
    return made;
  }

  void adopt(Expression& parent, ExpressionPtr part) {
    deepen(parent, part);
    parent.parts.push_back(std::move(part));
  }

  void deepen(Expression& parent, const ExpressionPtr& part) {
    parent.depth = std::max(parent.depth, part ? part->depth + 1 : 1);
    if (parent.depth > deepest_expression) {
      fail(parent.line, fmt::format("an expression of more than {} steps", deepest_expression));
    }
  }

  ExpressionPtr expression(bool with_choice = true);
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr inverted();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter);
  ExpressionPtr constant(int line, Value value);
  ExpressionPtr primary();
  Value number(const Token& token) const;
  ExpressionPtr dict(int line);
  // One expression, or several with commas.
  ExpressionPtr tuple(bool with_choice = true, std::string_view end = "", bool brackets = false);
  ExpressionPtr postfix(ExpressionPtr made);
  ExpressionPtr call(ExpressionPtr made);
  ExpressionPtr subscript(int line, ExpressionPtr made);
  void arguments(Expression& made);
  ExpressionPtr filters(ExpressionPtr made);
  std::string dotted_name(std::string_view what);
  // All that follow each other. `begun`: the first comes without |.
  ExpressionPtr filter(ExpressionPtr made, bool begun);
  ExpressionPtr test(ExpressionPtr made);

 private:
  std::vector<Token> tokens_;
  const std::string& subject_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace pare::jinja
