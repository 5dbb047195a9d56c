#include "pare/data/jinja_parser.h"

namespace pare::jinja {

namespace {

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;
  Statements whole() { return statements({}); }

 private:
  // Up to a tag that begins with one of `ends`, whose name is next; or to the end of the template.
  Statements statements(const Ends& ends) {
    const Nested nested(*this);
    Statements body;
    while (true) {
      const Token token = now();
      if (token.kind == TokenKind::end) {
        if (!ends.empty()) {
          fail_expected(fmt::format("{{% {} %}}", *ends.begin()));
        }
        return body;
      }
      take();
      if (token.kind == TokenKind::data) {
        body.push_back({.kind = StatementKind::text, .line = token.line, .text = token.text});
      } else if (token.kind == TokenKind::variable_begin) {
        body.push_back({.kind = StatementKind::output, .line = token.line, .value = tuple()});
        expect(TokenKind::variable_end, "}}");
      } else {
        if (now().kind == TokenKind::name && ends.contains(now().text)) {
          return body;
        }
        body.push_back(statement());
        expect(TokenKind::block_end, "%}");
      }
    }
  }

  // From the end of a tag to one of `ends`, whose name is next.
  Statements body_until(const Ends& ends) {
    skip_op(":");
    expect(TokenKind::block_end, "%}");
    return statements(ends);
  }

  Statements body_through(std::string_view end) {
    Statements body = body_until({end});
    take();
    return body;
  }

  // A body of its own, which no break leaves.
  Statements apart(std::string_view end) {
    const int outside = std::exchange(loops_, 0);
    Statements body = body_through(end);
    loops_ = outside;
    return body;
  }

  Statement statement() {
    const int line = now().line;
    const std::string name = expect_name("the name of a tag");
    if (name == "if") {
      return choice(line);
    }
    if (name == "for") {
      return loop(line);
    }
    if (name == "set") {
      return assignment(line);
    }
    if (name == "macro") {
      Statement made{.kind = StatementKind::macro, .line = line, .text = expect_name("a name")};
      parameters(made);
      made.bodies.push_back(apart("endmacro"));
      return made;
    }
    if (name == "call") {
      Statement made{.kind = StatementKind::call, .line = line};
      if (is_op("(")) {
        parameters(made);
      }
      made.value = expression();
      if (made.value->kind != ExpressionKind::call) {
        fail(line, "expected a call");
      }
      made.bodies.push_back(apart("endcall"));
      return made;
    }
    if (name == "filter") {
      Statement made{.kind = StatementKind::filter, .line = line, .value = filter(nullptr, true)};
      made.bodies.push_back(body_through("endfilter"));
      return made;
    }
    if (name == "with") {
      Statement made{.kind = StatementKind::with, .line = line};
      while (now().kind != TokenKind::block_end && !is_op(":")) {
        if (!made.parameters.empty()) {
          expect_op(",");
        }
        made.parameters.push_back(expect_name("a name"));
        expect_op("=");
        made.defaults.push_back(expression());
      }
      made.bodies.push_back(body_through("endwith"));
      return made;
    }
    if (name == "generation") {
      Statement made{.kind = StatementKind::generation, .line = line};
      made.bodies.push_back(apart("endgeneration"));
      return made;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) {
        fail(line, fmt::format("'{}' outside of a loop", name));
      }
      return {.kind = name == "break" ? StatementKind::leave : StatementKind::next, .line = line};
    }
    fail(line, fmt::format("the tag '{}' is unknown, or not supported in a chat template", name));
  }

  Statement choice(int line) {
    Statement made{.kind = StatementKind::choice, .line = line};
    while (true) {
      made.conditions.push_back(tuple(false));
      made.bodies.push_back(body_until({"elif", "else", "endif"}));
      const bool otherwise = is_name("else"), more = is_name("elif");
      take();
      if (otherwise) {
        made.bodies.push_back(body_through("endif"));
      }
      if (!more) {
        return made;
      }
    }
  }

  Statement loop(int line) {
    Statement made{.kind = StatementKind::loop, .line = line};
    made.target = target("in", false);
    if (!skip_name("in")) {
      fail_expected("'in'");
    }
    made.value = tuple(false, "recursive");
    if (skip_name("if")) {
      made.conditions.push_back(expression());
    }
    if (is_name("recursive")) {
      fail(line, "a recursive loop: pare does not support this in a template");
    }
    ++loops_;
    made.bodies.push_back(body_until({"endfor", "else"}));
    --loops_;
    const bool otherwise = is_name("else");
    take();
    if (otherwise) {
      made.bodies.push_back(body_through("endfor"));
    }
    return made;
  }

  Statement assignment(int line) {
    Statement made{.kind = StatementKind::assign, .line = line};
    made.target = target("", true);
    if (skip_op("=")) {
      made.value = tuple();
      return made;
    }
    made.kind = StatementKind::capture;
    made.value = is_op("|") ? filter(nullptr, false) : nullptr;
    made.bodies.push_back(body_through("endset"));
    return made;
  }

  // Names, separated by commas; with `spaces` also an attribute of a namespace.
  ExpressionPtr target(std::string_view end, bool spaces) {
    const int line = now().line;
    const bool bracket = skip_op("(");
    auto all = make(ExpressionKind::tuple, line, "");
    bool comma = false;
    while (now().kind == TokenKind::name && now().text != end) {
      const std::string name = take().text;
      static const Ends constants = {"true", "false", "none", "True", "False", "None"};
      if (constants.contains(name) || name == "loop") {
        fail(line, fmt::format("'{}' cannot be assigned to", name));
      }
      if (spaces && skip_op(".")) {
        adopt(*all,
              make(ExpressionKind::attribute, line, expect_name("a name"), make(ExpressionKind::name, line, name)));
      } else {
        adopt(*all, make(ExpressionKind::name, line, name));
      }
      if (!skip_op(",")) {
        break;
      }
      comma = true;
    }
    if (bracket) {
      expect_op(")");
    }
    if (all->parts.empty() || (is_op("(") || is_op("["))) {
      fail_expected("names to assign to");
    }
    return comma ? std::move(all) : std::move(all->parts.front());
  }

  void parameters(Statement& made) {
    expect_op("(");
    while (!is_op(")")) {
      if (!made.parameters.empty()) {
        expect_op(",");
      }
      made.parameters.push_back(expect_name("a name"));
      if (skip_op("=")) {
        made.defaults.push_back(expression());
      } else if (!made.defaults.empty()) {
        fail(now().line, "a parameter without default after one that has it");
      }
    }
    expect_op(")");
  }

  int loops_ = 0;
};

}  // namespace

Tree parse_template(std::string_view text, const std::string& subject) {
  Tree tree{Parser(tokens_of(text, subject), subject).whole(), {}};
  tree.hidden = find_hidden(tree.statements);
  return tree;
}

}  // namespace pare::jinja
