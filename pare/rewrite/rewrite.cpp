#include "pare/rewrite/rewrite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/replaceable.h"
#include "pare/rewrite/reasons.h"
#include "pare/rewrite/refusals.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/output_place.h"
#include "pare/verify/certificate.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

nlohmann::ordered_json passes_json(const Rewritten& result) {
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (size_t n = 0; n < result.pipeline.steps.size(); ++n) {
    const StoredChange& change = result.plan.changes[n];
    nlohmann::ordered_json json = to_json(result.pipeline.steps[n], result.dtype);
    json["saved_parameters"] = change.saved;
    if (result.plan.form == WrittenForm::compat) {  // which stores no pivots
      json["saved_bytes"] = bytes_of(change.saved, result.dtype);
    }
    json["neutral_parameters"] = change.neutral;
    passes.push_back(std::move(json));
  }
  return passes;
}

nlohmann::ordered_json approximate_json(const Rewritten& result) {
  if (!result.allowed_error) {
    return nullptr;
  }
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (const PassStep& step : result.pipeline.steps) {
    if (!step.proposal.approximation.empty()) {
      passes.push_back({{"id", step.call.pass->id}, {"what", step.proposal.approximation}});
    }
  }
  nlohmann::ordered_json json = {{"passes", passes}, {"max_error", *result.allowed_error}, {"measured_error", nullptr}};
  if (result.verification) {
    json["measured_error"] = result.verification->metrics.max_relative_logit_error;
  }
  return json;
}

