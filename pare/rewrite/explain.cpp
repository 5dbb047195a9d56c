#include "pare/rewrite/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "pare/rewrite/reasons.h"
#include "pare/support/table.h"

namespace pare {

namespace {

// Numbers of blocks are written in names ("blocks.3") and below symbols ("Θ₃").
struct Numeral {
  size_t begin = 0, end = 0;  // its digits
  int64_t value = 0;
  bool below = false;
};

bool is_digit(std::string_view text, size_t at) {
  return at < text.size() && text[at] >= '0' && text[at] <= '9';
}

// The subscripts of 0 to 9 differ in the last of their three bytes.
bool is_subscript(std::string_view text, size_t at) {
  return text.substr(at, 2) == "\xE2\x82" && at + 2 < text.size() && static_cast<unsigned char>(text[at + 2]) >= 0x80 &&
         static_cast<unsigned char>(text[at + 2]) <= 0x89;
}

std::optional<Numeral> next_numeral(std::string_view text, size_t from) {
  constexpr std::string_view name = "blocks.";
  for (size_t at = from; at < text.size(); ++at) {
    Numeral found{at, at};
    if (text.substr(at, name.size()) == name && is_digit(text, at + name.size())) {
      found.begin = found.end = at + name.size();
      for (; is_digit(text, found.end); ++found.end) {
        found.value = 10 * found.value + (text[found.end] - '0');
      }
      return found;
    }
    if (is_subscript(text, at)) {
      found.below = true;
      for (; is_subscript(text, found.end); found.end += 3) {
        found.value = 10 * found.value + (text[found.end + 2] - '\x80');
      }
      return found;
    }
  }
  return std::nullopt;
}

// "n", "n+1", "n-2"
std::string distance(int64_t from, const Numeral& to) {
  const int64_t by = to.value - from;
  if (!to.below) {
    return by == 0 ? "n" : fmt::format("n{:+}", by);
  }
  return by == 0 ? "ₙ" : (by > 0 ? "ₙ₊" : "ₙ₋") + subscript(std::abs(by));
}

enum class Relative { names, all };

// The text as seen from a block: its own number is n.
std::string seen_from(int64_t block, const std::string& text, Relative what) {
  std::string seen;
  size_t from = 0;
  while (const std::optional<Numeral> numeral = next_numeral(text, from)) {
    const bool keep = numeral->below && what == Relative::names;
    seen += text.substr(from, numeral->begin - from);
    seen += keep ? text.substr(numeral->begin, numeral->end - numeral->begin) : distance(block, *numeral);
    from = numeral->end;
  }
  return seen + text.substr(from);
}

using Lines = std::vector<std::pair<std::string, std::string>>;  // a name and what it is

// What is the same for several blocks, said once. A symbol may be each block's own (Θₙ) or one for all (Θ₅).
Lines folded(const Lines& lines) {
  using Key = std::pair<std::string, std::string>;
  std::map<Key, std::vector<int64_t>> blocks;
  std::map<Key, Key> single;
  const auto key_of = [](const auto& line, int64_t block, Relative what) {
    return Key(seen_from(block, line.first, Relative::all), seen_from(block, line.second, what));
  };
  for (const auto& line : lines) {
    if (const std::optional<Numeral> own = next_numeral(line.first, 0)) {
      blocks[key_of(line, own->value, Relative::names)].push_back(own->value);
    }
  }
  std::vector<Key> order;
  std::map<Key, std::vector<int64_t>> groups;
  for (const auto& line : lines) {
    Key key = line;
    const std::optional<Numeral> own = next_numeral(line.first, 0);
    if (own) {
      key = key_of(line, own->value, Relative::names);
      key = blocks.at(key).size() > 1 ? key : key_of(line, own->value, Relative::all);
    }
    if (groups[key].empty()) {
      order.push_back(key);
    }
    groups[key].push_back(own ? own->value : -1);
    single.emplace(key, line);
  }
  Lines result;
  for (const Key& key : order) {
    std::vector<int64_t> numbers = groups.at(key);
    if (numbers.size() == 1) {
      result.push_back(single.at(key));
      continue;
    }
    std::ranges::sort(numbers);
    auto [name, formula] = key;
    if (name.starts_with("blocks.n")) {
      name.replace(7, 1, ranges(numbers));
    } else {
      formula += fmt::format(", n = {}", ranges(numbers));
    }
    result.emplace_back(std::move(name), std::move(formula));
  }
  return result;
}

std::string listed(const std::vector<std::string>& names) {
  Lines lines;
  for (const std::string& name : names) {
    lines.emplace_back(name, "");
  }
  std::string text;
  for (const auto& [name, nothing] : folded(lines)) {
    text += wrapped(name, 4, "  ");
  }
  return text;
}

std::string equations(const Lines& lines) {
  std::string text;
  for (const auto& [name, formula] : folded(lines)) {
    text += wrapped(fmt::format("{} = {}", name, formula), 4, "  ");
  }
  return text;
}

struct Word {
  std::string_view name, meaning;
};

constexpr Word words[] = {
    {"gauge", "gauge(W): R of the QR decomposition of W's columns, key/value head by key/value head"},
    {"rope_gauge", "rope_gauge(W): the same, but the root mean square of each two columns that RoPE turns"},
    {"to_queries", "to_queries(X): each key/value head's part, once for every query head that shares it"},
    {"repeated", "repeated(n, X): X once for each of n heads, or a number n times"},
    {"sinusoidal", "sinusoidal(n, d): the positions 0 to n - 1, computed so far"},
    {"sinusoidal_halves", "sinusoidal_halves(n, d): the same with all sines before all cosines"},
    {"flat", "flat(X): the columns of X one after another"},
    {"signs", "signs(n; i, j-k): n ones on a diagonal, but -1 at i and from j to k"},
    {"only", "only(n; i, j-k): n zeros on a diagonal, but 1 at i and from j to k"},
    {"columns", "columns(i, n): what stands before it, from column i on, of n columns that are else zero"},
    {"rms_norm", "rms_norm(X, ε): each row over its root mean square"},
    {"layer_norm", "layer_norm(X, ε): each row less its mean, over its deviation"},
    {"diag", "diag(g): g on a diagonal"},
    {"centring", "centring(d): I less the d x d matrix of 1/d, which takes a row's mean off"},
    {"orthogonal",
     "orthogonal(W): Θ of W = Θ R, R triangular with a positive diagonal; of more columns than rows the "
     "first decide"},
    {"heads", "heads(X): X by its heads, each a matrix by itself; a key/value head once for every query head of it"},
    {"pivot_block",
     "pivot_block(W): of each key/value head of W those rows, as many as it has columns, that span "
     "nearly the largest volume"},
    {"shrunk", "shrunk(W): each key/value head of W without the rows that are an identity"},
    {"pivots", "pivots(W): which rows of each key/value head of W are an identity"},
    {"unshrunk", "unshrunk(W): with those rows, which the pivots name, put back"},
    {"pinv", "pinv(W): the pseudoinverse, W · pinv(W) = I"},
    {"value_gauge",
     "value_gauge(V, b, O): for each key/value head the D with [V; b] D = U √S and D⁻¹ O = √S Wᵀ, of "
     "the singular values U S Wᵀ = [V; b] O with O of all its query heads side by side; the largest "
     "entry of each column of U positive"},
    {"key_gauge",
     "key_gauge(Q, b, K, c): the same for [Q; b] E and [K; c] E⁻ᵀ; what RoPE turns only in its planes, and "
     "under a norm of keys, or where they are the queries, only turned"},
    {"head_order",
     "head_order(V, b, O): the heads by the length of [V; b] O, the longest first, and heads that share a "
     "key/value head together"},
    {"by_head", "by_head(π): the permutation of columns that puts the heads into that order"},
    {"by_group", "by_group(π): the same of key/value heads"},
    {"group_order", "group_order(π): the order of the key/value heads alone"},
};

// Whether a formula calls a function of that name.
bool mentions(const Explanation& explanation, std::string_view name) {
  const std::string call = fmt::format("{}(", name);
  const auto calls = [&](const auto& entry) {
    const std::string& text = entry.second;
    const auto goes_on = [&](size_t at) { return text[at] == '_' || (text[at] >= 'a' && text[at] <= 'z'); };
    size_t at = text.find(call);
    while (at != std::string::npos && at > 0 && goes_on(at - 1)) {  // the end of a longer name
      at = text.find(call, at + 1);
    }
    return at != std::string::npos;
  };
  return std::ranges::any_of(explanation.formulas, calls) || std::ranges::any_of(explanation.symbols, calls);
}

}  // namespace

Explanation explain(const Weights& source, const Weights& written) {
  Explanation explanation;
  Notation notation;
  for (const auto& [name, weight] : written) {
    const auto before = source.find(name);
    const std::string formula = notation.text(weight.formula());
    if (before == source.end() || formula != name) {
      explanation.formulas[name] = formula;
    } else if (weight.dtype() != before->second.dtype()) {
      explanation.retyped[std::string(word(weight.dtype()))].push_back(name);
    }
  }
  for (const auto& [name, weight] : source) {
    if (!written.contains(name)) {
      explanation.removed.push_back(name);
    }
  }
  explanation.symbols = notation.definitions();
  return explanation;
}

std::string text_of(const Explanation& explanation) {
  std::string text;
  if (!explanation.formulas.empty()) {
    text += wrapped(
        "Every tensor that is new or changed, in terms of the model's own, under pare's names (docs/formats.md). A row "
        "of activations stands before its matrix, [in, out]; tables and biases are rows:",
        0);
    text += equations({explanation.formulas.begin(), explanation.formulas.end()});
  }
  if (!explanation.symbols.empty()) {
    text += "where\n" + equations(explanation.symbols);
  }
  for (const Word& word : words) {
    text += mentions(explanation, word.name) ? wrapped(word.meaning, 4, "  ") : "";
  }
  if (!explanation.removed.empty()) {
    text += "removed\n" + listed(explanation.removed);
  }
  for (const auto& [dtype, names] : explanation.retyped) {
    text += fmt::format("as it was, in {}\n{}", dtype, listed(names));
  }
  return text;
}

nlohmann::ordered_json to_json(const Explanation& explanation) {
  nlohmann::ordered_json symbols = nlohmann::ordered_json::object();
  for (const auto& [name, definition] : explanation.symbols) {
    symbols[name] = definition;
  }
  return {{"tensors", explanation.formulas},
          {"symbols", symbols},
          {"removed", explanation.removed},
          {"retyped", explanation.retyped}};
}

}  // namespace pare
