#pragma once
// What stands in the way of exact passes and can be trained away: norms, and skips around MLPs. What would go without
// them, and the command.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pare/audit/passes.h"
#include "pare/support/statistics.h"

namespace pare {

// A run of experiments/norm-removal, from which the build makes a list: name, last and first validation loss, and what
// forty stories cost it, 0 where it was not asked.
struct KeptNormRun {
  std::string_view name;
  double loss = 0, start = 0, stories = 0;
  int64_t parameters = 0, steps = 0, morph_steps = 0;  // these: in which something left; 0: nothing did
  bool stopped = false;                                // before its end: its loss says nothing
};
std::span<const KeptNormRun> kept_norm_runs();

// What holds of the commands for other models than those that were measured.
constexpr const char* beyond_measured =
    "The learning rate is one that worked at 260 thousand parameters, from a million on at 10.9 million; a larger "
    "model "
    "may need a smaller one. What it costs another model is unknown until it is measured. To compare with a narrower "
    "MLP, put morph.to.mlp.width=N morph.steps=4000 in the place of the morph and conditioning keys.";

// What it cost where the commands that audit prints were measured: the loss above that of the model itself.
struct MeasuredCost {
  std::string what, model;  // what went, of which model
  int64_t parameters = 0, steps = 0, morph_steps = 0;
  Estimate nats;     // a token, over the seeds that ended
  Estimate stories;  // what forty stories cost it then; of none where it was not asked
  int64_t stopped = 0;
};
// "+0.0341 ± 0.0010", "stopped".
std::string cost_in_words(const MeasuredCost& cost);
// "5", "3, 2 stopped".
std::string seeds_in_words(const MeasuredCost& cost);
std::vector<MeasuredCost> measured_costs();

struct TrainedAway {
  std::string what;  // "norms", or "norms and MLP skips" where norms alone are not all that is in the way
  std::vector<std::string> passes;     // that would apply without them, and do not with them
  int64_t removable = 0;               // parameters that could go then, the norms' own among them
  std::vector<std::string> obstacles;  // why the norms cannot be trained away; empty where they can
  std::string unmeasured;              // why nobody knows what it would cost; empty where somebody does
  std::vector<std::string> commands;   // for a shell, one after another; none where they cannot, or nobody knows
};

// Nothing where there are no norms, or nothing is gained without them. `model`: the folder, or a word for it.
std::optional<TrainedAway> audit_norms(const PassAudit& audit, const Architecture& architecture,
                                       const std::string& model);

// The same function without scales, which fold_constant_norm takes exactly: they are in the way of others.
Architecture with_scales_folded(const Architecture& architecture);

std::string why_no_command(const TrainedAway& away);  // a sentence, where it has none
std::string text_of(const TrainedAway& away, const PassAudit& audit);
nlohmann::ordered_json to_json(const TrainedAway& away);

}  // namespace pare