// The certificate of a comparison, and how the candidate was made. `candidate` is what was read back, `output` the name
// that it will have, `companions` the SHA-256 of what was copied. Reads every file of both models.
nlohmann::ordered_json certify(const ModelFolder& source, const ModelFolder& candidate,
                               const std::filesystem::path& output, const Rewritten& result,
                               const std::string& input_kind, const std::map<std::string, std::string>& companions) {
  nlohmann::ordered_json described = describe_files(candidate);
  described["path"] = output.string();
  nlohmann::ordered_json certificate = certificate_json(describe_files(source), described, passes_json(result),
                                                        input_kind, result.verification.value_or(Verification{}));
  certificate["predicted_error"] = result.predicted_error();
  certificate["approximate"] = approximate_json(result);
  certificate["form"] = {{"name", word(result.plan.form)},
                         {"neutral_parameters", result.plan.neutral},
                         {"note", what_it_is(result.plan, result.pipeline)}};
  certificate["companions"] = companions;
  certificate["links"] = result.plan.companions.followed;
  certificate["formulas"] = to_json(result.plan.prepared.explanation);
  certificate["unused_tensors"] = to_json(compare_unused(source.unused, candidate.unused));
  if (!result.verification) {
    for (const char* key : {"inputs", "compute_dtype", "metrics", "noise_floor", "excess", "allowed_error",
                            "first_divergence", "proof", "coverage", "self_test", "verdict"}) {
      certificate[key] = nullptr;
    }
  }
  return certificate;
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ReplaceCheck may_replace(const RewriteOptions& options) {
  return options.force ? check_replaceable_model : ReplaceCheck();
}

// Before any work: what is read stays, what is there may make room, and there is room.
void check_place(const ModelFolder& source, const Companions& companions, const fs::path& place,
                 const RewriteOptions& options, uint64_t bytes) {
  check_input_stays(source.path, place);
  if (source.adapter) {
    check_input_stays(source.adapter->path, place);
  }
  for (const fs::path& name : companions.links) {
    check_input_stays(source.path / name, place);
  }
  check_output(place, OutputKind::folder, may_replace(options), bytes);
}

// Without a limit: what float64 may lose and still be called the same. What storage in fewer digits may lose is
// measured on the original, so there nothing is forbidden beforehand, unless nothing will be measured.
Budget budget_of(const RewriteOptions& options, Dtype dtype) {
  if (options.max_error) {
    return {*options.max_error, dtype, "--max-error"};
  }
  if (dtype == Dtype::f64) {
    return {1e-8, dtype, "what float64 may lose"};  // the worst row loses more than the usual one, and 1e-6 is the end
  }
  return {options.verify ? std::numeric_limits<double>::infinity() : 0.1, dtype, "nothing is measured"};
}

// What was measured to be too much, scaled down to what is allowed. At most half, so this ends.
Budget smaller_budget(const Budget& budget, const Rewritten& result, const RewriteOptions& options) {
  const Verification& v = *result.verification;
  double share = std::min(0.5, 1 / v.excess);
  if (options.max_error) {
    share = std::min(share, *options.max_error / v.metrics.max_relative_logit_error);
  }
  return {result.predicted_error() * share, budget.dtype, "more was measured to be too much"};
}

// In compat what the model does not use is kept too, and a pooler that reads hidden states goes on reading the same.
Model as_asked(const ModelFolder& source, const RewriteOptions& options) {
  Model model = source.model;
  model.architecture.head.read_elsewhere =
      options.form == WrittenForm::compat && read_hidden_states(source.unused, model.architecture.width);
  return model;
}

// Stock engines also take a model without its head, as AutoModel does: they find every tensor, but the last hidden
// states are others where a pass moved something of them into the head. Asked of the structure, which costs nothing.
bool moves_hidden_states(const Model& model, const Pipeline& pipeline) {
  const std::vector<PassCall> calls = mapped(pipeline.steps, &PassStep::call);
  Model free{.architecture = model.architecture}, held = free;
  held.architecture.head.read_elsewhere = true;
  const Pipeline a = run_passes(free, calls), b = run_passes(held, calls);
  for (size_t n = 0; n < calls.size(); ++n) {
    Architecture after = b.steps[n].proposal.after.architecture;
    after.head.read_elsewhere = model.architecture.head.read_elsewhere;
    if (a.steps[n].proposal.applies != b.steps[n].proposal.applies ||
        !(a.steps[n].proposal.after.architecture == after)) {
      return true;
    }
  }
  return false;
}

// What is written is rounded from that: sums with an adapter are in float64.
Dtype computed_dtype(const ModelFolder& source) {
  return source.adapter ? Dtype::f64 : source.dtype;
}

Pipeline propose(const ModelFolder& source, const RewriteOptions& options, const Budget& budget) {
  const double narrowing = narrowing_roundings(source.model.architecture, computed_dtype(source), budget.dtype);
  const Model model = as_asked(source, options);
  Pipeline pipeline =
      options.passes ? run_passes(model, *options.passes) : choose_passes(model, budget.after(narrowing));
  pipeline.roundings = std::hypot(pipeline.roundings, narrowing);
  refuse_pipeline(pipeline, options, source.model.architecture, budget, narrowing);
  return pipeline;
}

// The same function, and no further off than the user allows; or approximate, measured and no further off than that.
bool is_kept(const Rewritten& result, const RewriteOptions& options) {
  if (!result.verification) {
    return true;
  }
  const Verification& v = *result.verification;
  const bool within = !options.max_error || v.metrics.max_relative_logit_error <= *options.max_error;
  return within && (result.allowed_error ? v.tokens > 0 : v.verdict != Verdict::different);
}

// It is known not to be the same function: that rows came out alike would only say that nobody asked the right ones.
void judge_approximate(Verification& verification) {
  verification.verdict = Verdict::different;
  verification.self_tests.clear();
}

// `auto` tries again with less, as long as there is less.
bool may_retry(const Rewritten& result, const RewriteOptions& options) {
  return !options.passes && result.predicted_error() > 0;
}

void add_warnings(Rewritten& result, const std::vector<std::string>& warnings) {
  result.warnings.insert(result.warnings.end(), warnings.begin(), warnings.end());
}

// Into a folder that has the name `target` only when it is kept, and a certificate then; read back and compared.
void write_and_verify(const ModelFolder& source, const fs::path& folder, const fs::path& target,
                      const RewriteOptions& options, Rewritten& result) {
  const Clock::time_point started = Clock::now();
  const std::map<std::string, std::string> copied =
      write_prepared(folder, source, result.plan.prepared, result.plan.companions, options.shard_bytes);
  result.writing_seconds = seconds_since(started);

  const Clock::time_point written = Clock::now();
  // In the compat form config.json keeps the keys that were ignored.
  const ModelFolder candidate =
      open_model(folder, source.ignored_keys.empty() ? UnknownKeys::refuse : UnknownKeys::ignore);
  add_warnings(result, candidate.warnings);
  add_warnings(result, warnings_of_tokenizer(source));
  const Question question = options.question.value_or(Question{.kind = "random"});
  if (options.verify) {
    result.verification = verify(source, candidate, question.inputs,
                                 {.seed = options.seed,
                                  .sequences = options.random,
                                  .budget = options.budget,
                                  .predicted = predicted_error(result.pipeline.roundings, Dtype::f64),
                                  .may_quantise = false,
                                  .device = options.device});
    add_warnings(result, result.verification->warnings);
    if (result.allowed_error) {
      judge_approximate(*result.verification);
    }
    if (!is_kept(result, options)) {
      return;
    }
  }
  result.certificate = certify(source, candidate, target, result, question.kind, copied);
  write_text_file(folder / "certificate.json", json_text(result.certificate));
  result.verifying_seconds = seconds_since(written);
}

struct Dump {
  fs::path place;
  Rewritten result;  // of the passes so far
};

std::vector<Dump> plan_dumps(const ModelFolder& source, const fs::path& output, const RewriteOptions& options,
                             const Rewritten& result) {
  std::vector<Dump> dumps;
  Pipeline so_far{.roundings = narrowing_roundings(source.model.architecture, computed_dtype(source), result.dtype)};
  for (const PassStep& step : result.pipeline.steps) {
    so_far.steps.push_back(step);
    so_far.after = step.proposal.after;
    so_far.roundings = std::hypot(so_far.roundings, step.proposal.roundings);
    if (options.dump_after == "all" || options.dump_after == step.call.pass->id) {
      Dump& dump = dumps.emplace_back();
      dump.place = dump_path(output, so_far.steps.size(), step.call.pass->id);
      dump.result.dtype = result.dtype;
      dump.result.pipeline = so_far;
      dump.result.allowed_error = is_approximate(so_far) ? options.max_error : std::nullopt;
      dump.result.plan = plan_writing(source, so_far, options.form, options.dtype, result.plan.companions);
    }
  }
  return dumps;
}

void write_dumps(const ModelFolder& source, std::vector<Dump>& dumps, RewriteOptions options, Rewritten& result) {
  options.verify = false;
  for (Dump& dump : dumps) {
    AtomicFolder folder(dump.place, may_replace(options));
    write_and_verify(source, folder.temporary(), dump.place, options, dump.result);
    add_warnings(result, folder.commit());
    result.dumps.push_back(dump.place);
  }
}

// Under a temporary name: an output that is not the same function never appears, and is only told of. What somebody
// wants to see on the way appears also then, of the last try.
void try_once(const ModelFolder& source, const fs::path& output, const RewriteOptions& options, const Budget& budget,
              const Companions& companions, Rewritten& result) {
  result.dtype = budget.dtype;
  result.pipeline = propose(source, options, budget);
  result.allowed_error = is_approximate(result.pipeline) ? options.max_error : std::nullopt;
  result.warnings = result.pipeline.warnings;
  result.plan = plan_writing(source, result.pipeline, options.form, options.dtype, companions);
  refuse_idle_compat(result.plan, result.pipeline, options);
  if (options.form == WrittenForm::compat && source.model.architecture.task != Task::encoder &&
      moves_hidden_states(as_asked(source, options), result.pipeline)) {
    result.warnings.emplace_back(
        "the last hidden states are not kept, only the logits: a program that loads the model without its head "
        "(AutoModel) gets different numbers");
  }
  std::vector<Dump> dumps = plan_dumps(source, output, options, result);
  if (dumps.empty() && !options.dump_after.empty()) {
    result.warnings.push_back(
        fmt::format("--dump-after {}: auto does not take it, so it writes nothing", options.dump_after));
  }
  uint64_t bytes = bytes_of(result.plan);
  for (const Dump& dump : dumps) {
    bytes += bytes_of(dump.result.plan);
    check_place(source, companions, dump.place, options, bytes);
  }
  check_output(output, OutputKind::folder, may_replace(options), bytes);
  AtomicFolder folder(output, may_replace(options));
  write_and_verify(source, folder.temporary(), output, options, result);
  const bool kept = is_kept(result, options);
  if (kept || !may_retry(result, options)) {
    write_dumps(source, dumps, options, result);
  }
  if (kept) {
    add_warnings(result, folder.commit());
  }
}

void check_passes(const ModelFolder& source, const RewriteOptions& options) {
  refuse_if(options.passes && options.passes->empty() && !source.adapter,
            "the list of passes is empty: name one, or give no list, and auto chooses");
  if (options.dump_after.empty() || options.dump_after == "all") {
    return;
  }
  const Pass& asked = find_pass(options.dump_after);
  if (options.passes && std::none_of(options.passes->begin(), options.passes->end(),
                                     [&](const PassCall& call) { return call.pass == &asked; })) {
    throw InputError(fmt::format("--dump-after {}: it is none of the passes that were asked for", asked.id));
  }
}

}  // namespace

