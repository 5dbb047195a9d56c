// pare passes: every pass with its theorem, preconditions, options and what it saves.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/passes/pipeline.h"
#include "pare/support/text.h"

namespace pare {

namespace {

std::string text_of(const Pass& pass) {
  std::string text = fmt::format("{}\n  theorem   {}\n  from      {}\n  saves     {}\n", pass.id, pass.theorem,
                                 pass.reference, pass.saves);
  for (size_t i = 0; i < pass.preconditions.size(); ++i) {
    text += fmt::format("  {}  P{} {}\n", i == 0 ? "needs   " : "        ", i + 1, pass.preconditions[i]);
  }
  for (const PassOption& option : pass.options) {
    text += fmt::format("  option    {}={} [{}]\n", option.name, option.values, option.fallback);
  }
  return text;
}

nlohmann::ordered_json to_json(const Pass& pass) {
  nlohmann::ordered_json json = {{"id", pass.id},
                                 {"theorem", pass.theorem},
                                 {"reference", pass.reference},
                                 {"saves", pass.saves},
                                 {"preconditions", pass.preconditions}};
  json["options"] = nlohmann::ordered_json::array();
  for (const PassOption& option : pass.options) {
    json["options"].push_back({{"name", option.name}, {"values", option.values}, {"default", option.fallback}});
  }
  return json;
}

void passes_command(const std::string& id, const Settings& settings) {
  std::vector<const Pass*> shown = all_passes();
  if (!id.empty()) {
    shown = {parse_passes(id).front().pass};
  }
  if (settings.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Pass* pass : shown) {
      list.push_back(to_json(*pass));
    }
    print_json({{"passes", list}});
    return;
  }
  std::vector<std::string> texts;
  for (const Pass* pass : shown) {
    texts.push_back(text_of(*pass));
  }
  print_text(fmt::format("{}", fmt::join(texts, "\n")));
}

}  // namespace

void add_passes(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("passes", "Every pass: its theorem, what it needs, what it saves");
  auto id = std::make_shared<std::string>();
  command->add_option("ID", *id, "one pass [all]");
  command->footer("Example: pare passes eliminate_projection");
  command->callback([id, &settings] { passes_command(*id, settings); });
}

}  // namespace pare
