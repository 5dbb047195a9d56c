#include "pare/audit/trained_away.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "pare/algebra/morph_plan.h"
#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/audit/norm_recipe.h"
#include "pare/data/tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

// Of nearly the same size, which keep norms and skips.
constexpr const char *narrower = "a narrower MLP instead", *identity = "W_Q = I instead";

// What went, of which model, at what cost: kept runs alone.
std::string costs_text() {
  const std::vector<MeasuredCost> costs = measured_costs();
  if (costs.empty()) {
    return wrapped("What that costs was not measured.", 2);
  }
  std::string text = wrapped(
      "Measured on one H200, with these commands or with the morph keys that a row needs in their place, in nats per "
      "token above the model itself, on real text; ± is half of the 95 % interval, which one seed does not have "
      "(experiments/norm-removal):",
      2);
  Table table({Align::left, Align::left, Align::right, Align::right, Align::right},
              {"  trained away", "model", "steps", "cost", "seeds"});
  for (const MeasuredCost& cost : costs) {
    table.row({"  " + cost.what, cost.model, with_commas(cost.steps), cost_in_words(cost), seeds_in_words(cost)});
  }
  return text + table.text() + wrapped(beyond_measured, 2);
}

// Of the runs whose names begin so, each above the model that it was at its first step.
MeasuredCost cost_of(const char* what, const char* model, const std::string& runs) {
  MeasuredCost cost{.what = what, .model = model};
  std::vector<double> above, stories;
  for (const KeptNormRun& run : kept_norm_runs()) {
    if (!run.name.starts_with(runs)) {
      continue;
    }
    cost.parameters = run.parameters;
    cost.steps = run.steps;
    cost.morph_steps = run.morph_steps;
    if (run.stopped) {
      ++cost.stopped;
      continue;
    }
    above.push_back(run.loss - run.start);
    if (run.stories > 0) {
      stories.push_back(run.stories);
    }
  }
  cost.nats = estimate_of(above);
  cost.stories = estimate_of(stories);
  return cost;
}

nlohmann::ordered_json to_json(const Estimate& estimate, const char* mean, const char* half_width) {
  nlohmann::ordered_json json = {{mean, nullptr}, {half_width, nullptr}};
  if (estimate.count > 0) {
    json[mean] = estimate.mean;
  }
  if (estimate.interval) {
    json[half_width] = estimate.half_width();
  }
  return json;
}

std::vector<std::string> obstacles_of(const Architecture& architecture, const Architecture& bare) {
  try {
    plan_morph(architecture, bare, "morph.to");
    return {};
  } catch (const InputError& error) {
    return mapped(error.reasons, &ErrorReason::message);
  }
}