fs::path dump_path(const fs::path& output, size_t number, std::string_view pass) {
  const fs::path target = output_target(output);
  return fs::path(target).replace_filename(fmt::format("{}.after-{}-{}", target.filename().string(), number, pass));
}

double Rewritten::predicted_error() const {
  return pare::predicted_error(pipeline.roundings, dtype);
}

// What was measured decides. Where `auto` took more than the original's own noise allows, it tries again with as much
// less as was measured too much; a list of passes is done as it stands or not at all.
Rewritten rewrite(const ModelFolder& source, const fs::path& output, const RewriteOptions& options) {
  check_passes(source, options);
  check_place(source, {}, output, options, 0);
  const Companions companions =
      find_companions(source, options.follow_links ? OutsideLinks::follow : OutsideLinks::leave);
  check_place(source, companions, output, options, companions.bytes);
  Budget budget = budget_of(options, options.dtype.value_or(source.dtype));
  while (true) {
    Rewritten result;
    try {
      try_once(source, output, options, budget, companions, result);
      if (is_kept(result, options)) {
        return result;
      }
      if (!may_retry(result, options)) {
        refuse_result(result, options, source.model.architecture);
      }
    } catch (Error& error) {
      error.warnings.insert(error.warnings.begin(), result.warnings.begin(), result.warnings.end());
      throw;
    }
    if (options.on_retry) {
      options.on_retry(*result.verification);
    }
    budget = smaller_budget(budget, result, options);
  }
}

}  // namespace pare
