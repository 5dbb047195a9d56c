// pare families: whose models are read, with which ends, and what stands in the way of others.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/family.h"
#include "pare/checkpoint/unread_families.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/support/mapped.h"
#include "pare/support/table.h"

namespace pare {

namespace {

constexpr size_t indent = 24;

std::string line(std::string_view name, std::string_view text) {
  return wrapped(text, indent, fmt::format("  {:<{}}", name, indent - 2));
}

// The classes of a family begin alike: "Llama", and then Model, ForCausalLM, ...
std::string endings(const Family& family) {
  size_t begins = family.bare_class.size() - std::string_view("Model").size();
  for (const std::string& name : family.classes) {
    const auto [mine, other] = std::ranges::mismatch(name, family.bare_class);
    begins = std::min(begins, static_cast<size_t>(mine - name.begin()));
  }
  return fmt::format(
      "{}", fmt::join(mapped(family.classes, [&](const std::string& name) { return name.substr(begins); }), ", "));
}

std::string text() {
  std::string text =
      fmt::format("{} families are read, as config.json names them, and classes of each:\n\n", families().size());
  for (const Family* family : families()) {
    text += line(family->model_type, endings(*family));
  }
  text += "\nNot read, and why:\n\n";
  for (const UnreadFamily& unread : unread_families()) {
    text += line(unread.model_type, unread.why);
  }
  return text + "\n" +
         wrapped(
             "A model of a family that is read may still ask for what is not: the message then names the key of "
             "config.json. How each is stored: docs/formats.md",
             0);
}

void families_command(const Settings& settings) {
  if (!settings.json) {
    print_text(text());
    return;
  }
  const nlohmann::ordered_json read = mapped(families(), [](const Family* family) {
    return nlohmann::ordered_json{{"model_type", family->model_type}, {"classes", family->classes}};
  });
  nlohmann::ordered_json refused = nlohmann::ordered_json::array();
  for (const UnreadFamily& unread : unread_families()) {
    refused.push_back({{"model_type", unread.model_type}, {"why", unread.why}});
  }
  print_json({{"read", read}, {"refused", refused}});
}

}  // namespace

void add_families(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("families", "Whose models are read, and why others are not");
  command->footer("Example: pare families");
  command->callback([&settings] { families_command(settings); });
}

}  // namespace pare
