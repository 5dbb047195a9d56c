#pragma once
// A chat template as a tree. Jinja's language, as transformers sets it up: trim_blocks, lstrip_blocks, break and
// continue, `generation` blocks.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pare/data/jinja_value.h"

namespace pare::jinja {

enum class TokenKind {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  // of a name, an operator, a string as it means, a number as it stands there
  int line = 1;
};

// InputError, with `subject` and line, where this is no template.
std::vector<Token> tokens_of(std::string_view text, const std::string& subject);

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Arguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

enum class ExpressionKind {
  constant,
  name,
  list,
  tuple,
  dict,       // parts: key, value, key, value
  attribute,  // of parts[0], by name
  item,       // of parts[0], by parts[1]
  slice,      // of parts[0]: from, to, step in parts[1..3], each may be missing
  call,
  filter,  // name; of parts[0], which is missing in a filter of a block
  test,
  negate,
  plus,
  invert,   // not
  binary,   // name is the operator
  concat,   // ~
  compare,  // parts, with operators between them
  both,
  either,
  choice,  // parts: condition, what then, what else, which may be missing
};

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  int line = 0, depth = 1;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  Arguments arguments;
  std::vector<std::string> operators;
};

struct Statement;
using Statements = std::vector<Statement>;

enum class StatementKind {
  text,
  output,
  choice,      // if: conditions[n] guards bodies[n]; one more body is the else
  loop,        // for target in value if condition; bodies: each, else
  assign,      // target = value
  capture,     // {% set target | filter %}body{% endset %}
  macro,       // name, parameters, defaults of the last of them
  call,        // {% call(parameters) value %}body{% endcall %}
  filter,      // value: the filters
  with,        // names and values
  generation,  // what transformers marks as the model's own
  leave,       // break
  next,        // continue
};

struct Statement {
  StatementKind kind = StatementKind::text;
  int line = 0;
  std::string text;  // or the name of a macro
  ExpressionPtr target, value;
  std::vector<ExpressionPtr> conditions;
  std::vector<Statements> bodies;
  std::vector<std::vector<std::string>> hidden;  // of each body that is a scope of its own: see find_hidden
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of parameters; of `with`, each name's
};

struct Tree {
  Statements statements;
  std::vector<std::string> hidden;
};
Tree parse_template(std::string_view text, const std::string& subject);

// Names that are undefined where these statements begin, whatever variables there are; for each scope within them it is
// noted there.
std::vector<std::string> find_hidden(Statements& statements);

}  // namespace pare::jinja
