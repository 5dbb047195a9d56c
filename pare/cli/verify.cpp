// pare verify: whether two models are the same function, with a certificate.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/count.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/cli/question.h"
#include "pare/cli/report_file.h"
#include "pare/cli/subject.h"
#include "pare/probes/alignment.h"
#include "pare/report/pages.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"
#include "pare/verify/certificate.h"
#include "pare/verify/verify.h"

namespace pare {

namespace {

struct VerifyFlags {
  std::string reference, candidate, dtype = "float64";
  std::vector<std::string> adapters;                 // as they were given
  std::string reference_adapter, candidate_adapter;  // each behind the model that it belongs to
  bool strict = false, modulo_gauge = false;
  QuestionFlags question;
  ReportFlags report;
};

constexpr int64_t layered_sequences = 8;  // that a page shows layer by layer
const int64_t usual_sequences = VerifyOptions{}.sequences;

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
               escaped(model.path.string()) + (model.adapter ? " with " + escaped(model.adapter->path.string()) : "")});
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
  Table table({Align::left, Align::right, Align::right},
              {fmt::format("candidate in {}", word(v.compute_dtype)), "difference",
               fmt::format("noise of {}", word(v.floor_dtype))});
  const Metrics &m = v.metrics, &n = v.noise_floor;
  table.row({"largest relative error", small(m.max_relative_logit_error), small(n.max_relative_logit_error)});
  table.row({"mean KL, nats per row", small(m.mean_kl_nats), small(n.mean_kl_nats)});
  table.row({"largest KL, nats", small(m.max_kl_nats), small(n.max_kl_nats)});
  table.row({"same first choice", plain(m.top1_agreement), plain(n.top1_agreement)});
  table.row({"nats/token, reference", plain(m.reference_nll_nats), plain(n.reference_nll_nats)});
  table.row({"nats/token, candidate", plain(m.candidate_nll_nats), plain(n.candidate_nll_nats)});
  return table.text();
}

// What the verdict stands on: an error beyond the noise may be right, and one below it need not be.
std::string allowed_text(const Verification& v) {
  if (v.by_error) {
    return fmt::format("allowed: {} in the row closest to its limit, which uses {:.2g} of it\n  ({})\n",
                       small(v.allowed), v.excess, v.allowed_for);
  }
  return fmt::format(
      "allowed: {} in the row closest to its limit, which by KL or first choice uses\n"
      "  {:.2g} of it ({})\n",
      small(v.allowed), v.excess, v.allowed_for);
}

std::string claim_text(const std::optional<Claim>& claim) {
  if (!claim) {
    return "";
  }
  return fmt::format("its certificate claims: {}{}\n",
                     claim->passes.empty() ? "no passes" : fmt::format("{}", fmt::join(claim->passes, ", ")),
                     claim->reference_matches ? "" : ", of another reference");
}

// How many tensors are explained in each way, most first.
std::string proof_text(const Proof& proof) {
  std::map<std::string, int64_t> ways;
  for (const Relation& relation : proof.relations) {
    ++ways[word(relation.how)];
  }
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [how, count] : ways) {
    sorted.emplace_back(-count, how);
  }
  std::ranges::sort(sorted);
  std::string text;
  for (const auto& [count, how] : sorted) {
    text += fmt::format("{}{} {}", text.empty() ? "tensors: " : ", ", with_commas(-count), how);
  }
  if (!proof.gaps.empty()) {
    text += fmt::format("{}not explained: {}{}", text.empty() ? "" : "\n", proof.gaps.front(),
                        proof.gaps.size() > 1 ? fmt::format(", and {} more", proof.gaps.size() - 1) : "");
  }
  return text.empty() ? "" : text + "\n";
}

// How much of the difference is one of coordinates, and which.
std::string alignment_text(const std::optional<Alignment>& alignment) {
  if (!alignment) {
    return "";
  }
  if (alignment->groups.empty()) {
    return fmt::format("modulo gauge: {}\n\n", alignment->note);
  }
  Table table({Align::left, Align::right, Align::right}, {"difference of the weights", "before", "aligned"});
  for (const AlignedGroup& group : alignment->groups) {
    table.row({group.group, small(group.before), small(group.after)});
  }
  table.row({"all", small(alignment->before), small(alignment->after)});
  std::string text = table.text(), steps;
  for (const AlignmentStep& step : alignment->steps) {
    if (std::abs(step.explained) >= 0.0005) {
      steps += fmt::format("{}{} {:.1f} %", steps.empty() ? "" : ", ", step.symmetry, 100 * step.explained);
    }
  }
  text +=
      "|A - B| / |A|, with gains folded into what reads them on both sides, and biases\n  into those that are left\n";
  text += fmt::format("explained, of the squared difference: {}\n", steps.empty() ? "nothing" : steps);
  constexpr double far = 1.2;
  if (alignment->after > far) {
    text += "as far apart as models that were trained apart (1.41)\n";
  }
  return text + (alignment->note.empty() ? "" : alignment->note + "\n") + "\n";
}

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

