#include "pare/train/morph_target.h"

#include <fmt/format.h>

#include <charconv>

#include "pare/algebra/morph_plan.h"
#include "pare/arch/architecture_json.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

// Like a merge patch, but into lists too, and a null is a value.
void change(json& place, const json& changes, const std::string& path) {
  if (!changes.is_object() || (!place.is_object() && !place.is_array())) {
    place = changes;
    return;
  }
  for (const auto& [key, value] : changes.items()) {
    const std::string below = path.empty() ? key : path + "." + key;
    if (place.is_object()) {
      change(place[key], value, below);
      continue;
    }
    if (key == "*") {
      for (json& entry : place) {
        change(entry, value, below);
      }
      continue;
    }
    change(entry_at(place, key, below), value, below);
  }
}

// "attention": {...} and "mlp": {...}, of every block that has one.
void change_blocks(json& architecture, const char* sublayer, const json& changes, const std::string& subject) {
  if (!changes.is_object()) {
    throw InputError(
        fmt::format("{}.{}: {} is not an object of changes to every block", subject, sublayer, changes.dump()));
  }
  for (json& block : architecture["blocks"]) {
    if (!block[sublayer].is_null()) {
      change(block[sublayer], changes, fmt::format("{}.{}", subject, sublayer));
    }
  }
}

}  // namespace

json& entry_at(json& list, const std::string& part, const std::string& subject) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  refuse_if(error != std::errc() || end != part.data() + part.size() || number >= list.size(),
            "{}: {} is not an entry of a list of {}: expected a number from 0 on, or * for each", subject, quote(part),
            list.size());
  return list[number];
}

Architecture morph_target(const Architecture& source, const json& to, const std::string& subject,
                          const FindArchitecture& find) {
  if (to.is_string()) {
    return find(to.get<std::string>());
  }
  if (to.contains("blocks") && to["blocks"].is_array()) {
    return architecture_from_json(to, subject);
  }
  refuse_if(to.empty(), "{}: {{}} changes nothing: name what goes, such as {}.norms=none", subject, subject);
  json target = architecture_to_json(source), changes = to;
  if (const auto norms = changes.find("norms"); norms != changes.end()) {
    if (*norms != "none") {
      throw InputError(fmt::format("{}.norms: {} is not \"none\"", subject, norms->dump()));
    }
    target = architecture_to_json(without_norms(source));
    changes.erase(norms);
  }
  unfold_blocks(target["blocks"]);
  for (const char* sublayer : {"attention", "mlp"}) {
    if (const auto found = changes.find(sublayer); found != changes.end()) {
      change_blocks(target, sublayer, *found, subject);
      changes.erase(found);
    }
  }
  change(target, changes, subject);
  return architecture_from_json(target, subject);
}

}  // namespace pare
