// The filters and tests of a template.

#include <charconv>
#include <cmath>
#include <set>

#include "pare/data/jinja_evaluator.h"
#include "pare/data/utf8.h"

namespace pare::jinja {

namespace {

using Names = std::set<std::string_view>;

bool flag_of(const Given& given, size_t place, std::string_view name, bool without = false) {
  const Value* found = given.find(place, name);
  return found == nullptr ? without : truth(*found);
}

// Numbers in text, as Python reads them.
template <class Number>
std::optional<Number> parsed(std::string_view text) {
  text = stripped(text, true, true);
  if (text.starts_with('+') && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  if (text.find('_') != text.npos || text.find('(') != text.npos || !is_ascii(text)) {
    return text.find_first_of("0123456789") == text.npos ? std::nullopt
                                                         : (lacking("the number '{}'", text), std::nullopt);
  }
  Number number = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (wrong == std::errc::result_out_of_range) {
    lacking("the number '{}'", text);
  }
  return wrong == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

Value whole_number(double number, const Value& without) {
  if (std::isnan(number) || std::isinf(number)) {
    return without;
  }
  if (std::abs(number) > 9e18) {
    lacking("a whole number of more than 64 bits");
  }
  return Value(static_cast<int64_t>(number));
}

Value to_int(const Value& input, const Given& given, StepBudget& budget) {
  given.allow("int", 2, {"default", "base"});
  if (given.find(1, "base") != nullptr) {
    lacking("int with a base");
  }
  const Value* found = given.find(0, "default");
  const Value without = found == nullptr ? Value(int64_t{0}) : *found;
  if (input.integer()) {
    return Value(*input.integer());
  }
  if (const double* number = input.as<double>()) {
    if (std::isinf(*number)) {
      complain("infinity is no whole number");
    }
    return whole_number(*number, without);
  }
  if (const std::string* text = input.string()) {
    budget.pay_bytes(text->size());
    if (const std::optional<int64_t> whole = parsed<int64_t>(*text)) {
      return Value(*whole);
    }
    const std::optional<double> number = parsed<double>(*text);
    return number ? whole_number(*number, without) : without;
  }
  if (input.is_undefined()) {
    complain("'{}' is undefined", input.as<Undefined>()->name);
  }
  return without;
}

Value to_float(const Value& input, const Given& given, StepBudget& budget) {
  given.allow("float", 1, {"default"});
  budget.pay_bytes(input.string() != nullptr ? input.string()->size() : 0);
  const Value* without = given.find(0, "default");
  const std::optional<double> number = input.string() != nullptr ? parsed<double>(*input.string()) : input.number();
  if (input.is_undefined()) {
    complain("'{}' is undefined", input.as<Undefined>()->name);
  }
  return number ? Value(*number) : without != nullptr ? *without : Value(0.0);
}

Value to_json(const Value& input, const Given& given, StepBudget& budget) {
  given.allow("tojson", 4, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = flag_of(given, 0, "ensure_ascii"), .sorted = flag_of(given, 3, "sort_keys")};
  if (const Value* indent = given.find(1, "indent"); indent != nullptr && !indent->is_none()) {
    if (indent->string() == nullptr && !indent->integer()) {
      complain("tojson: indent is {}, expected a number or a string", indent->type());
    }
    const int64_t width = indent->integer().value_or(0);
    budget.pay_bytes(static_cast<size_t>(std::max<int64_t>(width, 0)));
    style.indent = indent->string() != nullptr ? *indent->string()
                                               : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    style.between = ",";
  }
  if (const Value* separators = given.find(2, "separators"); separators != nullptr && !separators->is_none()) {
    const std::vector<Value> both = items_of(*separators, budget);
    if (both.size() != 2 || both[0].string() == nullptr || both[1].string() == nullptr) {
      complain("tojson: separators are two strings");
    }
    style.between = *both[0].string();
    style.after_key = *both[1].string();
  }
  std::string text = json_of(input, style, budget);
  budget.pay_bytes(text.size());
  return Value::text(std::move(text));
}

Value indented(const std::string& text, const Given& given, StepBudget& budget) {
  given.allow("indent", 3, {"width", "first", "blank"});
  const Value* width = given.find(0, "width");
  const int64_t spaces = width == nullptr ? 4 : width->integer().value_or(0);
  budget.pay_bytes(static_cast<size_t>(std::max<int64_t>(spaces, 0)));
  const std::string by = width != nullptr && width->string() != nullptr
                             ? *width->string()
                             : std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
  const bool blank = flag_of(given, 2, "blank");
  std::string out = flag_of(given, 1, "first") ? by : "";
  bool begun = false;
  for (const std::string& line : lines_of(text + "\n")) {
    out += std::exchange(begun, true) ? "\n" + (blank || !line.empty() ? by : "") + line : line;
    budget.pay_bytes(by.size() + line.size());
  }
  return Value::text(std::move(out));
}

Value without_case(const Value& value, bool case_matters, StepBudget& budget) {
  if (case_matters || value.string() == nullptr) {
    return value;
  }
  budget.pay_bytes(value.string()->size());
  return Value::text(lower_text(*value.string()));
}

// Sorted by keys, those that are equal in their order.
std::vector<Value> sorted_by(const std::vector<Value>& items, std::vector<Value> keys, bool reverse,
                             StepBudget& budget) {
  std::vector<size_t> order(items.size());
  for (size_t n = 0; n < order.size(); ++n) {
    order[n] = n;
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(keys[b], keys[a], budget) : less(keys[a], keys[b], budget);
  });
  std::vector<Value> out;
  for (const size_t n : order) {
    out.push_back(items[n]);
  }
  return out;
}

Value sorted_dict(const Value& input, const Given& given, StepBudget& budget) {
  given.allow("dictsort", 3, {"case_sensitive", "by", "reverse"});
  if (input.dict() == nullptr) {
    complain("dictsort of {}, expected a dict", input.type());
  }
  const Value* by = given.find(1, "by");
  const bool values = by != nullptr && by->string() != nullptr && *by->string() == "value";
  if (by != nullptr && !values && (by->string() == nullptr || *by->string() != "key")) {
    complain("dictsort by neither 'key' nor 'value'");
  }
  std::vector<Value> items, keys;
  budget.pay(input.dict()->entries.size());
  for (const auto& [key, value] : input.dict()->entries) {
    items.push_back(Value::list({key, value}, Flavour::tuple));
    keys.push_back(without_case(values ? value : key, flag_of(given, 0, "case_sensitive"), budget));
  }
  return Value::list(sorted_by(items, std::move(keys), flag_of(given, 2, "reverse"), budget));
}

Value reversed(const Value& input, StepBudget& budget) {
  if (input.as<std::shared_ptr<Generator>>() == nullptr && !is_iterable(input)) {
    complain("reverse of {}, expected a list or a string", input.type());
  }
  std::vector<Value> items = items_of(input, budget);
  std::reverse(items.begin(), items.end());
  if (input.string() == nullptr) {
    return Value::generator(std::move(items));
  }
  std::string text;
  for (const Value& item : items) {
    text += *item.string();
  }
  return Value::text(std::move(text));
}

Value first_of(const Value& input, bool last, StepBudget& budget) {
  const auto* generator = input.as<std::shared_ptr<Generator>>();
  if (generator != nullptr && last) {
    complain("the last of what can be walked through only once");
  }
  if (generator != nullptr) {
    Generator& g = **generator;
    return g.next < g.items.size() ? g.items[g.next++] : Value::undefined("the first item");
  }
  const std::vector<Value> items = items_of(input, budget);
  return items.empty() ? Value::undefined(last ? "the last item" : "the first item")
         : last        ? items.back()
                       : items.front();
}

// The filters that make text of text.
std::optional<std::string> text_filter(const std::string& name, const std::string& text, const Given& given,
                                       StepBudget& budget) {
  if (name == "trim") {
    given.allow(name, 1, {"chars"});
    return stripped_of(text, given.find(0, "chars"), true, true, budget);
  }
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "title") {
    given.allow(name, 0);
    return name == "upper"   ? upper_text(text)
           : name == "lower" ? lower_text(text)
           : name == "title" ? title_by_filter(text)
                             : capital_text(text);
  }
  return std::nullopt;
}

Given rest_of(const Given& given, size_t from) {
  Given rest{{}, given.named};
  rest.positional.assign(
      given.positional.begin() + static_cast<std::ptrdiff_t>(std::min(from, given.positional.size())),
      given.positional.end());
  return rest;
}

std::string name_in(const Value& value, std::string_view what) {
  if (value.string() == nullptr) {
    complain("{} takes the name of a filter or test, not {}", what, value.type());
  }
  return *value.string();
}

Value mapped(Evaluator& evaluator, const Value& input, const Given& given) {
  const Value* attribute = given.positional.empty() ? given.find(0, "attribute") : nullptr;
  if (attribute != nullptr) {
    given.allow("map", 0, {"attribute", "default"});
  } else if (given.positional.empty()) {
    complain("map takes the name of a filter, or attribute=");
  }
  std::vector<Value> out;
  for (const Value& item : truth(input) ? items_of(input, evaluator.budget()) : std::vector<Value>()) {
    if (attribute == nullptr) {
      out.push_back(evaluator.filtered(name_in(given.positional[0], "map"), item, rest_of(given, 1)));
      continue;
    }
    Value found = evaluator.item_by_path(item, *attribute);
    const Value* without = given.find(1, "default");
    out.push_back(found.is_undefined() && without != nullptr && !without->is_none() ? *without : found);
  }
  return Value::generator(std::move(out));
}

Value selected(Evaluator& evaluator, const std::string& name, const Value& input, const Given& given) {
  const bool by_attribute = name.ends_with("attr"), rejects = name.starts_with("reject");
  if (by_attribute && given.positional.empty()) {
    complain("{} takes the name of an attribute", name);
  }
  const size_t test = by_attribute ? 1 : 0;
  std::vector<Value> out;
  for (const Value& item : truth(input) ? items_of(input, evaluator.budget()) : std::vector<Value>()) {
    const Value value = by_attribute ? evaluator.item_by_path(item, given.positional[0]) : item;
    const bool holds = given.positional.size() > test
                           ? evaluator.tested(name_in(given.positional[test], name), value, rest_of(given, test + 1))
                           : truth(value);
    if (holds != rejects) {
      out.push_back(item);
    }
  }
  return Value::generator(std::move(out));
}

Value joined(Evaluator& evaluator, const Value& input, const Given& given) {
  given.allow("join", 2, {"d", "attribute"});
  const Value *between = given.find(0, "d"), *attribute = given.find(1, "attribute");
  const std::string glue = between == nullptr ? "" : str(*between, evaluator.budget());
  std::string out;
  bool begun = false;
  for (const Value& item : items_of(input, evaluator.budget())) {
    const Value part = attribute == nullptr ? item : evaluator.item_by_path(item, *attribute);
    out += (std::exchange(begun, true) ? glue : "") + str(part, evaluator.budget());
    evaluator.budget().pay_bytes(glue.size());
  }
  return Value::text(std::move(out));
}

Value ordered(Evaluator& evaluator, const std::string& name, const Value& input, const Given& given) {
  const bool sorts = name == "sort";
  given.allow(name, sorts ? 3 : 2, {"case_sensitive", "attribute", sorts ? "reverse" : "attribute"});
  const bool case_matters = flag_of(given, sorts ? 1 : 0, "case_sensitive");
  const Value* attribute = given.find(sorts ? 2 : 1, "attribute");
  if (attribute != nullptr && attribute->string() != nullptr && attribute->string()->find(',') != std::string::npos) {
    lacking("{} by several attributes", name);
  }
  const std::vector<Value> items = items_of(input, evaluator.budget());
  std::vector<Value> keys, out;
  Dict seen;
  for (const Value& item : items) {
    keys.push_back(without_case(attribute == nullptr ? item : evaluator.item_by_path(item, *attribute), case_matters,
                                evaluator.budget()));
    if (!sorts && seen.find(keys.back(), evaluator.budget()) == nullptr) {
      seen.set(keys.back(), Value::none(), evaluator.budget());
      out.push_back(item);
    }
  }
  if (!sorts) {
    return Value::generator(std::move(out));
  }
  return Value::list(sorted_by(items, std::move(keys), flag_of(given, 0, "reverse"), evaluator.budget()));
}

}  // namespace

Value Evaluator::filtered(const std::string& name, const Value& input, const Given& given) {
  budget_.pay();
  static const Names of_safe = {"safe",  "string", "default", "d",    "length",
                                "count", "tojson", "replace", "join", "list"};
  if (input.is_safe() && !of_safe.contains(name)) {
    lacking("the filter {} of a string that is marked as safe", name);
  }
  if (name == "default" || name == "d") {
    given.allow(name, 2, {"default_value", "boolean"});
    const Value* without = given.find(0, "default_value");
    const bool missing = input.is_undefined() || (flag_of(given, 1, "boolean") && !truth(input));
    return !missing ? input : without != nullptr ? *without : Value::text("");
  }
  static const Names of_text = {"trim", "upper", "lower", "capitalize", "title"};
  if (of_text.contains(name)) {
    return Value::text(*text_filter(name, str(input, budget_), given, budget_));
  }
  static const Names plain = {"length", "count", "first", "last", "list", "string", "safe", "reverse", "items"};
  if (plain.contains(name)) {
    given.allow(name, 0);
  }
  if (name == "length" || name == "count") {
    return Value(length_of(input, budget_));
  }
  if (name == "first" || name == "last") {
    return first_of(input, name == "last", budget_);
  }
  if (name == "list") {
    return Value::list(items_of(input, budget_));
  }
  if (name == "string" || name == "safe") {
    return Value::text(str(input, budget_), name == "safe" || input.is_safe());
  }
  if (name == "reverse") {
    return reversed(input, budget_);
  }
  if (name == "items") {
    return input.is_undefined()      ? Value::generator({})
           : input.dict() == nullptr ? (complain("items of {}, expected a dict", input.type()), Value())
                                     : Value::generator(items_of(call_method(input, "items", {}, budget_), budget_));
  }
  if (name == "tojson") {
    return to_json(input, given, budget_);
  }
  if (name == "join") {
    return joined(*this, input, given);
  }
  if (name == "int") {
    return to_int(input, given, budget_);
  }
  if (name == "float") {
    return to_float(input, given, budget_);
  }
  if (name == "replace") {
    given.allow(name, 3, {"old", "new", "count"});
    const Value *from = given.find(0, "old"), *to = given.find(1, "new"), *most = given.find(2, "count");
    if (from == nullptr || to == nullptr) {
      complain("replace takes what is replaced, and by what");
    }
    return Value::text(replaced(str(input, budget_), str(*from, budget_), str(*to, budget_),
                                most == nullptr || most->is_none() ? -1 : most->integer().value_or(-1), budget_));
  }
  if (name == "indent") {
    if (input.string() == nullptr) {
      complain("indent of {}, expected a string", input.type());
    }
    return indented(*input.string(), given, budget_);
  }
  if (name == "map") {
    return mapped(*this, input, given);
  }
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return selected(*this, name, input, given);
  }
  if (name == "sort" || name == "unique") {
    return ordered(*this, name, input, given);
  }
  if (name == "dictsort") {
    return sorted_dict(input, given, budget_);
  }
  lacking("the filter {}", name);
}

