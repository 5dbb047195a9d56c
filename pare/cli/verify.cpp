// pare verify: whether two models are the same function, with a certificate.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/head.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/cli/question.h"
#include "pare/cli/ranks.h"
#include "pare/cli/report_file.h"
#include "pare/cli/stored_logits.h"
#include "pare/cli/subject.h"
#include "pare/cli/verify_summary.h"
#include "pare/cli/verify_text.h"
#include "pare/probes/alignment.h"
#include "pare/report/pages.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/log.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"
#include "pare/verify/certificate.h"
#include "pare/verify/verify.h"

namespace pare {

namespace {

struct VerifyFlags {
  std::string reference, candidate, logits, summary;
  std::optional<std::string> dtype;                  // float64; of stored logits the type that they are in
  std::vector<std::string> adapters;                 // as they were given
  std::string reference_adapter, candidate_adapter;  // each behind the model that it belongs to
  bool strict = false, modulo_gauge = false, by_tensor = false;
  std::optional<double> max_kl, max_error;
  QuestionFlags question;
  ReportFlags report;
};

constexpr int64_t layered_sequences = 8;  // that a page shows layer by layer
const int64_t usual_sequences = VerifyOptions{}.sequences;

nlohmann::ordered_json alignment_json(const Alignment& alignment) {
  using Json = nlohmann::ordered_json;
  Json steps = Json::array(), groups = Json::array();
  for (const AlignmentStep& step : alignment.steps) {
    steps.push_back({{"symmetry", step.symmetry}, {"explained", step.explained}});
  }
  for (const AlignedGroup& group : alignment.groups) {
    groups.push_back({{"group", group.group}, {"before", group.before}, {"after", group.after}});
  }
  const auto known = [&](double value) { return alignment.groups.empty() ? Json() : Json(value); };
  return {{"before", known(alignment.before)},
          {"after", known(alignment.after)},
          {"steps", steps},
          {"groups", groups},
          {"note", alignment.note}};
}

// What somebody asked for besides a verdict.
std::optional<std::string> beyond_limits(const VerifyFlags& flags, const Verification& v) {
  const auto beyond = [](double found, double limit) { return !(found <= limit); };  // also what is not a number
  if (flags.max_kl && v.metrics.mean_kl_nats) {
    if (beyond(*v.metrics.mean_kl_nats, *flags.max_kl)) {
      return fmt::format("--max-kl: the mean KL is {:.3g} nats, allowed {:.3g}", *v.metrics.mean_kl_nats,
                         *flags.max_kl);
    }
  }
  if (flags.max_error && beyond(v.metrics.max_relative_logit_error, *flags.max_error)) {
    return fmt::format("--max-error: the largest relative error is {:.3g}, allowed {:.3g}",
                       v.metrics.max_relative_logit_error, *flags.max_error);
  }
  return std::nullopt;
}

// What is wrong, for the exit code; nothing where all is well.
std::optional<VerificationFailed> failure_of(const VerifyFlags& flags, const Verification& v) {
  const auto with = [](const std::string& model, const std::string& adapter) {
    return quote(model) + (adapter.empty() ? "" : " with the adapter " + quote(adapter));
  };
  const std::string reference = with(flags.reference, flags.reference_adapter);
  const std::string candidate = with(flags.logits.empty() ? flags.candidate : flags.logits, flags.candidate_adapter);
  const std::string pair = fmt::format("{} is not the same function as {}", candidate, reference);
  if (!v.differences.empty()) {
    std::vector<ErrorReason> reasons;
    for (const SettingDifference& d : v.differences) {
      reasons.push_back({fmt::format("{} is {}, expected {}", d.setting, d.candidate, d.reference),
                         {{"where", d.setting}, {"expected", d.reference}, {"found", d.candidate}}});
    }
    const SettingDifference& first = v.differences.front();
    return VerificationFailed(
        fmt::format("{}: {} is {} in the reference, {} in the candidate{}", pair, first.setting, first.reference,
                    first.candidate,
                    v.differences.size() > 1 ? fmt::format(", and {} settings more", v.differences.size() - 1) : ""),
        std::move(reasons));
  }
  if (v.quantisation && !v.quantisation->holds()) {
    std::vector<ErrorReason> reasons =
        mapped(v.quantisation->settings, [](const std::string& text) { return ErrorReason{text}; });
    for (const ComparedTensor* tensor : v.quantisation->others()) {
      reasons.push_back({fmt::format("{}: {}", tensor->tensor, tensor->reason), {{"where", tensor->tensor}}});
    }
    const std::string more =
        reasons.size() > 1 ? fmt::format(", and {} more", with_commas(std::ssize(reasons) - 1)) : "";
    const std::string first = reasons.front().message;
    return VerificationFailed(fmt::format("{} is no quantisation of {}: {}{}", candidate, reference, first, more),
                              std::move(reasons));
  }
  if (v.first_divergence) {
    const Divergence& d = *v.first_divergence;
    std::vector<ErrorReason> reasons = {{fmt::format("{} of sequence {} differs", d.tap, d.sequence),
                                         {{"where", d.tap},
                                          {"expected", fmt::format("a difference of at most {:.1e}", d.allowed)},
                                          {"found", short_size(d.difference)}}}};
    for (const ComparedTensor& tensor : v.apart) {
      reasons.push_back({fmt::format("{}: {}", tensor.tensor, tensor.reason), {{"where", tensor.tensor}}});
    }
    return VerificationFailed(fmt::format("{}: relative error {}, allowed {:.1e}", pair,
                                          short_size(v.metrics.max_relative_logit_error), v.allowed),
                              std::move(reasons));
  }
  if (!v.near_misses.empty()) {
    std::vector<ErrorReason> reasons = mapped(v.near_misses, [](const std::string& text) { return ErrorReason{text}; });
    return VerificationFailed(fmt::format("{}: {}", pair, v.near_misses.front()), std::move(reasons));
  }
  if (!v.coverage.known_other.empty()) {
    std::vector<ErrorReason> reasons =
        mapped(v.coverage.known_other, [](const std::string& text) { return ErrorReason{text}; });
    return VerificationFailed(
        fmt::format("{}: {} (a larger --budget asks longer sequences)", pair, v.coverage.known_other.front()),
        std::move(reasons));
  }
  if (const std::optional<std::string> beyond = beyond_limits(flags, v)) {
    return VerificationFailed(*beyond);
  }
  if (flags.strict && !v.coverage.complete) {
    std::vector<ErrorReason> reasons =
        mapped(v.coverage.not_exercised, [](const std::string& text) { return ErrorReason{text}; });
    return VerificationFailed(fmt::format("--strict: {} not exercised, such as {}", v.coverage.not_exercised.size(),
                                          v.coverage.not_exercised.front()),
                              std::move(reasons));
  }
  return std::nullopt;
}

// An adapter belongs to the model that it follows, or to the first. A model with one is the reference: what it computes
// is rounded nowhere, and a merged one is, to its stored type.
void assign_adapters(const CLI::App& command, VerifyFlags& flags) {
  int64_t models = 0;
  size_t used = 0;
  for (const CLI::Option* option : command.parse_order()) {
    if (option->get_positional()) {
      ++models;
    } else if (option->get_name() == "--adapter") {
      std::string& side = models < 2 ? flags.reference_adapter : flags.candidate_adapter;
      refuse_if(!side.empty(), "--adapter: {} and {} for one model, expected one", quote(side),
                quote(flags.adapters.at(used)));
      side = flags.adapters.at(used++);
    }
  }
  if (flags.reference_adapter.empty() && !flags.candidate_adapter.empty()) {
    std::swap(flags.reference, flags.candidate);
    std::swap(flags.reference_adapter, flags.candidate_adapter);
  }
}

constexpr const char* summary_begins = "**pare verify: ";

// A page for a pull request may be there already and be empty; a file of somebody's is not replaced.
void check_summary_file(const std::filesystem::path& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown) || std::filesystem::file_size(path, unknown) == 0) {
    return;
  }
  constexpr uint64_t largest = 16 << 20;
  refuse_if(!read_text_file(path, largest).starts_with(summary_begins),
            "--summary {}: a file is there that is no summary of pare: name another one", quote(path.string()));
}

