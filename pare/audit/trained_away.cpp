#include "pare/audit/trained_away.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "pare/algebra/morph_plan.h"
#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/data/tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/shell.h"
#include "pare/support/text.h"

namespace pare {

namespace {

constexpr const char* both = "norms and MLP skips";

const KeptNormRun* find_run(const std::string& name) {
  const std::span<const KeptNormRun> runs = kept_norm_runs();
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const KeptNormRun& run) { return run.name == name; });
  return found == runs.end() ? nullptr : &*found;
}

// What went, of which model, at what cost: kept runs alone, and where there are none.
std::string costs_text(const std::string& what) {
  std::string sizes;
  std::set<std::string> named;
  for (const MeasuredCost& cost : measured_costs()) {
    if (named.insert(cost.model).second) {
      sizes += fmt::format("{}{}: {} parameters", sizes.empty() ? "" : ", ", cost.model, with_commas(cost.parameters));
    }
  }
  std::string text = wrapped(
      fmt::format(
          "Measured costs ({}), in nats per token above the same model trained equally long without the change; ± is "
          "half of the 95 % interval, which a single pair does not have (experiments/norm-removal):",
          sizes),
      2);
  Table table({Align::left, Align::left, Align::right, Align::right, Align::right});
  table.row({"  removed", "model", "in steps", "cost", "pairs"});
  table.rule();
  bool of_others = false;
  for (const MeasuredCost& cost : measured_costs()) {
    table.row({"  " + cost.what, cost.model,
               fmt::format("{} of {}", with_commas(cost.morph_steps), with_commas(cost.steps)),
               fmt::format("{:+.4f}{}", cost.nats.mean,
                           cost.nats.interval ? fmt::format(" ± {:.4f}", cost.nats.half_width()) : ""),
               std::to_string(cost.nats.count)});
    of_others = of_others || (cost.what == what && cost.model == "stories260K");
  }
  text += table.text();
  const std::string open =
      of_others ? "" : fmt::format("Removing {} from a fully trained model was not measured. ", what);
  text += wrapped(open +
                      "The cost for this model is unknown until it is measured: train it once more without the morph "
                      "keys, and compare the two runs.",
                  2);
  return text;
}

std::vector<std::string> obstacles_of(const Architecture& architecture, const Architecture& bare) {
  try {
    plan_morph(architecture, bare, "morph.to");
    return {};
  } catch (const InputError& error) {
    std::vector<std::string> list;
    for (const ErrorReason& reason : error.reasons) {
      list.push_back(reason.message);
    }
    return list;
  }
}

// What would go in another Architecture.
TrainedAway gained(const PassAudit& audit, const Architecture& bare) {
  TrainedAway away;
  for (const PassStep& step : audit.alone) {
    const bool then = run_passes({bare, {}}, {step.call}).steps.front().saved_parameters > 0;
    if (then && !step.proposal.applies) {
      away.passes.emplace_back(step.call.pass->id);
    }
  }
  away.removable = audit.parameters - count(choose_passes({bare, {}}).after.architecture).total;
  return away;
}

Architecture without_mlp_skips(Architecture bare) {
  for (Block& block : bare.blocks) {
    if (block.mlp && block.wiring == Wiring::serial) {
      block.mlp->skip = false;
    }
  }
  return bare;
}

// A command in as many lines as it needs, which a shell takes for one.
std::string shell_lines(const std::string& command) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char c : command) {
    quoted = quoted != (c == '\'');
    c == ' ' && !quoted ? void(words.emplace_back()) : void(words.back() += c);
  }
  constexpr size_t continued = 2;  // " \\"
  std::string text, line = "  " + words.front();
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t after = i + 1 < words.size() ? continued : 0;
    if (line.size() + 1 + words[i].size() + after > text_width()) {
      text += line + " \\\n";
      line = "     ";
    }
    line += " " + words[i];
  }
  return text + line + "\n";
}

// A folder that holds none reads bytes, or token ids; of a preset nobody knows, and most have one.
bool has_tokenizer(const std::string& model) {
  std::error_code unknown;
  return !std::filesystem::is_directory(model, unknown) || !tokenizers_in(model).empty();
}

// What a run that continues this model has to be given, in its own words.
std::string data_keys(const Architecture& a, const std::string& model) {
  if (a.embedding.patch) {
    return "task=classifier data.format=folders 'data.train=[\"IMAGES\"]'";
  }
  // Lines of {"text": ..., "label": N} for a classifier. Bytes are at most 256 tokens: of a model that has more, and no
  // tokenizer beside it, somebody has to say which is its own.
  std::string text = a.task == Task::classifier ? "'data.train=[\"LINES.jsonl\"]'" : "'data.train=[\"TEXT\"]'";
  constexpr int64_t bytes = 256;
  if (has_tokenizer(model)) {
    text += " data.tokenizer=" + shell_word(model);
  } else if (a.vocab > bytes) {
    text += " data.tokenizer=TOKENIZER";
  }
  switch (a.task) {
    case Task::masked_lm:
      return "task=masked_lm data.mask_token=ID " + text;
    case Task::classifier:
      return "task=classifier " + text;
    default:
      return text;
  }
}

}  // namespace