// What would go in another Architecture.
TrainedAway gained(const PassAudit& audit, const Architecture& target) {
  const Architecture bare = with_scales_folded(target);
  TrainedAway away;
  for (const PassStep& step : audit.alone) {
    if (!step.proposal.applies && run_passes({bare, {}}, {step.call}).steps.front().saved_parameters > 0) {
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

// Whether the folder says with which token a text begins. Of a preset nobody knows.
bool names_first_token(const std::string& model) {
  return !(is_folder(model) || find_gguf(model)) || !tokens_before_texts(model).empty();
}

std::vector<std::string> commands_for(const std::string& model, TrainedOff what, int64_t parameters) {
  const std::string name = shell_word(model);
  std::string keys;
  for (const std::vector<std::string>& list : {keys_of_removal(what), keys_of_training(what, parameters)}) {
    for (const std::string& key : list) {
      keys += " " + shell_word(key);
    }
  }
  return {fmt::format("pare train --prepare from={} data.samples.count={}{} -o SAMPLES --device cuda", name,
                      recipe_samples, names_first_token(model) ? "" : " 'data.samples.prefix=[TOKEN]'"),
          fmt::format("pare train from={0} teacher={0} data.shards=SAMPLES{1} -o RUN --device cuda", name, keys)};
}

}  // namespace

// It saves nothing itself where a scale is one number, so that nobody chooses it for what it frees without weights.
Architecture with_scales_folded(const Architecture& architecture) {
  return run_passes({architecture, {}}, {call_of(find_pass("fold_constant_norm"))})
      .steps.front()
      .proposal.after.architecture;
}

std::optional<TrainedAway> audit_norms(const PassAudit& audit, const Architecture& architecture,
                                       const std::string& model) {
  struct Way {
    TrainedOff what;
    Architecture target;
  };
  const Architecture bare = without_norms(architecture);
  if (bare == architecture) {
    return std::nullopt;
  }
  const Way ways[] = {{TrainedOff::norms, bare}, {TrainedOff::norms_and_skips, without_mlp_skips(bare)}};
  for (const Way& way : ways) {
    TrainedAway away = gained(audit, way.target);
    if (away.passes.empty() || away.removable <= saved_together(audit)) {
      continue;
    }
    away.what = word(way.what);
    away.obstacles = obstacles_of(architecture, way.target);
    if (architecture.task != Task::causal_lm) {
      away.unmeasured = fmt::format(
          "what it costs to train them away was measured for models that draw text from themselves, and this is a {}; "
          "docs/training.md has the keys",
          word(architecture.task));
    }
    if (away.obstacles.empty() && away.unmeasured.empty()) {
      away.commands = commands_for(model, way.what, audit.parameters);
    }
    return away;
  }
  return std::nullopt;
}

std::vector<MeasuredCost> measured_costs() {
  const std::pair<const char*, const char*> kinds[] = {{word(TrainedOff::norms), "norms"},
                                                       {word(TrainedOff::norms_and_skips), "norms-and-skips"},
                                                       {narrower, "smaller-mlp"},
                                                       {identity, "no-query"}};
  std::vector<MeasuredCost> costs;
  for (const char* model : {"stories260K", "bytes"}) {
    for (const auto& [what, variant] : kinds) {
      for (const char* length : {"long-", "", "short-"}) {
        const MeasuredCost cost = cost_of(what, model, fmt::format("own-{}{}-{}-lr", length, variant, model));
        if (cost.nats.count + cost.stopped > 0) {
          costs.push_back(cost);
        }
      }
    }
  }
  return costs;
}

std::string cost_in_words(const MeasuredCost& cost) {
  if (cost.nats.count == 0) {
    return "stopped";
  }
  return fmt::format("{:+.4f}{}", cost.nats.mean,
                     cost.nats.interval ? fmt::format(" ± {:.4f}", cost.nats.half_width()) : "");
}

std::string seeds_in_words(const MeasuredCost& cost) {
  return cost.stopped == 0 ? std::to_string(cost.nats.count)
                           : fmt::format("{}, {} stopped", cost.nats.count, cost.stopped);
}

std::string why_no_command(const TrainedAway& away) {
  return away.obstacles.empty() ? fmt::format("No command: {}.", away.unmeasured)
                                : fmt::format("Training cannot remove them here: {}.", away.obstacles.front());
}

std::string text_of(const TrainedAway& away, const PassAudit& audit) {
  const double share = 100 * static_cast<double>(away.removable) / static_cast<double>(audit.parameters);
  std::string text = fmt::format("without its {}\n", away.what);
  text += wrapped(
      fmt::format("{} would apply, and remove {} parameters ({:.2f} %) instead of {}.", fmt::join(away.passes, ", "),
                  with_commas(away.removable), share, with_commas(saved_together(audit))),
      2);
  if (away.commands.empty()) {
    return text + wrapped(why_no_command(away), 2);
  }
  text +=
      wrapped("Training can remove them, at a cost. The model learns to stay what it is, from samples of its own:", 2);
  for (const std::string& command : away.commands) {
    text += shell_lines(command);
  }
  return text + costs_text();
}

nlohmann::ordered_json to_json(const TrainedAway& away) {
  nlohmann::ordered_json measured = nlohmann::ordered_json::array();
  for (const MeasuredCost& cost : measured_costs()) {
    measured.push_back({{"what", cost.what},
                        {"model", cost.model},
                        {"parameters", cost.parameters},
                        {"steps", cost.steps},
                        {"morph_steps", cost.morph_steps}});
    measured.back().update(to_json(cost.nats, "nats", "half_width"));
    measured.back().update(to_json(cost.stories, "stories", "stories_half_width"));
    measured.back().update({{"seeds", cost.nats.count}, {"stopped", cost.stopped}});
  }
  return {{"what", away.what},           {"passes", away.passes},         {"removable", away.removable},
          {"obstacles", away.obstacles}, {"unmeasured", away.unmeasured}, {"commands", away.commands},
          {"measured", measured}};
}

}  // namespace pare
