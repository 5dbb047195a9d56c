// pare rewrite: a smaller checkpoint that is the same function, with a certificate beside it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/count.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/question.h"
#include "pare/cli/subject.h"
#include "pare/rewrite/reasons.h"
#include "pare/rewrite/rewrite.h"
#include "pare/support/error.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

struct RewriteFlags {
  std::string model, adapter, out, passes, form, dtype = "keep", dump_after;
  QuestionFlags question;
  double max_error = 0;  // 0: not given
  bool allow_growth = false, follow_links = false, force = false, no_verify = false, explain = false;
  uint64_t shard_bytes = RewriteOptions{}.shard_bytes;
};

void say_retry(const Verification& v) {
  log_info(fmt::format(
      "auto: measured a relative error of {:.2g} and a mean KL of {:.2g}, noise {:.2g} and {:.2g}: trying with less",
      v.metrics.max_relative_logit_error, v.metrics.mean_kl_nats.value_or(0), v.noise_floor.max_relative_logit_error,
      v.noise_floor.mean_kl_nats.value_or(0)));
}

RewriteOptions options_of(const RewriteFlags& flags, const Settings& settings, const ModelFolder& source) {
  RewriteOptions options;
  if (flags.passes.empty()) {
    options.passes.emplace();
  } else if (flags.passes != "auto") {
    options.passes = parse_passes(flags.passes);
  }
  // Where nothing goes, nothing has a form of its own.
  const std::string form = !flags.form.empty() ? flags.form : flags.passes.empty() ? "compat" : "strict";
  options.form = form == "compat" ? WrittenForm::compat : WrittenForm::strict;
  options.dtype = float_dtype_from_word(flags.dtype);
  if (flags.max_error > 0) {
    options.max_error = flags.max_error;
  }
  options.allow_growth = flags.allow_growth;
  options.follow_links = flags.follow_links;
  options.force = flags.force;
  options.verify = !flags.no_verify;
  options.question = read_question_file(flags.question, source);
  options.random = flags.question.random > 0 ? flags.question.random : options.random;
  options.budget = flags.question.budget;
  options.seed = settings.seed;
  options.device = options.verify ? chosen_device(settings) : at::Device(at::kCPU);
  options.shard_bytes = flags.shard_bytes;
  options.dump_after = flags.dump_after;
  options.on_retry = say_retry;
  return options;
}

std::string pass_table(const Rewritten& result) {
  const bool compat = result.plan.form == WrittenForm::compat;
  Table table({Align::left, Align::right, Align::right}, {"pass", compat ? "made neutral" : "parameters less",
                                                          fmt::format("predicted in {}", word(result.dtype))});
  for (size_t n = 0; n < result.pipeline.steps.size(); ++n) {
    const PassStep& step = result.pipeline.steps[n];
    const StoredChange& change = result.plan.changes[n];
    table.row({pasteable(step.call), with_commas(compat ? change.neutral : change.saved),
               fmt::format("{:.1e}", predicted_error(step.proposal.roundings, result.dtype))});
  }
  return table.text();
}

void print_result(const ModelFolder& source, const std::string& out, const Rewritten& result) {
  const Plan& plan = result.plan;
  const int64_t before = count(source.model.architecture).total, after = count(plan.prepared.model.architecture).total;
  std::string text = result.pipeline.steps.empty() ? "" : pass_table(result);
  const auto says_more = [](const PassStep& step) { return !step.proposal.notes.empty(); };
  if (result.pipeline.steps.size() > 1 &&
      std::any_of(result.pipeline.steps.begin(), result.pipeline.steps.end() - 1, says_more)) {
    text += "Each note describes the result of its pass; later passes may change it.\n";
  }
  for (const PassStep& step : result.pipeline.steps) {
    if (!step.proposal.approximation.empty()) {
      text += fmt::format("{}: approximate: {}\n", step.call.pass->id, step.proposal.approximation);
    }
    for (const std::string& note : step.proposal.notes) {
      text += fmt::format("{}: {}\n", step.call.pass->id, note);
    }
    for (const Reason& reason : told_together(reasons_against(step.proposal))) {
      if (!reason.remedy.empty()) {  // it is there, and stays
        text += fmt::format("{}: not changed: {}\n", step.call.pass->id, text_of(reason));
      }
    }
  }
  if (!result.pipeline.saving_nothing.empty()) {
    text += fmt::format("auto skipped passes that save no parameters: {}\n",
                        fmt::join(result.pipeline.saving_nothing, ", "));
  }
  const std::string change =
      before == after
          ? "as before"
          : fmt::format("{:+.2f} %", 100 * static_cast<double>(after - before) / static_cast<double>(before));
  text += text.empty() ? "" : "\n";
  if (source.adapter) {
    text += fmt::format("merged the adapter {}: {} tensors are sums, rounded to the stored type\n",
                        escaped(source.adapter->path.string()), with_commas(std::ssize(source.adapted)));
  }
  text += fmt::format("wrote {}: {} -> {} parameters ({}), {}, in {}\n", escaped(out), with_commas(before),
                      with_commas(after), change, word(plan.form), human_time(result.writing_seconds));
  if (plan.form == WrittenForm::compat) {
    text += plan.neutral == 0
                ? ""
                : fmt::format("{} of them are now ones, zeros or identities\n", with_commas(plan.neutral));
    text += fmt::format("{}\n", what_it_is(plan, result.pipeline));
  }
  if (result.allowed_error) {
    const Verification& v = *result.verification;
    text += fmt::format(
        "measured on {} tokens in {}: relative error {:.2g}, allowed {:.2g}: approximate, not the same function\n",
        with_commas(v.tokens), human_time(result.verifying_seconds), v.metrics.max_relative_logit_error,
        *result.allowed_error);
  } else if (result.verification) {
    const Verification& v = *result.verification;
    text += fmt::format(
        "verified on {} tokens in {}: relative error {:.2g}, predicted {:.2g}, noise of {} {:.2g}: {}\n",
        with_commas(v.tokens), human_time(result.verifying_seconds), v.metrics.max_relative_logit_error,
        result.predicted_error(), word(v.floor_dtype), v.noise_floor.max_relative_logit_error, word(v.verdict));
    if (v.metrics.max_relative_logit_error > v.noise_floor.max_relative_logit_error) {
      text += fmt::format("  more than the noise, and allowed {:.2g}: {}\n", v.allowed, v.allowed_for);
    }
    if (!v.proof.complete && !v.proof.gaps.empty()) {
      text += fmt::format("not proved for all inputs: {}\n", v.proof.gaps.front());
    }
  } else {
    text += "not verified (--no-verify): its certificate says so\n";
  }
  for (const std::filesystem::path& dump : result.dumps) {
    text += fmt::format("also wrote {}, not verified\n", escaped(dump.string()));
  }
  print_text(fitted(text));
}

