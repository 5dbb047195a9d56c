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
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/question.h"
#include "pare/model/device.h"
#include "pare/passes/pipeline.h"
#include "pare/passes/reasons.h"
#include "pare/passes/write_rewritten.h"
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
  bool allow_growth = false, force = false, no_verify = false;
  uint64_t shard_bytes = 5'000'000'000;
};

constexpr int64_t checked_sequences = 4;

// Without --max-error: what float64 may lose and still be called the same. What storage in fewer digits may lose is
// measured on the original, so there nothing is forbidden beforehand, unless nothing will be measured.
Budget budget_of(const RewriteFlags& flags, Dtype dtype) {
  if (flags.max_error > 0) {
    return {flags.max_error, dtype};
  }
  return {dtype == Dtype::f64 ? 1e-6 : flags.no_verify ? 0.1 : std::numeric_limits<double>::infinity(), dtype};
}

std::string all_reasons(const PassStep& step) {
  std::string text = fmt::format("{}:", text_of(step.call));
  for (const Reason& reason : reasons_against(step.proposal)) {
    text += fmt::format("\n  {}", text_of(reason));
    if (!reason.remedy.empty()) {
      text += fmt::format("\n    what would help: {}", reason.remedy);
    }
  }
  return text;
}

// What is left to try when a result would lose too many digits: only what exists and is not so already.
std::string advice(const Pipeline& pipeline, const RewriteFlags& flags, Dtype dtype) {
  std::vector<std::string> ways;
  if (dtype != Dtype::f64) {
    ways.push_back("--dtype float64 keeps more digits");
  }
  for (const PassStep& step : pipeline.steps) {
    const auto target = step.call.options.find("target");
    if (target != step.call.options.end() && target->second != "best") {
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
void refuse_if_needed(const Pipeline& pipeline, const RewriteFlags& flags, const Budget& budget) {
  std::string refusals;
  int64_t saved = 0;
  for (const PassStep& step : pipeline.steps) {
    saved += step.saved_parameters;
    if (!step.proposal.applies) {
      refusals += (refusals.empty() ? "" : "\n") + all_reasons(step);
    }
  }
  if (!refusals.empty()) {
    throw Refused(refusals);
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
          fmt::format("{} {:.2g}", step.call.pass->id, predicted_error(step.proposal.roundings, budget.dtype)));
    }
    throw Refused(fmt::format("{}: {}; --max-error allows more{}", fmt::join(parts, ", "),
                              budget.excess(pipeline.roundings), advice(pipeline, flags, budget.dtype)));
  }
}

Pipeline plan(const StoredModel& model, const RewriteFlags& flags, const Budget& budget) {
  const Recipe recipe{model.architecture, model.weights};
  Pipeline pipeline =
      flags.passes == "auto" ? choose_passes(recipe, budget) : run_passes(recipe, parse_passes(flags.passes));
  refuse_if_needed(pipeline, flags, budget);
  return pipeline;
}

struct Outcome {
  nlohmann::ordered_json certificate;
  std::optional<Verification> verification;
  double writing_seconds = 0, verifying_seconds = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

nlohmann::ordered_json passes_json(const Pipeline& pipeline, Dtype dtype) {
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (const PassStep& step : pipeline.steps) {
    passes.push_back(to_json(step, dtype));
  }
  return passes;
}

// Written, read back and compared under a temporary name: an output that is not the same function never appears, and
// is only told of.
Outcome write_and_verify(const StoredModel& source, const Pipeline& pipeline, const Prepared& prepared,
                         const RewriteFlags& flags, const Settings& settings, Dtype dtype) {
  Outcome outcome;
  const auto started = std::chrono::steady_clock::now();
  AtomicFolder output(flags.out, flags.force);
  write_prepared(output.temporary(), source, prepared, flags.shard_bytes);
  outcome.writing_seconds = seconds_since(started);

  const auto written = std::chrono::steady_clock::now();
  const StoredModel candidate = open_model(output.temporary());
  const double predicted = predicted_error(pipeline.roundings, dtype);
  Verification verification{.predicted_error = predicted};
  InputSource asked;
  if (!flags.no_verify) {
    const Question question =
        read_question(flags.question, checked_sequences, settings.seed, source.architecture, candidate.architecture);
    asked = question.source;
    verification =
        verify(source, candidate, question.inputs,
               {.predicted_error = predicted, .seed = settings.seed, .device = find_device(settings.device)});
    outcome.verification = verification;
    if (verification.verdict == Verdict::different) {
      return outcome;
    }
  }
  nlohmann::ordered_json described = describe_files(candidate);
  described["path"] = flags.out;
  outcome.certificate =
      certificate_json(describe_files(source), described, passes_json(pipeline, dtype), asked, verification);
  if (flags.no_verify) {
    for (const char* key :
         {"inputs", "compute_dtype", "metrics", "noise_floor", "first_divergence", "self_test", "verdict"}) {
      outcome.certificate[key] = nullptr;
    }
  }
  write_text_file(output.temporary() / "certificate.json", outcome.certificate.dump(2) + "\n");
  outcome.verifying_seconds = seconds_since(written);
  output.commit();
  return outcome;
}

std::string pass_table(const Pipeline& pipeline, Dtype dtype) {
  Table table({Align::left, Align::right, Align::right});
  table.row({"pass", "parameters less", fmt::format("predicted in {}", dtype_word(dtype))});
  table.rule();
  for (const PassStep& step : pipeline.steps) {
    table.row({text_of(step.call), with_commas(step.saved_parameters),
               fmt::format("{:.1e}", predicted_error(step.proposal.roundings, dtype))});
  }
  return table.text();
}

void print_result(const StoredModel& source, const Pipeline& pipeline, const RewriteFlags& flags, Dtype dtype,
                  const Outcome& outcome) {
  const int64_t before = count(source.architecture).total, after = count(pipeline.after.architecture).total;
  std::string text = pass_table(pipeline, dtype);
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
  text +=
      fmt::format("\nwrote {}: {} -> {} parameters ({:+.2f} %), {}, in {}\n", escaped(flags.out), with_commas(before),
                  with_commas(after), 100 * static_cast<double>(after - before) / static_cast<double>(before),
                  flags.form, human_time(outcome.writing_seconds));
  if (outcome.verification) {
    const Verification& v = *outcome.verification;
    text += fmt::format(
        "verified on {} tokens in {}: relative error {:.2g}, predicted {:.2g}, noise of {} {:.2g}: {}\n",
        with_commas(v.tokens), human_time(outcome.verifying_seconds), v.metrics.max_relative_logit_error,
        v.predicted_error, dtype_word(v.floor_dtype), v.noise_floor.max_relative_logit_error, word(v.verdict));
  } else {
    text += "not verified (--no-verify): its certificate says so\n";
  }
  print_text(text);
}

// --force replaces what is there, but never the model that it reads.
void check_input_stays(const RewriteFlags& flags) {
  namespace fs = std::filesystem;
  const fs::path model = fs::canonical(flags.model), out = fs::weakly_canonical(fs::path(flags.out) / "");
  for (fs::path path = model; path != path.parent_path(); path = path.parent_path()) {
    if (path / "" == out / "") {
      throw InputError(
          fmt::format("the output {} is the model itself or holds it: choose another, rewrite never "
                      "changes what it reads",
                      quote(flags.out)));
    }
  }
}

struct Rewriting {
  Pipeline pipeline;
  Outcome outcome;
};

Outcome prepare_and_write(const StoredModel& source, const Pipeline& pipeline, const RewriteFlags& flags,
                          const Settings& settings, const std::optional<Dtype>& wanted, Dtype dtype) {
  const Prepared prepared =
      prepare(source, pipeline.after,
              {.form = flags.form == "compat" ? WrittenForm::compat : WrittenForm::strict, .dtype = wanted});
  uint64_t bytes = 0;
  for (const auto& [name, weight] : prepared.weights) {
    bytes += static_cast<uint64_t>(element_count(weight.shape) * dtype_bits(weight.dtype) / 8);
  }
  check_output(flags.out, flags.force, bytes);
  return write_and_verify(source, pipeline, prepared, flags, settings, dtype);
}

[[noreturn]] void refuse_different(const Pipeline& pipeline, const Verification& v, const RewriteFlags& flags,
                                   Dtype dtype) {
  throw VerificationFailed(fmt::format(
      "the result is not the same function within what {} allows: relative error {:.2g}, predicted {:.2g}, noise of "
      "the original in {} {:.2g}. Nothing was written{}",
      dtype_word(dtype), v.metrics.max_relative_logit_error, v.predicted_error, dtype_word(v.floor_dtype),
      v.noise_floor.max_relative_logit_error, advice(pipeline, flags, dtype)));
}

// What was measured decides. Where `auto` took more than the original's own noise allows, it tries again with as much
// less as was measured too much; a list of passes is done as it stands or not at all.
Rewriting rewrite(const StoredModel& source, const RewriteFlags& flags, const Settings& settings,
                  const std::optional<Dtype>& wanted, Dtype dtype) {
  Budget budget = budget_of(flags, dtype);
  while (true) {
    Pipeline pipeline = plan(source, flags, budget);
    for (const std::string& warning : pipeline.warnings) {
      log_warning(warning);
    }
    Outcome outcome = prepare_and_write(source, pipeline, flags, settings, wanted, dtype);
    if (!outcome.verification || outcome.verification->verdict != Verdict::different) {
      for (const std::string& text : pipeline.left_out) {
        log_warning("auto left out " + text);
      }
      return {std::move(pipeline), std::move(outcome)};
    }
    const Verification& v = *outcome.verification;
    const double allowed = std::max(v.limit, 2 * v.noise_floor.max_relative_logit_error);
    if (flags.passes != "auto" || flags.max_error > 0 || v.predicted_error == 0) {
      refuse_different(pipeline, v, flags, dtype);
    }
    // At most half, since KL may be what differed; so this ends.
    budget.error = v.predicted_error * std::min(0.5, allowed / v.metrics.max_relative_logit_error);
    log_info(
        fmt::format("auto: measured a relative error of {:.2g} and a mean KL of {:.2g}, noise {:.2g} and {:.2g}: "
                    "trying with less",
                    v.metrics.max_relative_logit_error, v.metrics.mean_kl_nats.value_or(0),
                    v.noise_floor.max_relative_logit_error, v.noise_floor.mean_kl_nats.value_or(0)));
  }
}

void rewrite_command(const RewriteFlags& flags, const Settings& settings) {
  if (std::isnan(flags.max_error)) {
    throw InputError("--max-error nan: expected a positive number");
  }
  const StoredModel source = open_model(flags.model);
  check_input_stays(flags);
  const std::optional<Dtype> wanted = float_dtype_from_word(flags.dtype);
  const Dtype dtype = wanted.value_or(source.dtype);
  check_output(flags.out, flags.force, 0);
  check_question(flags.question, source.architecture);
  const auto [pipeline, outcome] = rewrite(source, flags, settings, wanted, dtype);
  for (const std::filesystem::path& file : left_behind(source.path)) {
    log_warning(fmt::format("{} was not copied: it fits the original's weights only", file.filename().string()));
  }
  if (settings.json) {
    print_json(outcome.certificate);
  } else {
    print_result(source, pipeline, flags, dtype, outcome);
  }
}

}  // namespace

void add_rewrite(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("rewrite", "A smaller checkpoint that is the same function");
  auto flags = std::make_shared<RewriteFlags>();
  command->add_option("MODEL", flags->model, "a model folder; it is never changed")->required();
  command->add_option("-o,--output", flags->out, "the folder to write")->required()->type_name("FOLDER");
  command->add_option("--passes", flags->passes, "pass,pass{option=value,...}, in order; or auto")
      ->required()
      ->type_name("LIST");
  command->add_option("--form", flags->form, "strict: ours; compat: the source's own layout")
      ->check(one_of({"strict", "compat"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "keep, float64, float32, bfloat16 or float16")
      ->check(one_of({"keep", "float64", "float32", "bfloat16", "float16"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--max-error", flags->max_error, "refuse when more is predicted [the noise decides]")
      ->check(CLI::PositiveNumber.description(""))
      ->type_name("E");
  add_question_flags(*command, flags->question, checked_sequences);
  command->add_flag("--allow-growth", flags->allow_growth, "also when the result has more parameters");
  command->add_flag("--force", flags->force, "replace an existing output");
  command->add_flag("--no-verify", flags->no_verify, "do not compare the result with the model");
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
