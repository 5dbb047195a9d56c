#include "pare/train/config.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/train/morph_target.h"

namespace pare {

namespace {

using nlohmann::json;

constexpr const char* sweep_key = "sweep";

std::vector<std::string> parts_of(const std::string& key) {
  std::vector<std::string> parts(1);
  for (const char c : key) {
    c == '.' ? void(parts.emplace_back()) : void(parts.back() += c);
  }
  return parts;
}

[[noreturn]] void refuse_key(const std::string& key, const std::string& why) {
  throw InputError(fmt::format("the key {}: {}", quote(key), why));
}

void set_at(json& place, const std::vector<std::string>& parts, size_t depth, const std::string& key,
            const json& value) {
  if (depth == parts.size()) {
    place = value;
    return;
  }
  const std::string& part = parts[depth];
  if (part.empty()) {
    refuse_key(key, "a part of it is empty");
  }
  if (!place.is_array()) {
    if (!place.is_object() && !place.is_null()) {
      refuse_key(key, fmt::format("{} is within {}, which has no parts", quote(part), quote(place.dump())));
    }
    set_at(place[part], parts, depth + 1, key, value);
    return;
  }
  if (part == "*") {
    for (json& entry : place) {
      set_at(entry, parts, depth + 1, key, value);
    }
    return;
  }
  const bool of_entry = depth + 1 < parts.size() && parts[depth + 1] == "repeat";
  if (depth > 0 && parts[depth - 1] == "blocks" && !of_entry) {
    unfold_blocks(place);
  }
  set_at(entry_at(place, part, fmt::format("the key {}", quote(key))), parts, depth + 1, key, value);
}

// Short, and fit for the name of a folder.
std::string shown_value(const json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  for (char& c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '+' || c == '_';
    c = plain ? c : '_';
  }
  return text.substr(0, 40);
}

using Change = std::pair<std::string, json>;
struct Choice {  // one value of one axis of a sweep
  std::string name;
  std::vector<Change> changes;
};
using Sweep = std::vector<std::vector<Choice>>;

std::vector<Choice> variants_of(const json& variants, const std::string& subject) {
  std::vector<Choice> choices;
  refuse_if(!variants.is_object() || variants.empty(),
            "{}: sweep.variants is not an object of variants, each with its changes", subject);
  for (const auto& [name, changes] : variants.items()) {
    refuse_if(!changes.is_object() || name.empty() || shown_value(name) != name || name.starts_with("."),
              "{}: sweep.variants.{} is not a name for a folder with an object of changes", subject, escaped(name));
    Choice choice{name, {}};
    for (const auto& [key, value] : changes.items()) {
      choice.changes.emplace_back(key, value);
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

// As few of a key's last parts as no other axis ends in: data.seed is not called as seeds are.
std::string label_of(const std::string& key, const json& axes) {
  if (key == "seeds") {
    return "seed";
  }
  const auto is_taken = [&](const std::string& label) {
    return label == "seed" || std::any_of(axes.items().begin(), axes.items().end(), [&](const auto& axis) {
             return axis.key() != key && ("." + axis.key()).ends_with("." + label);
           });
  };
  size_t begin = key.rfind('.');
  while (begin != std::string::npos && is_taken(key.substr(begin + 1))) {
    begin = begin == 0 ? std::string::npos : key.rfind('.', begin - 1);
  }
  return begin == std::string::npos ? key : key.substr(begin + 1);
}

Sweep sweep_of(const json& written, const std::string& subject) {
  refuse_if(!written.is_object(), "{}: sweep is {}, expected an object", subject, written.type_name());
  Sweep sweep;
  if (const auto variants = written.find("variants"); variants != written.end()) {
    sweep.push_back(variants_of(*variants, subject));
  }
  std::vector<Choice> seeds;
  for (const auto& [key, values] : written.items()) {
    if (key == "variants") {
      continue;
    }
    refuse_if(!values.is_array() || values.empty(), "{}: sweep.{} is not a list of values", subject, escaped(key));
    const std::string set = key == "seeds" ? "seed" : key, label = label_of(key, written);
    std::vector<Choice> choices;
    for (const json& value : values) {
      choices.push_back({label + shown_value(value), {{set, value}}});
    }
    (key == "seeds" ? seeds : sweep.emplace_back()) = std::move(choices);
  }
  if (!seeds.empty()) {
    sweep.push_back(std::move(seeds));
  }
  refuse_if(sweep.empty(), "{}: sweep is empty: expected seeds, variants or keys with lists of values", subject);
  return sweep;
}

}  // namespace

void set_key(json& config, const std::string& key, const json& value, const FindArchitecture& find) {
  const std::vector<std::string> parts = parts_of(key);
  if (parts.size() > 1 && parts.front() == "architecture" && config.is_object() && config.contains("architecture") &&
      config["architecture"].is_string()) {
    config["architecture"] = architecture_to_json(find(config["architecture"].get<std::string>()));
  }
  const bool own = config.is_object() && !config.contains("architecture") && config.contains("from") &&
                   config["from"].is_string() && !config["from"].get<std::string>().empty();
  if (parts.size() > 1 && parts.front() == "architecture" && own) {
    config["architecture"] = architecture_to_json(open_model(config["from"].get<std::string>()).model.architecture);
  }
  set_at(config, parts, 0, key, value);
}

void set_key(json& config, const std::string& assignment, const FindArchitecture& find) {
  const size_t equals = assignment.find('=');
  refuse_if(equals == std::string::npos || equals == 0,
            "{} is not KEY=VALUE ('pare train --print-config' lists the keys)", quote(assignment));
  const std::string text = assignment.substr(equals + 1);
  json value = json::parse(text, nullptr, false);
  set_key(config, assignment.substr(0, equals), value.is_discarded() ? json(text) : value, find);
}

std::vector<SweepRun> expand_sweep(const json& config, const std::string& subject, const FindArchitecture& find) {
  if (!config.is_object() || !config.contains(sweep_key)) {
    return {{"", config}};
  }
  json plain = config;
  plain.erase(sweep_key);
  std::vector<SweepRun> runs = {{"", plain}};
  for (const std::vector<Choice>& axis : sweep_of(config[sweep_key], subject)) {
    std::vector<SweepRun> longer;
    for (const SweepRun& run : runs) {
      for (const Choice& choice : axis) {
        SweepRun& added = longer.emplace_back(run);
        added.name += (added.name.empty() ? "" : "-") + choice.name;
        for (const auto& [key, value] : choice.changes) {
          set_key(added.config, key, value, find);
        }
      }
    }
    runs = std::move(longer);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (runs[i].name == runs[j].name) {
        throw InputError(fmt::format("{}: two runs of the sweep would be called {}", subject, quote(runs[i].name)));
      }
    }
    if (!runs[i].config.contains("name")) {
      runs[i].config["name"] = runs[i].name;
    }
  }
  return runs;
}

}  // namespace pare