bool Evaluator::tested(const std::string& name, const Value& value, const Given& given) {
  budget_.pay();
  static const Names binary = {"eq", "==",          "equalto", "ne", "!=", "lt", "<",  "lessthan", "gt",
                               ">",  "greaterthan", "le",      "<=", "ge", ">=", "in", "sameas",   "divisibleby"};
  given.allow(name, binary.contains(name) ? 1 : 0);
  if (binary.contains(name)) {
    if (given.positional.empty()) {
      complain("the test {} takes a value", name);
    }
    const Value& other = given.positional[0];
    if (name == "eq" || name == "==" || name == "equalto" || name == "ne" || name == "!=") {
      return equal(value, other, budget_) == (name != "ne" && name != "!=");
    }
    if (name == "in") {
      return contains(other, value, budget_);
    }
    if (name == "divisibleby") {
      return !truth(arithmetic("%", value, other, budget_));
    }
    if (name == "sameas") {
      if (!value.is_none() && !other.is_none() && value.as<bool>() == nullptr && other.as<bool>() == nullptr) {
        lacking("the test sameas of {}", value.type());
      }
      return value.content().index() == other.content().index() && equal(value, other, budget_);
    }
    const bool greater = name.starts_with('g') || name.starts_with('>');
    const bool strictly = greater ? less(other, value, budget_) : less(value, other, budget_);
    return strictly || ((name.ends_with('e') || name.ends_with('=')) && equal(value, other, budget_));
  }
  const Sequence* sequence = value.sequence();
  if (name == "defined" || name == "undefined") {
    return value.is_undefined() == (name == "undefined");
  }
  if (name == "none") {
    return value.is_none();
  }
  if (name == "string") {
    return value.string() != nullptr;
  }
  if (name == "mapping") {
    return value.dict() != nullptr;
  }
  if (name == "iterable") {
    return is_iterable(value);
  }
  if (name == "sequence") {
    return value.is_undefined() || value.string() != nullptr || value.dict() != nullptr ||
           (sequence != nullptr && sequence->flavour <= Flavour::range);
  }
  if (name == "number") {
    return value.number().has_value();
  }
  if (name == "integer" || name == "float") {
    return name == "integer" ? value.as<int64_t>() != nullptr : value.as<double>() != nullptr;
  }
  if (name == "boolean") {
    return value.as<bool>() != nullptr;
  }
  if (name == "true" || name == "false") {
    return value.as<bool>() != nullptr && *value.as<bool>() == (name == "true");
  }
  if (name == "callable") {
    return value.as<const Function*>() != nullptr;
  }
  if (name == "odd" || name == "even") {
    return equal(arithmetic("%", value, Value(int64_t{2}), budget_), Value(int64_t{name == "odd"}), budget_);
  }
  lacking("the test {}", name);
}

}  // namespace pare::jinja