// The first few of many, each on a line.
std::string some_of(const std::vector<std::string>& lines) {
  constexpr size_t shown_lines = 5;
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), shown_lines); ++i) {
    text += fmt::format("  {}\n", lines[i]);
  }
  return lines.size() > shown_lines ? text + fmt::format("  and {} more\n", lines.size() - shown_lines) : text;
}

std::string self_test_text(const std::vector<SelfTest>& tests) {
  if (tests.empty()) {
    return "";
  }
  Table table({Align::left, Align::right, Align::right},
              {"self test: this tensor moved by", "rows catch", "rows miss"});
  for (const SelfTest& test : tests) {
    table.row({test.tensor, test.smallest_caught > 0 ? fmt::format("{:.1e}", test.smallest_caught) : "nothing",
               test.largest_missed > 0 ? fmt::format("{:.1e}", test.largest_missed) : "-"});
  }
  return table.text() + "\n";
}

std::string divergence_text(const Verification& v) {
  std::vector<std::string> lines;
  for (const SettingDifference& d : v.differences) {
    lines.push_back(fmt::format("{} is {} in the reference, {} in the candidate", d.setting, d.reference, d.candidate));
  }
  std::string text = lines.empty() ? "" : "settings differ:\n" + some_of(lines);
  if (!v.coverage.known_other.empty()) {
    text += "known to be others, and not asked:\n" + some_of(v.coverage.known_other);
  }
  if (v.first_divergence) {
    const Divergence& d = *v.first_divergence;
    text += fmt::format("first divergence: {} of sequence {}\n  differs by {}, allowed {:.1e}\n", d.tap, d.sequence,
                        small(d.difference), d.allowed);
    if (!d.note.empty()) {
      text += fmt::format("  {}\n", d.note);
    }
  }
  return text;
}

std::string verdict_text(const Verification& v) {
  const bool whole = v.coverage.complete;
  const std::string where = whole ? "" : " on what was exercised";
  switch (v.verdict) {
    case Verdict::identical:
      return "verdict: identical (the same numbers, so for all inputs)\n";
    case Verdict::proved:
      return fmt::format("verdict: proved (for all inputs; weights moved by at most {} per row)\n",
                         small(v.proof.moved));
    case Verdict::equivalent:
      return fmt::format("verdict: equivalent{} (relative error {}, allowed {:.1e})\n", where,
                         small(v.metrics.max_relative_logit_error), v.allowed);
    case Verdict::within_noise:
      return fmt::format("verdict: within_noise{} (of {})\n", where, word(v.floor_dtype));
    case Verdict::different:
      return "verdict: different\n";
  }
  return "";
}

std::string coverage_text(const Verification& v) {
  if (v.coverage.complete || v.verdict == Verdict::different) {
    return "";
  }
  return "not exercised:\n" + some_of(v.coverage.not_exercised) + "\n";
}

// What other programs may read, and the verdict is not about.
std::string unused_text(const UnusedDifference& unused) {
  if (unused.none()) {
    return "";
  }
  std::string text = "not compared, since neither model uses them:\n";
  for (const auto& [what, names] : {std::pair("differ", &unused.different),
                                    {"only in the reference", &unused.only_reference},
                                    {"only in the candidate", &unused.only_candidate}}) {
    text += names->empty() ? "" : fmt::format("  {}: {}\n", what, some_names(*names));
  }
  return text;
}

void print_result(const ModelFolder& reference, const ModelFolder& candidate, const std::string& input_kind,
                  const Verification& v, const std::optional<Claim>& claim, const std::optional<Alignment>& alignment,
                  const UnusedDifference& unused) {
  std::string text = model_table(reference, candidate) + claim_text(claim);
  if (v.tokens > 0) {
    const std::string besides = v.given > 0 && v.given < v.sequences
                                    ? fmt::format(", {} random besides", with_commas(v.sequences - v.given))
                                    : "";
    text += fmt::format("{} sequences, {} tokens ({}{}, seed {})\n\n{}{}\n", with_commas(v.sequences),
                        with_commas(v.tokens), input_kind, besides, v.seed, metrics_table(v), allowed_text(v)) +
            self_test_text(v.self_tests) + proof_text(v.proof) + coverage_text(v);
  }
  print_text(fitted(text + alignment_text(alignment) + divergence_text(v) + unused_text(unused) + verdict_text(v)));
}

