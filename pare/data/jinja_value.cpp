#include "pare/data/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/data/utf8.h"

namespace pare::jinja {

namespace {

constexpr int deepest = 100;  // lists within lists

int depth_with(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
  }
  if (depth >= deepest) {
    complain("lists within lists, {} deep: expected at most {}", depth + 1, deepest);
  }
  return depth + 1;
}

bool all_equal(const std::vector<Value>& a, const std::vector<Value>& b, StepBudget& budget) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](const Value& x, const Value& y) { return equal(x, y, budget); });
}

bool is_list_or_tuple(const Sequence& sequence) {
  return sequence.flavour == Flavour::list || sequence.flavour == Flavour::tuple;
}

std::optional<std::string> place_of(const Value& key, StepBudget& budget) {  // the same for keys that are equal
  if (const std::string* text = key.string()) {
    budget.pay_bytes(text->size());
    return "s" + *text;
  }
  if (const std::optional<int64_t> whole = key.integer()) {
    return fmt::format("n{}", *whole);
  }
  if (const double* number = key.as<double>()) {
    const bool whole = std::trunc(*number) == *number && std::abs(*number) < 9e18;
    return whole ? fmt::format("n{}", static_cast<int64_t>(*number)) : "n" + number_text(*number);
  }
  return key.is_none() ? std::optional<std::string>("none") : std::nullopt;
}

}  // namespace

Value Value::text(std::string text, bool safe) {
  return Value(Content(Text{std::make_shared<const std::string>(std::move(text)), safe}));
}

Value Value::list(std::vector<Value> items, Flavour flavour) {
  const int depth = depth_with(items);
  return Value(Content(std::make_shared<const Sequence>(Sequence{flavour, std::move(items), depth})));
}

Value Value::generator(std::vector<Value> items) {
  const int depth = depth_with(items);
  return Value(Content(std::make_shared<Generator>(Generator{std::move(items), 0, depth})));
}

Value Value::dict(Dict entries) {
  std::vector<Value> values;
  for (const auto& [key, value] : entries.entries) {
    values.push_back(value);
    values.push_back(key);
  }
  entries.depth = depth_with(values);
  return Value(Content(std::make_shared<const Dict>(std::move(entries))));
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::string:
      return text(json.get<std::string>());
    case nlohmann::json::value_t::boolean:
      return Value(Content(json.get<bool>()));
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned:
      return Value(Content(json.get<int64_t>()));
    case nlohmann::json::value_t::number_float:
      return Value(Content(json.get<double>()));
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      for (const nlohmann::ordered_json& item : json) {
        items.push_back(from_json(item));
      }
      return list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      Dict entries;
      StepBudget unlimited(INT64_MAX);
      for (const auto& [key, value] : json.items()) {
        entries.set(text(key), from_json(value), unlimited);
      }
      return dict(std::move(entries));
    }
    default:
      return none();
  }
}

const std::string* Value::string() const {
  const Text* found = as<Text>();
  return found == nullptr ? nullptr : found->text.get();
}

const Sequence* Value::sequence() const {
  const auto* found = as<std::shared_ptr<const Sequence>>();
  return found == nullptr ? nullptr : found->get();
}

const Dict* Value::dict() const {
  const auto* found = as<std::shared_ptr<const Dict>>();
  return found == nullptr ? nullptr : found->get();
}

bool Value::is_safe() const {
  const Text* found = as<Text>();
  return found != nullptr && found->safe;
}

std::optional<int64_t> Value::integer() const {
  if (const bool* flag = as<bool>()) {
    return *flag ? 1 : 0;
  }
  const int64_t* whole = as<int64_t>();
  return whole != nullptr ? std::optional(*whole) : std::nullopt;
}

std::optional<double> Value::number() const {
  if (const double* number = as<double>()) {
    return *number;
  }
  const std::optional<int64_t> whole = integer();
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

std::string Value::type() const {
  if (const Sequence* found = sequence()) {
    static const char* const names[] = {"list", "tuple", "range", "dict_keys", "dict_values", "dict_items"};
    return names[static_cast<int>(found->flavour)];
  }
  static const char* const names[] = {"Undefined", "NoneType", "bool",      "int",       "float", "str",
                                      "list",      "dict",     "generator", "Namespace", "loop",  "function"};
  return names[content_.index()];
}

int Value::depth() const {
  if (const Sequence* found = sequence()) {
    return found->depth;
  }
  if (const Dict* found = dict()) {
    return found->depth;
  }
  const auto* generator = as<std::shared_ptr<Generator>>();
  return generator != nullptr ? (*generator)->depth : 0;
}

const Value* Dict::find(const Value& key, StepBudget& budget) const {
  const std::optional<std::string> place = place_of(key, budget);
  if (!place) {
    lacking("a key of type {}", key.type());
  }
  const auto found = places_.find(*place);
  return found == places_.end() ? nullptr : &entries[found->second].second;
}

void Dict::set(Value key, Value value, StepBudget& budget) {
  budget.pay();
  const std::optional<std::string> place = place_of(key, budget);
  if (!place) {
    lacking("a key of type {}", key.type());
  }
  const auto [found, fresh] = places_.emplace(*place, entries.size());
  if (fresh) {
    entries.emplace_back(std::move(key), std::move(value));
  } else {
    entries[found->second].second = std::move(value);
  }
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) {
    return false;
  }
  if (const std::optional<double> number = value.number()) {
    return *number != 0;
  }
  if (const std::string* text = value.string()) {
    return !text->empty();
  }
  if (const Sequence* sequence = value.sequence()) {
    return !sequence->items.empty();
  }
  const Dict* dict = value.dict();
  return dict == nullptr || !dict->entries.empty();
}

