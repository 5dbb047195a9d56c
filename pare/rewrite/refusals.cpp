#include "pare/rewrite/refusals.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/family.h"
#include "pare/rewrite/reasons.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

std::string all_reasons(const PassStep& step) {
  std::string text = fmt::format("{}:", pasteable(step.call));
  for (const Reason& reason : told_together(reasons_against(step.proposal))) {
    text += fmt::format("\n  {}", text_of(reason));
    if (!reason.remedy.empty()) {
      text += fmt::format("\n    what would help: {}", reason.remedy);
    }
  }
  return text;
}

void add_reasons(const PassStep& step, std::vector<ErrorReason>& reasons) {
  for (const Reason& reason : reasons_against(step.proposal)) {
    reasons.push_back({fmt::format("{}: {}", step.call.pass->id, text_of(reason)),
                       {{"pass", std::string(step.call.pass->id)},
                        {"where", reason.where},
                        {"expected", reason.expected},
                        {"found", reason.found},
                        {"remedy", reason.remedy}}});
  }
}

void refuse_what_does_not_apply(const Pipeline& pipeline) {
  std::string refusals;
  std::vector<ErrorReason> reasons;
  for (const PassStep& step : pipeline.steps) {
    if (!step.proposal.applies) {
      refusals += (refusals.empty() ? "" : "\n") + all_reasons(step);
      add_reasons(step, reasons);
    }
  }
  if (!refusals.empty()) {
    throw Refused(refusals, std::move(reasons));
  }
}

// Whether another matrix than the one that was asked for could go.
bool has_other_target(const PassStep& step, const Architecture& architecture) {
  const auto asked = step.call.options.find("target");
  if (asked == step.call.options.end() || asked->second == "best") {
    return false;
  }
  const std::vector<std::string> targets = {"q", "k", "v"};
  return std::ranges::any_of(targets, [&](const std::string& target) {
    PassCall other = step.call;
    other.options["target"] = target;
    return target != asked->second && run_passes({architecture}, {other}).steps.front().proposal.applies;
  });
}

// What is left to try when a result would lose too many digits: only what exists and is not so already.
std::string advice(const Pipeline& pipeline, const RewriteOptions& options, const Architecture& architecture,
                   Dtype dtype) {
  std::vector<std::string> ways;
  if (dtype != Dtype::f64) {
    ways.push_back("--dtype float64 keeps more digits");
  }
  for (const PassStep& step : pipeline.steps) {
    if (has_other_target(step, architecture)) {
      ways.push_back(fmt::format("target=best of {} takes the best conditioned", step.call.pass->id));
    }
  }
  if (!options.passes || pipeline.steps.size() > 1) {
    const auto costliest = std::ranges::max_element(pipeline.steps, [](const PassStep& a, const PassStep& b) {
      return a.proposal.roundings < b.proposal.roundings;
    });
    ways.push_back(fmt::format("{} costs most", costliest->call.pass->id));
  }
  return ways.empty() ? "" : fmt::format(" ({})", fmt::join(ways, "; "));
}

[[noreturn]] void refuse_growth(std::string_view what, int64_t more, const Pipeline& pipeline) {
  throw Refused(fmt::format("{} {} parameters more than the model ({}): --allow-growth permits it", what,
                            with_commas(more), fmt::join(pipeline.steps.back().proposal.notes, "; ")));
}

// Nobody gets another function who did not ask for one, and say how far off it may be; and then it is measured.
void refuse_unasked_approximation(const Pipeline& pipeline, const RewriteOptions& options) {
  for (const PassStep& step : pipeline.steps) {
    if (step.proposal.approximation.empty() || (options.max_error && options.verify)) {
      continue;
    }
    throw Refused(fmt::format("{} is approximate ({}): {}", pasteable(step.call), step.proposal.approximation,
                              options.max_error ? "it is kept only when its error was measured, so not with --no-verify"
                                                : "--max-error says how large the relative error may be"));
  }
}

// The first pass after which the source's family cannot say any more what the model is.
std::string_view without_place(const ModelFolder& source, const Pipeline& pipeline) {
  for (const PassStep& step : pipeline.steps) {
    const Model structure{.architecture = step.proposal.after.architecture};
    try {
      config_or_refuse(find_family(source.family, source.path.string()),
                       compatible(structure, source.model.architecture).architecture);
    } catch (const Refused&) {
      return step.call.pass->id;
    }
  }
  return "these passes";
}

}  // namespace

