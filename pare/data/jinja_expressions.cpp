#include <charconv>

#include "pare/data/jinja_parser.h"

namespace pare::jinja {

void ExpressionParser::fail_expected(std::string_view what) const {
  const char* const ends[] = {"text", "{{", "}}", "{%", "%}"};
  const std::string found = now().kind == TokenKind::end         ? "the end of the template"
                            : now().kind <= TokenKind::block_end ? ends[static_cast<int>(now().kind)]
                                                                 : "'" + now().text + "'";
  fail(now().line, fmt::format("found {}, expected {}", found, what));
}

ExpressionPtr ExpressionParser::expression(bool with_choice) {
  const Nested nested(*this);
  if (!with_choice) {
    return either();
  }
  const int line = now().line;
  ExpressionPtr left = either();
  while (skip_name("if")) {
    ExpressionPtr condition = either();
    ExpressionPtr otherwise = skip_name("else") ? expression() : nullptr;
    left = make(ExpressionKind::choice, line, "", std::move(condition), std::move(left), std::move(otherwise));
  }
  return left;
}

ExpressionPtr ExpressionParser::either() {
  ExpressionPtr left = both();
  while (is_name("or")) {
    const int line = take().line;
    left = make(ExpressionKind::either, line, "", std::move(left), both());
  }
  return left;
}

ExpressionPtr ExpressionParser::both() {
  ExpressionPtr left = inverted();
  while (is_name("and")) {
    const int line = take().line;
    left = make(ExpressionKind::both, line, "", std::move(left), inverted());
  }
  return left;
}

ExpressionPtr ExpressionParser::inverted() {
  const Nested nested(*this);
  if (is_name("not")) {
    const int line = take().line;
    return make(ExpressionKind::invert, line, "", inverted());
  }
  return comparison();
}

ExpressionPtr ExpressionParser::comparison() {
  static const Ends known = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr first = sum();
  auto all = make(ExpressionKind::compare, now().line, "");
  while (true) {
    if (now().kind == TokenKind::op && known.contains(now().text)) {
      all->operators.push_back(take().text);
    } else if (skip_name("in")) {
      all->operators.push_back("in");
    } else if (is_name("not") && then().kind == TokenKind::name && then().text == "in") {
      take();
      take();
      all->operators.push_back("not in");
    } else {
      break;
    }
    if (first) {
      adopt(*all, std::move(first));
    }
    adopt(*all, sum());
  }
  return all->operators.empty() ? std::move(first) : std::move(all);
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (is_op("+") || is_op("-")) {
    const Token op = take();
    left = make(ExpressionKind::binary, op.line, op.text, std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr first = product();
  if (!is_op("~")) {
    return first;
  }
  auto all = make(ExpressionKind::concat, now().line, "", std::move(first));
  while (skip_op("~")) {
    adopt(*all, product());
  }
  return all;
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const Token op = take();
    left = make(ExpressionKind::binary, op.line, op.text, std::move(left), power());
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary(true);
  while (is_op("**")) {
    const int line = take().line;
    left = make(ExpressionKind::binary, line, "**", std::move(left), unary(true));
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  const Nested nested(*this);
  const int line = now().line;
  ExpressionPtr made;
  if (skip_op("-")) {
    made = make(ExpressionKind::negate, line, "", unary(false));
  } else if (skip_op("+")) {
    made = make(ExpressionKind::plus, line, "", unary(false));
  } else {
    made = primary();
  }
  made = postfix(std::move(made));
  return with_filter ? filters(std::move(made)) : std::move(made);
}

ExpressionPtr ExpressionParser::constant(int line, Value value) {
  auto made = make(ExpressionKind::constant, line, "");
  made->value = std::move(value);
  return made;
}

ExpressionPtr ExpressionParser::primary() {
  const Token token = take();
  switch (token.kind) {
    case TokenKind::name:
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
        return constant(token.line, Value(token.text == "true" || token.text == "True"));
      }
      if (token.text == "none" || token.text == "None") {
        return constant(token.line, Value::none());
      }
      return make(ExpressionKind::name, token.line, token.text);
    case TokenKind::string: {
      std::string text = token.text;
      while (now().kind == TokenKind::string) {
        text += take().text;
      }
      return constant(token.line, Value::text(std::move(text)));
    }
    case TokenKind::integer:
    case TokenKind::real:
      return constant(token.line, number(token));
    case TokenKind::op:
      if (token.text == "(") {
        ExpressionPtr made = tuple(true, "", true);
        expect_op(")");
        return made;
      }
      if (token.text == "[") {
        auto made = make(ExpressionKind::list, token.line, "");
        while (!is_op("]")) {
          if (!made->parts.empty()) {
            expect_op(",");
          }
          if (!is_op("]")) {
            adopt(*made, expression());
          }
        }
        take();
        return made;
      }
      if (token.text == "{") {
        return dict(token.line);
      }
      break;
    default:
      break;
  }
  at_ -= token.kind == TokenKind::end ? 0 : 1;
  fail_expected("an expression");
}

Value ExpressionParser::number(const Token& token) const {
  int64_t whole = 0;
  double real = 0;
  const char *begin = token.text.data(), *end = begin + token.text.size();
  const std::errc wrong =
      token.kind == TokenKind::integer ? std::from_chars(begin, end, whole).ec : std::from_chars(begin, end, real).ec;
  if (wrong != std::errc()) {
    fail(token.line, fmt::format("the number {} is too large", token.text));
  }
  return token.kind == TokenKind::integer ? Value(whole) : Value(real);
}

ExpressionPtr ExpressionParser::dict(int line) {
  auto made = make(ExpressionKind::dict, line, "");
  while (!is_op("}")) {
    if (!made->parts.empty()) {
      expect_op(",");
    }
    if (!is_op("}")) {
      adopt(*made, expression());
      expect_op(":");
      adopt(*made, expression());
    }
  }
  take();
  return made;
}

ExpressionPtr ExpressionParser::tuple(bool with_choice, std::string_view end, bool brackets) {
  const Nested nested(*this);
  auto all = make(ExpressionKind::tuple, now().line, "");
  bool comma = false;
  while (now().kind != TokenKind::variable_end && now().kind != TokenKind::block_end && !is_op(")") &&
         (end.empty() || !is_name(end))) {
    adopt(*all, expression(with_choice));
    if (!skip_op(",")) {
      break;
    }
    comma = true;
  }
  if (comma || (brackets && all->parts.empty())) {
    return all;
  }
  if (all->parts.empty()) {
    fail_expected("an expression");
  }
  return std::move(all->parts.front());
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr made) {
  while (true) {
    const int line = now().line;
    if (skip_op(".")) {
      if (now().kind == TokenKind::integer) {
        made = make(ExpressionKind::item, line, "", std::move(made), constant(line, number(take())));
      } else {
        made = make(ExpressionKind::attribute, line, expect_name("a name or a number"), std::move(made));
      }
    } else if (skip_op("[")) {
      made = subscript(line, std::move(made));
    } else if (is_op("(")) {
      made = call(std::move(made));
    } else {
      return made;
    }
  }
}

ExpressionPtr ExpressionParser::call(ExpressionPtr made) {
  made = make(ExpressionKind::call, now().line, "", std::move(made));
  arguments(*made);
  return made;
}

ExpressionPtr ExpressionParser::subscript(int line, ExpressionPtr made) {
  ExpressionPtr from = is_op(":") ? nullptr : expression(), to, step;
  if (skip_op("]")) {
    return make(ExpressionKind::item, line, "", std::move(made), std::move(from));
  }
  if (is_op(",")) {
    fail(line, "an index of several values: pare does not support this in a template");
  }
  expect_op(":");
  if (!is_op("]") && !is_op(":")) {
    to = expression();
  }
  if (skip_op(":") && !is_op("]")) {
    step = expression();
  }
  expect_op("]");
  return make(ExpressionKind::slice, line, "", std::move(made), std::move(from), std::move(to), std::move(step));
}

void ExpressionParser::arguments(Expression& made) {
  expect_op("(");
  bool first = true;
  while (!is_op(")")) {
    if (!first) {
      expect_op(",");
      if (is_op(")")) {
        break;
      }
    }
    first = false;
    if (is_op("*") || is_op("**")) {
      fail(now().line, fmt::format("arguments by {}: pare does not support this in a template", now().text));
    }
    if (now().kind == TokenKind::name && then().kind == TokenKind::op && then().text == "=") {
      const std::string name = take().text;
      take();
      made.arguments.named.emplace_back(name, expression());
      deepen(made, made.arguments.named.back().second);
      continue;
    }
    if (!made.arguments.named.empty()) {
      fail(now().line, "an argument without name after one that has it");
    }
    made.arguments.positional.push_back(expression());
    deepen(made, made.arguments.positional.back());
  }
  expect_op(")");
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr made) {
  while (true) {
    if (is_op("|")) {
      made = filter(std::move(made), false);
    } else if (is_name("is")) {
      made = test(std::move(made));
    } else if (is_op("(")) {
      made = call(std::move(made));
    } else {
      return made;
    }
  }
}

std::string ExpressionParser::dotted_name(std::string_view what) {
  std::string name = expect_name(what);
  while (skip_op(".")) {
    name += "." + expect_name(what);
  }
  return name;
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr made, bool begun) {
  while (begun || is_op("|")) {
    if (!begun) {
      take();
    }
    begun = false;
    const int line = now().line;
    std::string name = dotted_name("the name of a filter");
    made = make(ExpressionKind::filter, line, std::move(name), std::move(made));
    if (is_op("(")) {
      arguments(*made);
    }
  }
  return made;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr made) {
  const int line = take().line;
  const bool inverted = skip_name("not");
  std::string name = dotted_name("the name of a test");
  made = make(ExpressionKind::test, line, std::move(name), std::move(made));
  const TokenKind kind = now().kind;
  if (is_op("(")) {
    arguments(*made);
  } else if (kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real || is_op("[") ||
             is_op("{") || (kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and"))) {
    if (is_name("is")) {
      fail(now().line, "one 'is' after another");
    }
    made->arguments.positional.push_back(postfix(primary()));
    deepen(*made, made->arguments.positional.back());
  }
  return inverted ? make(ExpressionKind::invert, line, "", std::move(made)) : std::move(made);
}
}  // namespace pare::jinja
