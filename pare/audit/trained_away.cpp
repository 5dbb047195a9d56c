#include "pare/audit/trained_away.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "pare/algebra/morph_plan.h"
#include "pare/arch/count.h"
#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace {

// As a shell takes it for one word.
std::string shell_word(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("._-/+=").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) {
    return text;
  }
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
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
                      {"norms and MLP skips", "morph.to.norms=none morph.to.mlp.skip=false", without_mlp_skips(bare)}};
  for (const Way& way : ways) {
    TrainedAway away = gained(audit, way.target);
    if (away.passes.empty() || away.removable <= saved_together(audit)) {
      continue;
    }
    away.what = way.what;
    away.obstacles = obstacles_of(architecture, way.target);
    if (away.obstacles.empty()) {
      away.command = fmt::format("pare train from={} {} morph.steps=1000 steps=1500 'data.train=[\"TEXT\"]' -o RUN",
                                 shell_word(model), way.keys);
    }
    return away;
  }
  return std::nullopt;
}

std::string text_of(const TrainedAway& away, const PassAudit& audit) {
  const double share = 100 * static_cast<double>(away.removable) / static_cast<double>(audit.parameters);
  std::string text = fmt::format("without its {}\n", away.what);
  text += wrapped(
      fmt::format("{} would apply: {} parameters ({:.2f} %) could go then, in place of {}.",
                  fmt::join(away.passes, ", "), with_commas(away.removable), share, with_commas(saved_together(audit))),
      2);
  if (away.command.empty()) {
    return text + wrapped(fmt::format("But they cannot be trained away as they stand: {}.", away.obstacles.front()), 2);
  }
  text += wrapped("They can be trained away, from the model as it is, in some hundred or thousand steps:", 2);
  std::string command = away.command;  // in two lines that a shell takes for one
  return text + "  " + command.replace(command.find(" morph.steps="), 1, " \\\n      ") + "\n";
}

nlohmann::ordered_json to_json(const TrainedAway& away) {
  nlohmann::ordered_json command =
      away.command.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(away.command);
  return {{"what", away.what},
          {"passes", away.passes},
          {"removable", away.removable},
          {"obstacles", away.obstacles},
          {"command", command}};
}

}  // namespace pare