void write_summary(const std::string& path, const nlohmann::ordered_json& document) {
  AtomicFile file(path, check_summary_file);
  write_text_file(file.temporary(), verify_summary(document));
  file.commit();
}

// What is said at the end, wherever the candidate's answers came from: what is wrong, if anything is.
std::exception_ptr conclude(const VerifyFlags& flags, const Settings& settings, const ModelFolder& reference,
                            const VerifiedCandidate& candidate, const std::string& input_kind,
                            const Verification& verification, nlohmann::ordered_json document,
                            const Communicator& ranks) {
  const std::optional<VerificationFailed> failure = failure_of(flags, verification);
  if (failure) {
    document.update(error_document(describe(*failure)));
  }
  if (settings.json) {  // one document also where it failed: the certificate, with the error
    print_json(document);
  } else {
    print_text(fitted(verification_text(reference, candidate, input_kind, verification)));
  }
  try {
    if (!flags.summary.empty() && ranks.is_first()) {
      write_summary(flags.summary, document);
    }
  } catch (const Error& error) {  // that the models differ weighs more than that a page could not be written
    if (!failure) {
      throw;
    }
    log_warning(error.what());
  }
  return failure ? std::make_exception_ptr(*failure) : nullptr;
}

void check_has_choices(const VerifyFlags& flags, const ModelFolder& reference) {
  const Architecture& architecture = reference.model.architecture;
  refuse_if(flags.max_kl && (head_size(architecture) == 0 || !is_choice(architecture)),
            "--max-kl: the answers of {} are no choice among columns, so there is no KL", quote(flags.reference));
}