void rewrite_command(const RewriteFlags& flags, const Settings& settings) {
  refuse_if(flags.passes.empty() && flags.adapter.empty(),
            "--passes is required, unless --adapter names something to merge (see 'pare rewrite --help')");
  const ModelFolder source = open_and_warn(flags.model, settings, flags.adapter);
  const Rewritten result = rewrite(source, flags.out, options_of(flags, settings, source));
  print_warnings(result.warnings);
  for (const std::string& text : result.pipeline.left_out) {
    log_warning("auto left out " + text);
  }
  if (result.plan.form == WrittenForm::strict) {
    for (const std::string& line : lines_of(source.unused)) {
      log_warning(fmt::format("not written, which --form compat would: {}", line));
    }
  }
  print_warnings(left_behind_lines(result.plan.companions));
  if (settings.json) {
    print_json(result.certificate);
  } else {
    print_result(source, flags.out, result);
    if (flags.explain) {
      print_text("\n" + text_of(result.plan.prepared.explanation));
    }
  }
}

}  // namespace

void add_rewrite(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("rewrite", "Remove what is redundant, and verify the result");
  auto flags = std::make_shared<RewriteFlags>();
  command->add_option("MODEL", flags->model, "a model folder, or a GGUF file; it is never changed")->required();
  command->add_option("-o,--output", flags->out, "the folder to write")->required()->type_name("FOLDER");
  std::vector<std::string> passes = pass_names();
  passes.emplace_back("auto");
  add_adapter_flag(*command, flags->adapter);
  command->add_option("--passes", flags->passes, "'pass,pass{option=value,...}', in order; or auto")
      ->check(list_of(passes))
      ->type_name("LIST");
  command->add_option("--form", flags->form, "strict: smaller [if passes]; compat: stock engines")
      ->check(one_of({"strict", "compat"}))
      ->type_name("NAME");
  command->add_option("--dtype", flags->dtype, "keep, float64, float32, bfloat16 or float16")
      ->transform(dtype_or({"keep"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--max-error", flags->max_error, "largest predicted error [the type's noise]")
      ->check(CLI::Validator(
          [](const std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            return number && value > 0 && std::isfinite(value) ? "" : quote(text) + " is not a positive number";
          },
          ""))
      ->type_name("E");
  add_question_flags(*command, flags->question, RewriteOptions{}.random);
  command->add_flag("--allow-growth", flags->allow_growth, "allow a result with more parameters");
  command->add_flag("--follow-links", flags->follow_links, "copy what links out of the model folder point to");
  command->add_flag("--force", flags->force, "overwrite a model folder that holds nothing else");
  command->add_flag("--no-verify", flags->no_verify, "do not verify the result");
  std::vector<std::string> dumped = pass_names();
  dumped.emplace_back("all");
  command->add_option("--dump-after", flags->dump_after, "also write OUTPUT.after-N-PASS after this pass, or all")
      ->check(list_of(dumped))
      ->type_name("PASS");
  command->add_flag("--explain", flags->explain, "print the formula of each new tensor");
  command->add_option("--shard-size", flags->shard_bytes, "largest size of one file, such as 500MB")
      ->transform(CLI::AsSizeValue(true).description(""))
      ->check(whole_number(1, uint64_t{1} << 62))
      ->type_name("BYTES")
      ->capture_default_str();
  command->footer(R"(Without --passes, --adapter is merged and nothing else changes.
An approximate pass needs --max-error, and its result is another function.
Exit code 2 when a pass refuses, 3 when the result is not the same function:
then nothing is written. 'pare passes' lists the passes.
Example: pare rewrite model -o smaller --passes 'eliminate_projection{target=q}')");
  command->callback([flags, &settings] { rewrite_command(*flags, settings); });
}

}  // namespace pare
