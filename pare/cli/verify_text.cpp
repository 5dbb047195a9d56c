#include "pare/cli/verify_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "pare/arch/count.h"
#include "pare/support/files.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

std::string short_size(double value) {
  return value == 0 ? "0" : std::isfinite(value) ? fmt::format("{:.2e}", value) : "not a number";
}

namespace {

std::string size_if_any(const std::optional<double>& value) {
  return value ? short_size(*value) : "-";
}

std::string plain(const std::optional<double>& value) {
  return value ? fmt::format("{:.6f}", *value) : "-";
}

std::string model_table(const ModelFolder& reference, const ModelFolder& candidate) {
  const int64_t before = count(reference.model.architecture).total, after = count(candidate.model.architecture).total;
  Table table({Align::left, Align::left, Align::right, Align::left});
  const auto row = [&table](const char* what, const ModelFolder& model, int64_t parameters) {
    const std::string type(is_in_blocks(model) ? "in blocks" : word(model.dtype));
    table.row({what, fmt::format("{}, {}", model.family, type), with_commas(parameters),
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
  table.row({"largest relative error", short_size(m.max_relative_logit_error), short_size(n.max_relative_logit_error)});
  table.row({"mean KL, nats per row", size_if_any(m.mean_kl_nats), size_if_any(n.mean_kl_nats)});
  table.row({"largest KL, nats", size_if_any(m.max_kl_nats), size_if_any(n.max_kl_nats)});
  table.row({"same first choice", plain(m.top1_agreement), plain(n.top1_agreement)});
  table.row({"nats/token, reference", plain(m.reference_nll_nats), plain(n.reference_nll_nats)});
  table.row({"nats/token, candidate", plain(m.candidate_nll_nats), plain(n.candidate_nll_nats)});
  return table.text();
}

// What the verdict stands on: an error beyond the noise may be right, and one below it need not be.
std::string allowed_text(const Verification& v) {
  if (v.by_error) {
    return fmt::format("allowed: {} in the row closest to its limit, which uses {:.2g} of it\n  ({})\n",
                       short_size(v.allowed), v.excess, v.allowed_for);
  }
  return fmt::format(
      "allowed: {} in the row closest to its limit, which by KL or first choice uses\n"
      "  {:.2g} of it ({})\n",
      short_size(v.allowed), v.excess, v.allowed_for);
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
    table.row({group.group, short_size(group.before), short_size(group.after)});
  }
  table.row({"all", short_size(alignment->before), short_size(alignment->after)});
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
  if (!v.near_misses.empty()) {
    text += "explained neither by rounding nor by another basis:\n" + some_of(v.near_misses);
  }
  if (v.verdict == Verdict::different && !v.apart.empty()) {
    std::vector<std::string> apart;
    for (const ComparedTensor& tensor : v.apart) {
      apart.push_back(fmt::format("{}: by {} of its length", tensor.tensor, short_size(tensor.relative_error)));
    }
    text += "tensors with other numbers, which a change of basis makes as well:\n" + some_of(apart);
  }
  if (!v.coverage.known_other.empty()) {
    text += "known to be others, and not asked:\n" + some_of(v.coverage.known_other);
  }
  if (v.first_divergence) {
    const Divergence& d = *v.first_divergence;
    text += fmt::format("first divergence: {} of sequence {}\n  differs by {}, allowed {:.1e}\n", d.tap, d.sequence,
                        short_size(d.difference), d.allowed);
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
                         short_size(v.proof.moved));
    case Verdict::equivalent:
      return fmt::format("verdict: equivalent{} (relative error {}, allowed {:.1e})\n", where,
                         short_size(v.metrics.max_relative_logit_error), v.allowed);
    case Verdict::within_noise:
      return fmt::format("verdict: within_noise{} (of {})\n", where, word(v.floor_dtype));
    case Verdict::quantised:
      return "verdict: quantised (each tensor can be the reference's, in blocks or rounded)\n";
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

// How each tensor is stored, and by how much it differs.
std::string quantisation_text(const std::optional<Quantisation>& quantisation) {
  if (!quantisation) {
    return "";
  }
  struct Sum {
    int64_t tensors = 0, entries = 0, clipped = 0;
    double error = 0, clip = 0, relative = 0;
  };
  std::map<StoredAs, Sum> sums;
  for (const ComparedTensor& tensor : quantisation->tensors) {
    Sum& sum = sums[tensor.how];
    ++sum.tensors;
    sum.entries += tensor.entries;
    sum.clipped += tensor.clipped;
    sum.error = std::max(sum.error, tensor.largest_error);
    sum.clip = std::max(sum.clip, tensor.largest_clip);
    sum.relative = std::max(sum.relative, tensor.relative_error);
  }
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right, Align::right},
              {"stored as", "tensors", "entries", "steps off", "clipped", "by steps", "relative"});
  for (const auto& [how, sum] : sums) {
    const auto steps = [](double value) { return value == 0 ? std::string("0") : fmt::format("{:.2f}", value); };
    table.row({how == StoredAs::same ? "the same numbers" : word(how), with_commas(sum.tensors),
               with_commas(sum.entries), steps(sum.error), with_commas(sum.clipped), steps(sum.clip),
               short_size(sum.relative)});
  }
  std::string text = "stored in blocks: " + quantisation->types + "\n" + table.text() +
                     "  the largest of each kind: distance in steps of the scale, distance beyond the\n"
                     "  ends of what a scale can hold, and |A - B| / |A| of a tensor\n\n";
  std::vector<std::string> lines = quantisation->settings;
  for (const ComparedTensor* tensor : quantisation->others()) {
    lines.push_back(fmt::format("{}: {}", tensor->tensor, tensor->reason));
  }
  return lines.empty() ? text : text + "not the reference's:\n" + some_of(lines) + "\n";
}

std::string with_error(const WithError& value, const char* format = "{:.6g} ± {:.1e}") {
  return fmt::format(fmt::runtime(format), value.value, value.error);
}

std::string statistics_text(const std::optional<TextStatistics>& statistics) {
  if (!statistics) {
    return "";
  }
  const TextStatistics& s = *statistics;
  Table table({Align::left, Align::right}, {"on what was given", fmt::format("{} rows", with_commas(s.rows))});
  table.row({"KL, nats: mean", with_error(s.mean_kl, "{:.3e} ± {:.1e}")});
  table.row({"  median, of 99 in 100, largest",
             fmt::format("{}, {}, {}", short_size(s.median_kl), short_size(s.high_kl), short_size(s.max_kl))});
  table.row({"perplexity, reference", with_error(s.reference_perplexity)});
  table.row({"perplexity, candidate", with_error(s.candidate_perplexity)});
  table.row({"nats/token more than the reference", with_error(s.nats_more, "{:+.3e} ± {:.1e}")});
  table.row({"probability of the right token, RMS change", with_error(s.rms_probability, "{:.3e} ± {:.1e}")});
  table.row({"same first choice", with_error(s.same_top, "{:.4f} ± {:.4f}")});
  return table.text() + "  ± one standard error, with rows counted as independent\n\n";
}

std::string costs_text(const std::vector<TensorCost>& costs) {
  if (costs.empty()) {
    return "";
  }
  Table table({Align::left, Align::right, Align::right}, {"this tensor alone costs", "mean KL, nats", "largest"});
  for (const TensorCost& cost : costs) {
    table.row({cost.tensor, with_error(cost.mean_kl, "{:.2e} ± {:.0e}"), short_size(cost.max_kl)});
  }
  return table.text() + "\n";
}

std::string differences_table(const Verification& v) {
  Table table({Align::left, Align::right}, {fmt::format("candidate in {}", word(v.compute_dtype)), "difference"});
  table.row({"largest relative error", short_size(v.metrics.max_relative_logit_error)});
  table.row({"mean KL, nats per row", size_if_any(v.metrics.mean_kl_nats)});
  table.row({"largest KL, nats", size_if_any(v.metrics.max_kl_nats)});
  table.row({"same first choice", plain(v.metrics.top1_agreement)});
  return table.text() + "\n";
}

std::string asked_text(const Verification& v, const std::string& input_kind) {
  const std::string besides = v.given > 0 && v.given < v.sequences
                                  ? fmt::format(", {} random besides", with_commas(v.sequences - v.given))
                                  : "";
  return fmt::format("{} sequences, {} tokens ({}{}, seed {})\n\n", with_commas(v.sequences), with_commas(v.tokens),
                     input_kind, besides, v.seed);
}

}  // namespace

std::string verification_text(const ModelFolder& reference, const VerifiedCandidate& candidate,
                              const std::string& input_kind, const Verification& v) {
  std::string text = (candidate.model ? model_table(reference, *candidate.model) : "") + claim_text(candidate.claim);
  text += quantisation_text(v.quantisation);
  if (v.tokens > 0) {
    text += asked_text(v, input_kind);
    text += v.quantisation ? differences_table(v)
                           : metrics_table(v) + allowed_text(v) + "\n" + self_test_text(v.self_tests) +
                                 proof_text(v.proof) + coverage_text(v);
    if (v.statistics && (input_kind == "text" || v.quantisation)) {
      text += (text.ends_with("\n\n") ? "" : "\n") + statistics_text(v.statistics);
    }
    text += costs_text(v.costs);
  }
  return text + alignment_text(candidate.alignment) + divergence_text(v) + unused_text(candidate.unused) +
         verdict_text(v);
}

}  // namespace pare