bool equal(const Value& a, const Value& b, StepBudget& budget) {
  budget.pay();
  const std::optional<int64_t> whole = a.integer(), other = b.integer();
  if (whole && other) {
    return *whole == *other;
  }
  if (a.number() && b.number()) {
    return *a.number() == *b.number();
  }
  if (a.string() != nullptr && b.string() != nullptr) {
    budget.pay_bytes(a.string()->size());
    return *a.string() == *b.string();
  }
  if (a.sequence() != nullptr && b.sequence() != nullptr) {
    const Sequence &x = *a.sequence(), &y = *b.sequence();
    if (!is_list_or_tuple(x) || !is_list_or_tuple(y)) {
      if (&x == &y) {
        return true;
      }
      lacking("{} compared with {}", a.type(), b.type());
    }
    return x.flavour == y.flavour && all_equal(x.items, y.items, budget);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    const Dict &x = *a.dict(), &y = *b.dict();
    return x.entries.size() == y.entries.size() &&
           std::all_of(x.entries.begin(), x.entries.end(), [&](const auto& entry) {
             const Value* other_value = y.find(entry.first, budget);
             return other_value != nullptr && equal(entry.second, *other_value, budget);
           });
  }
  if (a.content().index() != b.content().index()) {
    return false;
  }
  if (const auto* generator = a.as<std::shared_ptr<Generator>>()) {
    return *generator == *b.as<std::shared_ptr<Generator>>();
  }
  if (a.as<Namespace*>() != nullptr) {
    return *a.as<Namespace*>() == *b.as<Namespace*>();
  }
  if (a.as<Loop*>() != nullptr) {
    return *a.as<Loop*>() == *b.as<Loop*>();
  }
  if (a.as<const Function*>() != nullptr) {
    return *a.as<const Function*>() == *b.as<const Function*>();
  }
  return a.is_none() || a.is_undefined();
}

bool less(const Value& a, const Value& b, StepBudget& budget) {
  budget.pay();
  const std::optional<int64_t> whole = a.integer(), other = b.integer();
  if (whole && other) {
    return *whole < *other;
  }
  if (a.number() && b.number()) {
    return *a.number() < *b.number();
  }
  if (a.string() != nullptr && b.string() != nullptr) {
    budget.pay_bytes(a.string()->size());
    return *a.string() < *b.string();  // bytes of UTF-8 are ordered as characters are
  }
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (x != nullptr && y != nullptr && is_list_or_tuple(*x) && x->flavour == y->flavour) {
    for (size_t n = 0; n < std::min(x->items.size(), y->items.size()); ++n) {
      if (!equal(x->items[n], y->items[n], budget)) {
        return less(x->items[n], y->items[n], budget);
      }
    }
    return x->items.size() < y->items.size();
  }
  complain("{} and {} have no order", a.type(), b.type());
}

bool contains(const Value& container, const Value& item, StepBudget& budget) {
  if (const std::string* text = container.string()) {
    if (item.string() == nullptr) {
      complain("'in' asks a string for {}, expected a string", item.type());
    }
    return find_text(*text, *item.string(), 0, budget) != text->npos;
  }
  if (const Dict* dict = container.dict()) {
    return dict->find(item, budget) != nullptr;
  }
  if (const Sequence* sequence = container.sequence()) {
    return std::any_of(sequence->items.begin(), sequence->items.end(),
                       [&](const Value& each) { return equal(each, item, budget); });
  }
  if (const auto* generator = container.as<std::shared_ptr<Generator>>()) {
    Generator& g = **generator;
    while (g.next < g.items.size()) {
      if (equal(g.items[g.next++], item, budget)) {
        return true;
      }
    }
    return false;
  }
  if (!container.is_undefined()) {
    complain("'in' looks into {}, expected a string, list or dict", container.type());
  }
  return false;
}

std::vector<Value> items_of(const Value& value, StepBudget& budget) {
  std::vector<Value> items;
  budget.pay();
  if (const Sequence* sequence = value.sequence()) {
    budget.pay(sequence->items.size());  // before they are made: many would fill the memory
    items = sequence->items;
  } else if (const auto* generator = value.as<std::shared_ptr<Generator>>()) {
    Generator& g = **generator;
    budget.pay(g.items.size() - g.next);
    items.assign(g.items.begin() + static_cast<std::ptrdiff_t>(g.next), g.items.end());
    g.next = g.items.size();
  } else if (const Dict* dict = value.dict()) {
    budget.pay(dict->entries.size());
    for (const auto& [key, entry] : dict->entries) {
      items.push_back(key);
    }
  } else if (const std::string* text = value.string()) {
    budget.pay(count_characters(*text));
    for (size_t at = 0; at < text->size();) {
      const size_t bytes = character_at(*text, at).bytes;
      items.push_back(Value::text(text->substr(at, bytes), value.is_safe()));
      at += bytes;
    }
  } else if (value.as<Loop*>() != nullptr) {
    lacking("a loop over a loop");
  } else if (!value.is_undefined()) {
    complain("an object of type {} cannot be iterated", value.type());
  }
  return items;
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.sequence() != nullptr || value.dict() != nullptr || value.string() != nullptr ||
         value.as<std::shared_ptr<Generator>>() != nullptr || value.as<Loop*>() != nullptr;
}

int64_t length_of(const Value& value, StepBudget& budget) {
  if (const std::string* text = value.string()) {
    budget.pay_bytes(text->size());
    return static_cast<int64_t>(count_characters(*text));
  }
  if (const Sequence* sequence = value.sequence()) {
    return std::ssize(sequence->items);
  }
  if (const Dict* dict = value.dict()) {
    return std::ssize(dict->entries);
  }
  if (!value.is_undefined()) {
    complain("an object of type {} has no length", value.type());
  }
  return 0;
}

}  // namespace pare::jinja