void refuse_pipeline(const Pipeline& pipeline, const RewriteOptions& options, const Architecture& architecture,
                     const Budget& budget, double narrowing) {
  refuse_what_does_not_apply(pipeline);
  if (pipeline.steps.empty() && !options.passes) {
    throw Refused(pipeline.left_out.empty()
                      ? "auto: no pass saves anything on this model (pare audit says why, pass by pass)"
                      : fmt::format("auto: nothing that saves is within the error allowed\n  {}",
                                    fmt::join(pipeline.left_out, "\n  ")));
  }
  refuse_unasked_approximation(pipeline, options);
  int64_t saved = 0;
  for (const PassStep& step : pipeline.steps) {
    saved += step.saved_parameters;
  }
  if (saved < 0 && !options.allow_growth) {
    refuse_growth("the result has", -saved, pipeline);
  }
  if (budget.allows(pipeline.roundings)) {
    return;
  }
  std::vector<std::string> parts = mapped(pipeline.steps, [&](const PassStep& step) {
    return fmt::format("{} {:.3g}", step.call.pass->id, predicted_error(step.proposal.roundings, budget.dtype));
  });
  if (narrowing > 0) {
    parts.push_back(fmt::format("storing it so {:.3g}", predicted_error(narrowing, budget.dtype)));
  }
  throw Refused(fmt::format("{} ({}); --max-error allows more{}", budget.excess(pipeline.roundings),
                            fmt::join(parts, ", "), advice(pipeline, options, architecture, budget.dtype)));
}

void refuse_idle_compat(const Plan& plan, const Pipeline& pipeline, const RewriteOptions& options) {
  if (plan.form != WrittenForm::compat) {
    return;
  }
  // A pass that saves nothing is not there to put anything to rest: it changes what is stored.
  const bool changes = std::ranges::any_of(
      pipeline.steps, [](const PassStep& step) { return step.proposal.applies && step.saved_parameters <= 0; });
  if (plan.neutral == 0 && !changes && !pipeline.steps.empty()) {
    throw Refused(
        "--form compat: all that these passes would make ones, zeros or identities is so already, and nothing would "
        "change; --form strict stores the model without it");
  }
  int64_t saved = 0;
  for (const StoredChange& change : plan.changes) {
    saved += change.saved;
  }
  if (saved < 0 && !options.allow_growth) {
    refuse_growth("--form compat keeps every tensor, and the result has", -saved, pipeline);
  }
}

nlohmann::ordered_json config_or_refuse(const Family& family, const Architecture& architecture) {
  try {
    return family_config(family, architecture);
  } catch (const InputError& error) {
    throw Refused(error.what(), error.reasons);
  }
}

void refuse_form(const ModelFolder& source, const Pipeline& pipeline, const Refused& why) {
  throw Refused(fmt::format("--form compat: {}'s own layout has no place for what {} makes; --form strict stores it\n"
                            "  {}",
                            source.family, without_place(source, pipeline), why.what()),
                why.reasons);
}

void refuse_norm(const ModuleId& norm, const char* why) {
  throw Refused(
      fmt::format("{}: the norm is gone, and one that does nothing cannot stand there: {}", name_of(norm), why));
}

void refuse_beyond_float16(const std::string& name, const at::Tensor& tensor) {
  constexpr double largest = 65504;
  const double most = tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
  if (most > largest) {
    throw Refused(
        fmt::format("tensor {} has a weight of {:.4g}, and float16 ends at {}: --dtype bfloat16 or float32 holds it",
                    quote(name), most, largest));
  }
}

void refuse_result(const Rewritten& result, const RewriteOptions& options, const Architecture& architecture) {
  const Verification& v = *result.verification;
  const char* written = result.dumps.empty() ? "Nothing was written" : "Only what --dump-after asks for was written";
  const std::string ways = advice(result.pipeline, options, architecture, result.dtype);
  if (result.allowed_error && v.tokens > 0) {
    throw VerificationFailed(
        fmt::format("the relative error of an approximate rewrite is {:.2g}, and --max-error allows {:.2g}. {}",
                    v.metrics.max_relative_logit_error, *result.allowed_error, written));
  }
  if (v.verdict != Verdict::different) {
    throw VerificationFailed(fmt::format(
        "the relative error is {:.2g}, predicted {:.2g}, and --max-error allows {:.2g}. "
        "{}{}",
        v.metrics.max_relative_logit_error, result.predicted_error(), options.max_error.value_or(0), written, ways));
  }
  if (!v.coverage.known_other.empty()) {
    throw VerificationFailed(
        fmt::format("the result is not the same function: {}. {}", v.coverage.known_other.front(), written));
  }
  throw VerificationFailed(fmt::format(
      "the result is not the same function within what {} allows: relative error {:.2g}, predicted {:.2g}, noise of "
      "the original in {} {:.2g} at most. What decides is at {:.2g} times its limit ({}). {}{}",
      word(result.dtype), v.metrics.max_relative_logit_error, result.predicted_error(), word(v.floor_dtype),
      v.noise_floor.max_relative_logit_error, v.excess, v.allowed_for, written, ways));
}

}  // namespace pare
