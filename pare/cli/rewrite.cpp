// pare rewrite: a smaller checkpoint that is the same function, with a certificate beside it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/count.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/checkpoint/replaceable.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/question.h"
#include "pare/model/device.h"
#include "pare/rewrite/compatible.h"
#include "pare/rewrite/pipeline.h"
#include "pare/rewrite/reasons.h"
#include "pare/rewrite/write.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/log.h"
#include "pare/support/text.h"
#include "pare/verify/certificate.h"
#include "pare/verify/verify.h"

namespace pare {

namespace {

struct RewriteFlags {
  std::string model, out, passes, form = "strict", dtype = "keep";
  QuestionFlags question;
  double max_error = 0;  // 0: not given
  bool allow_growth = false, force = false, no_verify = false, explain = false;
  uint64_t shard_bytes = 5'000'000'000;
};

constexpr int64_t checked_sequences = 4;

// Without --max-error: what float64 may lose and still be called the same. What storage in fewer digits may lose is
// measured on the original, so there nothing is forbidden beforehand, unless nothing will be measured.
Budget budget_of(const RewriteFlags& flags, Dtype dtype) {
  if (flags.max_error > 0) {
    return {flags.max_error, dtype, "--max-error"};
  }
  if (dtype == Dtype::f64) {
    return {1e-6, dtype, "what float64 may lose"};
  }
  return {flags.no_verify ? 0.1 : std::numeric_limits<double>::infinity(), dtype, "nothing is measured"};
}

// As a user would write it, without defaults; quoted where a shell would take the braces for its own.
std::string pasteable(PassCall call) {
  for (const PassOption& option : call.pass->options) {
    if (call.options.at(std::string(option.name)) == option.fallback) {
      call.options.erase(std::string(option.name));
    }
  }
  return call.options.empty() ? text_of(call) : quote(text_of(call));
}

std::string all_reasons(const PassStep& step) {
  std::string text = fmt::format("{}:", pasteable(step.call));
  for (const Reason& reason : reasons_against(step.proposal)) {
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

// Whether another matrix than the one that was asked for could go.
bool has_other_target(const PassStep& step, const Architecture& architecture) {
  const auto asked = step.call.options.find("target");
  if (asked == step.call.options.end() || asked->second == "best") {
    return false;
  }
  const std::vector<std::string> targets = {"q", "k", "v"};
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
    PassCall other = step.call;
    other.options["target"] = target;
    return target != asked->second && run_passes({architecture}, {other}).steps.front().proposal.applies;
  });
}

// What is left to try when a result would lose too many digits: only what exists and is not so already.
std::string advice(const Pipeline& pipeline, const RewriteFlags& flags, const Architecture& architecture, Dtype dtype) {
  std::vector<std::string> ways;
  if (dtype != Dtype::f64) {
    ways.push_back("--dtype float64 keeps more digits");
  }
  for (const PassStep& step : pipeline.steps) {
    if (has_other_target(step, architecture)) {
      ways.push_back(fmt::format("target=best of {} takes the best conditioned", step.call.pass->id));
    }
  }
  if (flags.passes == "auto" || pipeline.steps.size() > 1) {
    const auto costliest = std::max_element(
        pipeline.steps.begin(), pipeline.steps.end(),
        [](const PassStep& a, const PassStep& b) { return a.proposal.roundings < b.proposal.roundings; });
    ways.push_back(fmt::format("{} costs most", costliest->call.pass->id));
  }
  return ways.empty() ? "" : fmt::format(" ({})", fmt::join(ways, "; "));
}

// Every reason why this must not be written, before anything is.
void refuse_if_needed(const Pipeline& pipeline, const RewriteFlags& flags, const Architecture& architecture,
                      const Budget& budget, double narrowing) {
  std::string refusals;
  std::vector<ErrorReason> reasons;
  int64_t saved = 0;
  for (const PassStep& step : pipeline.steps) {
    saved += step.saved_parameters;
    if (!step.proposal.applies) {
      refusals += (refusals.empty() ? "" : "\n") + all_reasons(step);
      add_reasons(step, reasons);
    }
  }
  if (!refusals.empty()) {
    throw Refused(refusals, std::move(reasons));
  }
  if (pipeline.steps.empty()) {
    throw Refused(pipeline.left_out.empty()
                      ? "auto: no pass saves anything on this model (pare audit says why, pass by pass)"
                      : fmt::format("auto: nothing that saves is within the error allowed\n  {}",
                                    fmt::join(pipeline.left_out, "\n  ")));
  }
  if (saved < 0 && !flags.allow_growth) {
    throw Refused(fmt::format("the result has {} parameters more than the model ({}): ask for it with --allow-growth",
                              with_commas(-saved), fmt::join(pipeline.steps.back().proposal.notes, "; ")));
  }
  if (!budget.allows(pipeline.roundings)) {
    std::vector<std::string> parts;
    for (const PassStep& step : pipeline.steps) {
      parts.push_back(
          fmt::format("{} {:.3g}", step.call.pass->id, predicted_error(step.proposal.roundings, budget.dtype)));
    }
    if (narrowing > 0) {
      parts.push_back(fmt::format("storing it so {:.3g}", predicted_error(narrowing, budget.dtype)));
    }
    throw Refused(fmt::format("{} ({}); --max-error allows more{}", budget.excess(pipeline.roundings),
                              fmt::join(parts, ", "), advice(pipeline, flags, architecture, budget.dtype)));
  }
}

Pipeline propose(const ModelFolder& model, const RewriteFlags& flags, const Budget& budget) {
  const double narrowing = narrowing_roundings(model.model.architecture, model.dtype, budget.dtype);
  Pipeline pipeline = flags.passes == "auto" ? choose_passes(model.model, budget.after(narrowing))
                                             : run_passes(model.model, parse_passes(flags.passes));
  pipeline.roundings = std::hypot(pipeline.roundings, narrowing);
  refuse_if_needed(pipeline, flags, model.model.architecture, budget, narrowing);
  return pipeline;
}

ReplaceCheck may_replace(const RewriteFlags& flags) {
  return flags.force ? check_replaceable_model : ReplaceCheck();
}

struct Outcome {
  nlohmann::ordered_json certificate;
  std::optional<Verification> verification;
  double writing_seconds = 0, verifying_seconds = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What is about to be written, and what each pass comes to in it.
struct Plan {
  Prepared prepared;
  std::vector<StoredChange> changes;
  Companions companions;
  bool compat = false;
  int64_t neutral = 0;
};

// Nothing can become smaller in the compat form, so what a pass has to show for itself there is what it made neutral.
void refuse_idle_compat(const Plan& plan, const Pipeline& pipeline, const RewriteFlags& flags) {
  int64_t saved = 0;
  for (const StoredChange& change : plan.changes) {
    saved += change.saved;
  }
  if (plan.neutral == 0) {
    throw Refused(
        "--form compat: all that these passes would make ones, zeros or identities is so already, and nothing would "
        "change; --form strict stores the model without it");
  }
  if (saved < 0 && !flags.allow_growth) {
    throw Refused(
        fmt::format("--form compat keeps every tensor, and the result has {} parameters more than the model "
                    "({}): ask for it with --allow-growth",
                    with_commas(-saved), fmt::join(pipeline.steps.back().proposal.notes, "; ")));
  }
}

Plan plan_writing(const ModelFolder& source, const Pipeline& pipeline, const RewriteFlags& flags,
                  const std::optional<Dtype>& dtype, Companions companions) {
  Plan plan{.companions = std::move(companions), .compat = flags.form == "compat"};
  plan.prepared = prepare(source, pipeline.after,
                          {.form = plan.compat ? WrittenForm::compat : WrittenForm::strict, .dtype = dtype});
  if (!plan.compat) {
    for (const PassStep& step : pipeline.steps) {
      plan.changes.push_back({.saved = step.saved_parameters});
    }
    return plan;
  }
  plan.changes = compatible_changes(source.model, pipeline);
  for (const StoredChange& change : plan.changes) {
    plan.neutral += change.neutral;
  }
  refuse_idle_compat(plan, pipeline, flags);
  return plan;
}

nlohmann::ordered_json passes_json(const Pipeline& pipeline, const Plan& plan, Dtype dtype) {
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (size_t n = 0; n < pipeline.steps.size(); ++n) {
    nlohmann::ordered_json json = to_json(pipeline.steps[n], dtype);
    json["saved_parameters"] = plan.changes[n].saved;
    json["saved_bytes"] = bytes_of(plan.changes[n].saved, dtype);
    json["neutral_parameters"] = plan.changes[n].neutral;
    passes.push_back(std::move(json));
  }
  return passes;
}

constexpr const char* what_compat_is = "compat keeps every tensor in its shape, for stock engines; strict is smaller";

nlohmann::ordered_json form_json(const Plan& plan) {
  return {{"name", plan.compat ? "compat" : "strict"},
          {"neutral_parameters", plan.neutral},
          {"note", plan.compat ? what_compat_is : "what was removed is not stored; pare reads it"}};
}

// The same function, and no further off than the user allows.
bool is_kept(const Verification& v, const RewriteFlags& flags) {
  const bool allowed = flags.max_error == 0 || v.metrics.max_relative_logit_error <= flags.max_error;
  return v.verdict != Verdict::different && allowed;
}

// Written, read back and compared under a temporary name: an output that is not the same function never appears, and
// is only told of.
Outcome write_and_verify(const ModelFolder& source, const Pipeline& pipeline, const Plan& plan,
                         const RewriteFlags& flags, const Settings& settings, Dtype dtype) {
  Outcome outcome;
  const auto started = std::chrono::steady_clock::now();
  AtomicFolder output(flags.out, may_replace(flags));
  const std::map<std::string, std::string> copied =
      write_prepared(output.temporary(), source, plan.prepared, plan.companions, flags.shard_bytes);
  outcome.writing_seconds = seconds_since(started);

  const auto written = std::chrono::steady_clock::now();
  const ModelFolder candidate = open_model(output.temporary());
  const double predicted = predicted_error(pipeline.roundings, dtype);
  Verification verification{.predicted_error = predicted};
  InputSource asked;
  if (!flags.no_verify) {
    const Question question = read_question(flags.question, checked_sequences, settings.seed, source.model.architecture,
                                            candidate.model.architecture);
    asked = question.source;
    verification =
        verify(source, candidate, question.inputs,
               {.predicted_error = predicted, .seed = settings.seed, .device = find_device(settings.device)});
    outcome.verification = verification;
    if (!is_kept(verification, flags)) {
      return outcome;
    }
  }
  nlohmann::ordered_json described = describe_files(candidate);
  described["path"] = flags.out;
  outcome.certificate =
      certificate_json(describe_files(source), described, passes_json(pipeline, plan, dtype), asked, verification);
  outcome.certificate["form"] = form_json(plan);
  outcome.certificate["companions"] = nlohmann::ordered_json(copied);
  outcome.certificate["formulas"] = to_json(plan.prepared.explanation);
  if (flags.no_verify) {
    for (const char* key :
         {"inputs", "compute_dtype", "metrics", "noise_floor", "first_divergence", "self_test", "verdict"}) {
      outcome.certificate[key] = nullptr;
    }
  }
  write_text_file(output.temporary() / "certificate.json", json_text(outcome.certificate));
  outcome.verifying_seconds = seconds_since(written);
  output.commit();
  return outcome;
}

std::string pass_table(const Pipeline& pipeline, const Plan& plan, Dtype dtype) {
  Table table({Align::left, Align::right, Align::right});
  table.row(
      {"pass", plan.compat ? "made neutral" : "parameters less", fmt::format("predicted in {}", dtype_word(dtype))});
  table.rule();
  for (size_t n = 0; n < pipeline.steps.size(); ++n) {
    const PassStep& step = pipeline.steps[n];
    table.row({pasteable(step.call), with_commas(plan.compat ? plan.changes[n].neutral : plan.changes[n].saved),
               fmt::format("{:.1e}", predicted_error(step.proposal.roundings, dtype))});
  }
  return table.text();
}

void print_result(const ModelFolder& source, const Pipeline& pipeline, const Plan& plan, const RewriteFlags& flags,
                  Dtype dtype, const Outcome& outcome) {
  const int64_t before = count(source.model.architecture).total, after = count(plan.prepared.architecture).total;
  std::string text = pass_table(pipeline, plan, dtype);
  for (const PassStep& step : pipeline.steps) {
    for (const std::string& note : step.proposal.notes) {
      text += fmt::format("{}: {}\n", step.call.pass->id, note);
    }
    for (const Reason& reason : reasons_against(step.proposal)) {
      if (!reason.remedy.empty()) {  // it is there, and stays
        text += fmt::format("{}: left as it is: {}\n", step.call.pass->id, text_of(reason));
      }
    }
  }
  const std::string change =
      before == after
          ? "as before"
          : fmt::format("{:+.2f} %", 100 * static_cast<double>(after - before) / static_cast<double>(before));
  text += fmt::format("\nwrote {}: {} -> {} parameters ({}), {}, in {}\n", escaped(flags.out), with_commas(before),
                      with_commas(after), change, flags.form, human_time(outcome.writing_seconds));
  if (plan.compat) {
    text +=
        fmt::format("{} of them are now ones, zeros or identities\n{}\n", with_commas(plan.neutral), what_compat_is);
  }
  if (outcome.verification) {
    const Verification& v = *outcome.verification;
    text += fmt::format(
        "verified on {} tokens in {}: relative error {:.2g}, predicted {:.2g}, noise of {} {:.2g}: {}\n",
        with_commas(v.tokens), human_time(outcome.verifying_seconds), v.metrics.max_relative_logit_error,
        v.predicted_error, dtype_word(v.floor_dtype), v.noise_floor.max_relative_logit_error, word(v.verdict));
  } else {
    text += "not verified (--no-verify): its certificate says so\n";
  }
  print_text(fitted(text));
}

uint64_t bytes_of(const Plan& plan) {
  uint64_t bytes = plan.companions.bytes;
  for (const auto& [name, weight] : plan.prepared.weights) {
    bytes += static_cast<uint64_t>(bytes_of(element_count(weight.shape()), weight.dtype()));
  }
  return bytes;
}

struct Rewriting {
  Pipeline pipeline;
  Plan plan;
  Outcome outcome;
};

[[noreturn]] void refuse_result(const ModelFolder& source, const Pipeline& pipeline, const Verification& v,
                                const RewriteFlags& flags, Dtype dtype) {
  const std::string ways = advice(pipeline, flags, source.model.architecture, dtype);
  if (v.verdict != Verdict::different) {
    throw VerificationFailed(
        fmt::format("the relative error is {:.2g}, predicted {:.2g}, and --max-error allows {:.2g}. "
                    "Nothing was written{}",
                    v.metrics.max_relative_logit_error, v.predicted_error, flags.max_error, ways));
  }
  throw VerificationFailed(fmt::format(
      "the result is not the same function within what {} allows: relative error {:.2g}, predicted {:.2g}, noise of "
      "the original in {} {:.2g}. Nothing was written{}",
      dtype_word(dtype), v.metrics.max_relative_logit_error, v.predicted_error, dtype_word(v.floor_dtype),
      v.noise_floor.max_relative_logit_error, ways));
}

// What was measured decides. Where `auto` took more than the original's own noise allows, it tries again with as much
// less as was measured too much; a list of passes is done as it stands or not at all.
Rewriting rewrite(const ModelFolder& source, const RewriteFlags& flags, const Settings& settings,
                  const std::optional<Dtype>& wanted, Dtype dtype) {
  const Companions companions = find_companions(source.path);
  for (const std::filesystem::path& name : companions.files) {
    if (std::filesystem::is_symlink(source.path / name)) {
      check_input_stays(source.path / name, flags.out);
    }
  }
  Budget budget = budget_of(flags, dtype);
  while (true) {
    Pipeline pipeline = propose(source, flags, budget);
    for (const std::string& warning : pipeline.warnings) {
      log_warning(warning);
    }
    Plan plan = plan_writing(source, pipeline, flags, wanted, companions);
    check_output(flags.out, OutputKind::folder, may_replace(flags), bytes_of(plan));
    Outcome outcome = write_and_verify(source, pipeline, plan, flags, settings, dtype);
    if (!outcome.verification || is_kept(*outcome.verification, flags)) {
      for (const std::string& text : pipeline.left_out) {
        log_warning("auto left out " + text);
      }
      return {std::move(pipeline), std::move(plan), std::move(outcome)};
    }
    const Verification& v = *outcome.verification;
    if (flags.passes != "auto" || v.predicted_error == 0) {
      refuse_result(source, pipeline, v, flags, dtype);
    }
    double allowed = std::max(v.limit, 2 * v.noise_floor.max_relative_logit_error);
    allowed = flags.max_error > 0 ? std::min(allowed, flags.max_error) : allowed;
    // At most half, since KL may be what differed; so this ends.
    budget.error = v.predicted_error * std::min(0.5, allowed / v.metrics.max_relative_logit_error);
    budget.source = "more was measured to be too much";
    log_info(
        fmt::format("auto: measured a relative error of {:.2g} and a mean KL of {:.2g}, noise {:.2g} and {:.2g}: "
                    "trying with less",
                    v.metrics.max_relative_logit_error, v.metrics.mean_kl_nats.value_or(0),
                    v.noise_floor.max_relative_logit_error, v.noise_floor.mean_kl_nats.value_or(0)));
  }
}

void rewrite_command(const RewriteFlags& flags, const Settings& settings) {
  const ModelFolder source = open_model(flags.model);
  check_input_stays(flags.model, flags.out);
  const std::optional<Dtype> wanted = float_dtype_from_word(flags.dtype);
  const Dtype dtype = wanted.value_or(source.dtype);
  check_output(flags.out, OutputKind::folder, may_replace(flags), 0);
  check_question(flags.question, source.model.architecture);
  const auto [pipeline, plan, outcome] = rewrite(source, flags, settings, wanted, dtype);
  for (const std::string& line : left_behind_lines(plan.companions)) {
    log_warning(line);
  }
  if (settings.json) {
    print_json(outcome.certificate);
  } else {
    print_result(source, pipeline, plan, flags, dtype, outcome);
    if (flags.explain) {
      print_text("\n" + text_of(plan.prepared.explanation));
    }
  }
}

}  // namespace

void add_rewrite(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("rewrite", "A smaller checkpoint that is the same function");
  auto flags = std::make_shared<RewriteFlags>();
  command->add_option("MODEL", flags->model, "a model folder; it is never changed")->required();
  command->add_option("-o,--output", flags->out, "the folder to write")->required()->type_name("FOLDER");
  std::vector<std::string> passes = pass_names();
  passes.emplace_back("auto");
  command->add_option("--passes", flags->passes, "'pass,pass{option=value,...}', in order; or auto")
      ->required()
      ->check(list_of(passes))
      ->type_name("LIST");
  command->add_option("--form", flags->form, "strict: smaller; compat: runs in stock engines")
      ->check(one_of({"strict", "compat"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "keep, float64, float32, bfloat16 or float16")
      ->transform(dtype_or({"keep"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--max-error", flags->max_error, "refuse when more is predicted [the noise decides]")
      ->check(CLI::Validator(
          [](const std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            return number && value > 0 && std::isfinite(value) ? "" : quote(text) + " is not a positive number";
          },
          ""))
      ->type_name("E");
  add_question_flags(*command, flags->question, checked_sequences);
  command->add_flag("--allow-growth", flags->allow_growth, "also when the result has more parameters");
  command->add_flag("--force", flags->force, "replace another model, if nothing else is there");
  command->add_flag("--no-verify", flags->no_verify, "do not compare the result with the model");
  command->add_flag("--explain", flags->explain, "each tensor's formula in terms of the model's own");
  command->add_option("--shard-size", flags->shard_bytes, "the most one file holds, such as 500MB")
      ->transform(CLI::AsSizeValue(true).description(""))
      ->check(CLI::Range(1.0, 0x1p63).description(""))
      ->type_name("BYTES")
      ->capture_default_str();
  command->footer(R"(Exit code 2 when a pass refuses, 3 when the result is not the same function:
then nothing is written. 'pare passes' lists the passes.
Example: pare rewrite model -o smaller --passes 'eliminate_projection{target=q}')");
  command->callback([flags, &settings] { rewrite_command(*flags, settings); });
}

}  // namespace pare