// Another program's answers in place of a model.
std::exception_ptr verify_stored_logits(const VerifyFlags& flags, const Settings& settings, const Communicator& ranks) {
  const ModelFolder reference = open_and_warn(flags.reference, settings, flags.reference_adapter);
  check_has_choices(flags, reference);
  const std::optional<Question> file = read_question_file(flags.question, reference);
  refuse_if(!file, "--logits: which inputs are they of? Name them by --tokens, --text or --inputs");
  const StoredLogits stored = read_stored_logits(flags.logits, *file, reference.model.architecture);
  const VerifyOptions options = {.dtype = flags.dtype ? float_dtype_from_word(*flags.dtype).value() : stored.dtype,
                                 .seed = settings.seed,
                                 .device = chosen_device(settings),
                                 .ranks = ranks};
  Verification verification = verify_answers(reference, file->inputs, {.rows = stored.rows}, options);
  print_warnings(verification.warnings);
  if (verification.first_divergence) {
    int64_t& sequence = verification.first_divergence->sequence;
    sequence = file->numbers[sequence];
  }
  nlohmann::ordered_json document =
      certificate_json(describe_files(reference), nullptr, nlohmann::ordered_json::array(), file->kind, verification);
  document["unused_tensors"] = to_json(UnusedDifference{});
  document["logits"] = {{"path", flags.logits}, {"sha256", stored.sha256}};
  return conclude(flags, settings, reference, {}, file->kind, verification, std::move(document), ranks);
}

void check_flags(const VerifyFlags& flags, const Communicator& ranks) {
  if (ranks.is_first()) {  // which writes it
    check_report_file(flags.report);
  }
  if (!flags.summary.empty() && ranks.is_first()) {
    AtomicFile(flags.summary, check_summary_file);  // whether it could be written: said before the work, not after
  }
  for (const auto& [name, limit] : {std::pair("--max-kl", flags.max_kl), {"--max-error", flags.max_error}}) {
    refuse_if(limit && !(*limit >= 0 && std::isfinite(*limit)), "{}: found {}, expected a number from 0 on", name,
              limit.value_or(0));
  }
  refuse_if(flags.candidate.empty() && flags.logits.empty(),
            "verify needs a CANDIDATE, or --logits FILE: what should {} be compared with?", quote(flags.reference));
  refuse_if(!flags.candidate.empty() && !flags.logits.empty(),
            "a CANDIDATE and --logits: one of them, not both; what should {} be compared with?",
            quote(flags.reference));
  refuse_if(!flags.logits.empty() && (flags.report.wanted() || flags.modulo_gauge || flags.by_tensor),
            "--report, --modulo-gauge and --by-tensor need a model, and --logits has none");
  const QuestionFlags& question = flags.question;
  refuse_if(flags.by_tensor && question.tokens.empty() && question.inputs.empty() && question.text.text.empty(),
            "--by-tensor: on which inputs? Name them by --text or --tokens");
}

