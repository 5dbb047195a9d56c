// pare verify: whether two models are the same function, with a certificate.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/count.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/cli/question.h"
#include "pare/cli/subject.h"
#include "pare/model/device.h"
#include "pare/support/error.h"
#include "pare/support/text.h"
#include "pare/verify/certificate.h"
#include "pare/verify/verify.h"

namespace pare {

namespace {

struct VerifyFlags {
  std::string reference, candidate, dtype = "float64";
  QuestionFlags question;
};

constexpr int64_t usual_sequences = 8;

std::string small(double value) {
  return value == 0 ? "0" : std::isfinite(value) ? fmt::format("{:.2e}", value) : "not a number";
}

std::string small(const std::optional<double>& value) {
  return value ? small(*value) : "-";
}

std::string plain(const std::optional<double>& value) {
  return value ? fmt::format("{:.6f}", *value) : "-";
}

std::string model_table(const ModelFolder& reference, const ModelFolder& candidate) {
  const int64_t before = count(reference.model.architecture).total, after = count(candidate.model.architecture).total;
  Table table({Align::left, Align::left, Align::right, Align::left});
  const auto row = [&table](const char* what, const ModelFolder& model, int64_t parameters) {
    table.row({what, fmt::format("{}, {}", model.family, word(model.dtype)), with_commas(parameters),
               escaped(model.path.string())});
  };
  row("reference", reference, before);
  row("candidate", candidate, after);
  std::string text = table.text();
  if (before != after) {
    text += fmt::format("{:.2f} % {} parameters\n",
                        100 * std::abs(static_cast<double>(before - after)) / static_cast<double>(before),
                        after < before ? "fewer" : "more");
  }
  return text;
}

std::string metrics_table(const Verification& v) {
  Table table({Align::left, Align::right, Align::right});
  table.row({fmt::format("candidate in {}", word(v.compute_dtype)), "difference",
             fmt::format("noise of {}", word(v.floor_dtype))});
  table.rule();
  const Metrics &m = v.metrics, &n = v.noise_floor;
  table.row({"largest relative error", small(m.max_relative_logit_error), small(n.max_relative_logit_error)});
  table.row({"mean KL, nats per row", small(m.mean_kl_nats), small(n.mean_kl_nats)});
  table.row({"largest KL, nats", small(m.max_kl_nats), small(n.max_kl_nats)});
  table.row({"same first choice", plain(m.top1_agreement), plain(n.top1_agreement)});
  table.row({"nats/token, reference", plain(m.reference_nll_nats), plain(n.reference_nll_nats)});
  table.row({"nats/token, candidate", plain(m.candidate_nll_nats), plain(n.candidate_nll_nats)});
  return table.text();
}

std::string verdict_text(const Verification& v) {
  std::string text;
  if (v.self_test) {
    text += fmt::format("self test: {}\n  moved by {:.1e} is caught, by {:.1e} is missed\n", v.self_test->tensor,
                        v.self_test->smallest_caught, v.self_test->largest_missed);
  }
  if (v.first_divergence) {
    const Divergence& d = *v.first_divergence;
    text += fmt::format("first divergence: {} of sequence {}\n  differs by {}, allowed {:.1e}\n", d.tap, d.sequence,
                        small(d.difference), d.allowed);
    if (!d.note.empty()) {
      text += fmt::format("  {}\n", d.note);
    }
  }
  switch (v.verdict) {
    case Verdict::equivalent:
      return text + fmt::format("verdict: equivalent (relative error at most {:.1e})\n", v.limit);
    case Verdict::within_noise:
      return text + fmt::format("verdict: within_noise (at most twice the noise of {})\n", word(v.floor_dtype));
    case Verdict::different:
      return text + "verdict: different\n";
  }
  return text;
}

void print_result(const ModelFolder& reference, const ModelFolder& candidate, const Question& question,
                  const Verification& v) {
  print_text(fitted(model_table(reference, candidate) +
                    fmt::format("{} sequences, {} tokens ({}{})\n\n", with_commas(v.sequences), with_commas(v.tokens),
                                question.source.kind,
                                question.source.seed ? fmt::format(", seed {}", *question.source.seed) : "") +
                    metrics_table(v) + "\n" + verdict_text(v)));
}

void verify_command(const VerifyFlags& flags, const Settings& settings) {
  const ModelFolder reference = open_and_warn(flags.reference), candidate = open_and_warn(flags.candidate);
  const std::optional<nlohmann::json> certificate = read_certificate(candidate.path);
  nlohmann::ordered_json described_reference, described_candidate;
  VerifyOptions options{.dtype = float_dtype_from_word(flags.dtype).value(),
                        .seed = settings.seed,
                        .device = find_device(settings.device)};
  Origin origin;
  check_comparable(reference, candidate);
  const Question question = read_question(flags.question, usual_sequences, settings.seed, reference.model.architecture,
                                          candidate.model.architecture);
  if (certificate || settings.json) {  // reading every byte, so only where hashes are asked for
    described_candidate = describe_files(candidate);
    described_reference = describe_files(reference);
  }
  if (certificate) {
    check_certified(*certificate, described_candidate);
    origin = certified_origin(*certificate, described_reference);
    print_warnings(origin.warnings);
    options.predicted_error = origin.predicted_error;
  }
  Verification verification = verify(reference, candidate, question.inputs, options);
  if (verification.first_divergence && !question.numbers.empty()) {
    int64_t& sequence = verification.first_divergence->sequence;
    sequence = question.numbers[static_cast<size_t>(sequence)];
  }
  std::optional<VerificationFailed> failure;
  if (verification.verdict == Verdict::different) {
    const Divergence& d = *verification.first_divergence;
    failure.emplace(
        fmt::format("{} is not the same function as {}: relative error {}, allowed {:.1e}", quote(flags.candidate),
                    quote(flags.reference), small(verification.metrics.max_relative_logit_error), d.allowed),
        std::vector<ErrorReason>{{fmt::format("{} of sequence {} differs", d.tap, d.sequence),
                                  {{"where", d.tap},
                                   {"expected", fmt::format("a difference of at most {:.1e}", d.allowed)},
                                   {"found", small(d.difference)}}}});
  }
  if (settings.json) {  // one document also where it failed: the certificate, with the error
    nlohmann::ordered_json document =
        certificate_json(described_reference, described_candidate, origin.passes, question.source, verification);
    if (failure) {
      document.update(error_document(describe(*failure)));
    }
    print_json(document);
  } else {
    print_result(reference, candidate, question, verification);
  }
  if (failure) {
    throw *failure;
  }
}

}  // namespace

void add_verify(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("verify", "Whether two models are the same function");
  auto flags = std::make_shared<VerifyFlags>();
  command->add_option("REFERENCE", flags->reference, "a model folder; run in float64")->required();
  command->add_option("CANDIDATE", flags->candidate, "a model folder, of any family and form")->required();
  add_question_flags(*command, flags->question, usual_sequences);
  command->add_option("--dtype", flags->dtype, "the candidate's: float64, float32, bfloat16, float16")
      ->transform(dtype_or())
      ->type_name("NAME")
      ->capture_default_str();
  command->footer(R"(Exit code 3 when they differ. --json prints the certificate. A certificate.json
in the candidate's folder must fit its files, and says which error to expect.
Example: pare verify model smaller --random 16)");
  command->callback([flags, &settings] { verify_command(*flags, settings); });
}

}  // namespace pare