// What is wrong, for the exit code; nothing where all is well.
std::optional<VerificationFailed> failure_of(const VerifyFlags& flags, const Verification& v) {
  const std::string pair =
      fmt::format("{} is not the same function as {}", quote(flags.candidate), quote(flags.reference));
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
  if (v.first_divergence) {
    const Divergence& d = *v.first_divergence;
    return VerificationFailed(fmt::format("{}: relative error {}, allowed {:.1e}", pair,
                                          small(v.metrics.max_relative_logit_error), v.allowed),
                              {{fmt::format("{} of sequence {} differs", d.tap, d.sequence),
                                {{"where", d.tap},
                                 {"expected", fmt::format("a difference of at most {:.1e}", d.allowed)},
                                 {"found", small(d.difference)}}}});
  }
  if (!v.coverage.known_other.empty()) {
    std::vector<ErrorReason> reasons =
        mapped(v.coverage.known_other, [](const std::string& text) { return ErrorReason{text}; });
    return VerificationFailed(
        fmt::format("{}: {} (a larger --budget asks longer sequences)", pair, v.coverage.known_other.front()),
        std::move(reasons));
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

void verify_command(const VerifyFlags& flags, const Settings& settings) {
  check_report_file(flags.report);
  const ModelFolder reference = open_and_warn(flags.reference, settings, flags.reference_adapter);
  const ModelFolder candidate = open_and_warn(flags.candidate, settings, flags.candidate_adapter);
  const std::optional<nlohmann::json> certificate = read_certificate(candidate.path);
  check_comparable(reference, candidate);
  const std::optional<Question> file = read_question_file(flags.question, reference);
  const std::string input_kind = file ? file->kind : "random";
  std::optional<Claim> claim;
  if (certificate && !candidate.adapter) {  // with one it is not what was certified
    check_certified(*certificate, describe_files(candidate));
    claim = read_claim(*certificate, describe_files(reference));
  }
  Verification verification = verify(reference, candidate, file ? file->inputs : std::vector<Inputs>(),
                                     {.dtype = float_dtype_from_word(flags.dtype).value(),
                                      .seed = settings.seed,
                                      .sequences = flags.question.random > 0 ? flags.question.random : usual_sequences,
                                      .budget = flags.question.budget,
                                      .layers_of = flags.report.wanted() ? layered_sequences : 0,
                                      .device = chosen_device(settings)});
  print_warnings(verification.warnings);
  if (verification.first_divergence && file) {
    int64_t& sequence = verification.first_divergence->sequence;
    if (sequence < verification.given) {  // what was asked besides comes after all that was given
      sequence = file->numbers[sequence];
    }
  }
  std::optional<Alignment> alignment;
  if (flags.modulo_gauge) {
    alignment = align(reference.model, candidate.model, chosen_device(settings));
  }
  const std::optional<VerificationFailed> failure = failure_of(flags, verification);
  // Also where text is printed: a file that was written to meanwhile is found here.
  nlohmann::ordered_json document = certificate_json(describe_files(reference), describe_files(candidate),
                                                     nlohmann::ordered_json::array(), input_kind, verification, claim);
  if (alignment) {
    document["alignment"] = alignment_json(*alignment);
  }
  const UnusedDifference unused = compare_unused(reference.unused, candidate.unused);
  document["unused_tensors"] = to_json(unused);
  if (flags.report.wanted()) {
    write_report(flags.report, verify_report(document["reference"], document["candidate"], input_kind, verification,
                                             report_origin(settings)));
  }
  if (settings.json) {  // one document also where it failed: the certificate, with the error
    if (failure) {
      document.update(error_document(describe(*failure)));
    }
    print_json(document);
  } else {
    print_result(reference, candidate, input_kind, verification, claim, alignment, unused);
  }
  if (failure) {
    throw *failure;
  }
}

}  // namespace

void add_verify(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("verify", "Check whether two models are the same function");
  auto flags = std::make_shared<VerifyFlags>();
  command->add_option("REFERENCE", flags->reference, "a model folder, or a GGUF file; run in float64")->required();
  command->add_option("CANDIDATE", flags->candidate, "another, of any family and form")->required();
  command->add_option("--adapter", flags->adapters, "a LoRA adapter of peft, applied to the model before it")
      ->allow_extra_args(false)
      ->type_name("FOLDER");
  add_question_flags(*command, flags->question, usual_sequences);
  command->add_option("--dtype", flags->dtype, "the candidate's: float64, float32, bfloat16, float16")
      ->transform(dtype_or())
      ->type_name("NAME")
      ->capture_default_str();
  command->add_flag("--strict", flags->strict, "fail unless every tensor is explained or exercised");
  command->add_flag("--modulo-gauge", flags->modulo_gauge, "distance of weights, up to bases and permutations");
  add_report_flags(*command, flags->report);
  command->footer(R"(Exit code 3 when they differ. --json prints the certificate. A certificate.json
in the candidate's folder must fit its files; what else it says is only a claim.
Example: pare verify model smaller --random 16
         pare verify base --adapter lora merged)");
  command->callback([command, flags, &settings] {
    assign_adapters(*command, *flags);
    verify_command(*flags, settings);
  });
}

}  // namespace pare