std::optional<TrainedAway> audit_norms(const PassAudit& audit, const Architecture& architecture,
                                       const std::string& model) {
  struct Way {
    const char *what, *keys;
    Architecture target;
  };
  const Architecture bare = without_norms(architecture);
  if (bare == architecture) {
    return std::nullopt;
  }
  const Way ways[] = {{"norms", "morph.to.norms=none", bare},
                      {both, "morph.to.norms=none morph.to.mlp.skip=false", without_mlp_skips(bare)}};
  for (const Way& way : ways) {
    TrainedAway away = gained(audit, way.target);
    if (away.passes.empty() || away.removable <= saved_together(audit)) {
      continue;
    }
    away.what = way.what;
    away.obstacles = obstacles_of(architecture, way.target);
    const bool trains = architecture.task == Task::causal_lm || architecture.task == Task::masked_lm ||
                        architecture.task == Task::classifier;
    if (!trains) {
      away.obstacles.push_back(fmt::format("nothing trains a {}", word(architecture.task)));
    }
    if (away.obstacles.empty()) {
      // Evenness as models ask for that were trained to their end (docs/training.md).
      away.command = fmt::format("pare train from={} {} morph.steps=1000 morph.evenness=5 steps=1500 {} -o RUN",
                                 shell_word(model), way.keys, data_keys(architecture, model));
    }
    return away;
  }
  return std::nullopt;
}

std::vector<MeasuredCost> measured_costs() {
  struct Kind {
    const char *what, *model, *control, *changed;  // names of runs, without rate and seed
  };
  const Kind kinds[] = {{"norms", "bytes", "control", "norms"},
                        {"norms", "stories260K", "control-stories260K", "norms-stories260K"},
                        {"norms", "stories260K", "control-stories260K-longer", "norms-stories260K-recovered"},
                        {"norms", "stories260K", "control-stories260K-longer", "norms-stories260K-longer"},
                        {both, "bytes", "control", "norms-and-skips"}};
  std::vector<MeasuredCost> costs;
  for (const Kind& kind : kinds) {
    MeasuredCost cost{.what = kind.what, .model = kind.model};
    std::vector<double> differences;
    for (const KeptNormRun& run : kept_norm_runs()) {
      const std::string prefix = std::string(kind.changed) + "-lr";
      const KeptNormRun* control = run.name.starts_with(prefix)
                                       ? find_run(kind.control + std::string(run.name.substr(prefix.size() - 3)))
                                       : nullptr;
      // Trained anew, the same model begins elsewhere: then the two are no pair.
      constexpr double same_start = 1e-3;
      if (control && control->steps == run.steps && std::abs(control->start - run.start) < same_start) {
        differences.push_back(run.loss - control->loss);
        cost.parameters = control->parameters;
        cost.steps = run.steps;
        cost.morph_steps = run.morph_steps;
      }
    }
    if (!differences.empty()) {
      cost.nats = estimate_of(differences);
      costs.push_back(cost);
    }
  }
  return costs;
}

std::string text_of(const TrainedAway& away, const PassAudit& audit) {
  const double share = 100 * static_cast<double>(away.removable) / static_cast<double>(audit.parameters);
  std::string text = fmt::format("without its {}\n", away.what);
  text += wrapped(
      fmt::format("{} would apply, and remove {} parameters ({:.2f} %) instead of {}.", fmt::join(away.passes, ", "),
                  with_commas(away.removable), share, with_commas(saved_together(audit))),
      2);
  if (away.command.empty()) {
    return text + wrapped(fmt::format("Training cannot remove them here: {}.", away.obstacles.front()), 2);
  }
  text += wrapped("Training can remove them, at a cost:", 2);
  return text + shell_lines(away.command) + costs_text(away.what);
}

nlohmann::ordered_json to_json(const TrainedAway& away) {
  nlohmann::ordered_json command =
      away.command.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(away.command);
  nlohmann::ordered_json measured = nlohmann::ordered_json::array();
  for (const MeasuredCost& cost : measured_costs()) {
    measured.push_back(
        {{"what", cost.what},
         {"model", cost.model},
         {"parameters", cost.parameters},
         {"steps", cost.steps},
         {"morph_steps", cost.morph_steps},
         {"nats", cost.nats.mean},
         {"half_width", cost.nats.interval ? nlohmann::ordered_json(cost.nats.half_width()) : nlohmann::ordered_json()},
         {"pairs", cost.nats.count}});
  }
  return {{"what", away.what},           {"passes", away.passes}, {"removable", away.removable},
          {"obstacles", away.obstacles}, {"command", command},    {"measured", measured}};
}

}  // namespace pare