std::exception_ptr verify_command(const VerifyFlags& flags, const Settings& settings, const Communicator& ranks) {
  check_flags(flags, ranks);
  if (!flags.logits.empty()) {
    return verify_stored_logits(flags, settings, ranks);
  }
  const ModelFolder reference = open_and_warn(flags.reference, settings, flags.reference_adapter);
  const ModelFolder candidate = open_and_warn(flags.candidate, settings, flags.candidate_adapter);
  const std::optional<nlohmann::json> certificate = read_certificate(candidate.path);
  check_comparable(reference, candidate);
  check_has_choices(flags, reference);
  const std::optional<Question> file = read_question_file(flags.question, reference);
  const std::string input_kind = file ? file->kind : "random";
  VerifiedCandidate told{.model = &candidate};
  if (certificate && !candidate.adapter) {  // with one it is not what was certified
    check_certified(*certificate, describe_files(candidate));
    told.claim = read_claim(*certificate, describe_files(reference));
  }
  Verification verification = verify(reference, candidate, file ? file->inputs : std::vector<Inputs>(),
                                     {.dtype = float_dtype_from_word(flags.dtype.value_or("float64")).value(),
                                      .seed = settings.seed,
                                      .sequences = flags.question.random > 0 ? flags.question.random : usual_sequences,
                                      .budget = flags.question.budget,
                                      .layers_of = flags.report.wanted() && ranks.is_first() ? layered_sequences : 0,
                                      .by_tensor = flags.by_tensor,
                                      .device = chosen_device(settings),
                                      .ranks = ranks});
  print_warnings(verification.warnings);
  if (verification.first_divergence && file) {
    int64_t& sequence = verification.first_divergence->sequence;
    if (sequence < verification.given) {  // what was asked besides comes after all that was given
      sequence = file->numbers[sequence];
    }
  }
  if (flags.modulo_gauge) {
    told.alignment = align(reference.model, candidate.model, chosen_device(settings));
  }
  // Also where text is printed: a file that was written to meanwhile is found here.
  nlohmann::ordered_json document =
      certificate_json(describe_files(reference), describe_files(candidate), nlohmann::ordered_json::array(),
                       input_kind, verification, told.claim);
  if (told.alignment) {
    document["alignment"] = alignment_json(*told.alignment);
  }
  told.unused = compare_unused(reference.unused, candidate.unused);
  document["unused_tensors"] = to_json(told.unused);
  if (flags.report.wanted() && ranks.is_first()) {
    write_report(flags.report, verify_report(document["reference"], document["candidate"], input_kind, verification,
                                             report_origin(settings)));
  }
  return conclude(flags, settings, reference, told, input_kind, verification, std::move(document), ranks);
}

}  // namespace

void add_verify(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("verify", "Check whether two models are the same function");
  auto flags = std::make_shared<VerifyFlags>();
  command->add_option("REFERENCE", flags->reference, "a model folder, or a GGUF file; run in float64")->required();
  command->add_option("CANDIDATE", flags->candidate, "another, of any family and form");
  command->add_option("--adapter", flags->adapters, "a LoRA adapter of peft, applied to the model before it")
      ->allow_extra_args(false)
      ->type_name("FOLDER");
  add_question_flags(*command, flags->question, usual_sequences);
  command->add_option("--dtype", flags->dtype, "the candidate's: float32, bfloat16, float16 [float64]")
      ->transform(dtype_or())
      ->type_name("NAME");
  command->add_option("--logits", flags->logits, "in place of CANDIDATE: what another program answered")
      ->type_name("FILE");
  command->add_option("--max-kl", flags->max_kl, "fail if the mean KL is above this")->type_name("NATS");
  command->add_option("--max-error", flags->max_error, "fail if the largest relative error is above this")
      ->type_name("X");
  command->add_flag("--by-tensor", flags->by_tensor, "what each quantised tensor alone costs (2,048 tokens)");
  command->add_option("--summary", flags->summary, "also write a table in Markdown")->type_name("FILE");
  command->add_flag("--strict", flags->strict, "fail unless every tensor is explained or exercised");
  command->add_flag("--modulo-gauge", flags->modulo_gauge, "distance of weights, up to bases and permutations");
  add_report_flags(*command, flags->report);
  command->footer(R"(Exit code 3 when they differ. --json prints the certificate. A certificate.json
in the candidate's folder must fit its files; what else it says is only a claim.
Example: pare verify model smaller --random 16
         pare verify base --adapter lora merged
         pare verify model model-Q4_K_M.gguf --text book.txt --max-kl 0.05
         pare verify model --logits answers.safetensors --tokens ids.json)");
  command->callback([command, flags, &settings] {
    assign_adapters(*command, *flags);
    as_one(settings, [&](const Communicator& ranks) { return verify_command(*flags, settings, ranks); });
  });
}

}  // namespace pare
