// Theorem: LayerNorm(x) = RMSNorm(x C) for C = I - 1ᵀ1 / d, which takes the mean of a row off every entry of it.
// Before: every writer of the stream W, b; LayerNorms read it.   After: W C, b C; RMSNorms of the same gain, bias and
// epsilon read it.
//
// Proof: LayerNorm(x) = g ∘ y / √(mean(y²) + ε) + c with y = x C, and that is RMSNorm(y). The stream is the sum of what
// its writers wrote, and C is linear, so with writers W C, b C the stream is y itself. C takes the mean away for good
// (it has no inverse), so nothing may read the stream that sees the mean: no matrix and no RMSNorm.
//
// Preconditions: P1 every norm that reads the stream is a LayerNorm, and nothing else reads it; P2 everything that
// writes it is a matrix, a table or a bias, not a norm (computed positions become a table); P3 a tied head reads what
// has no mean: the last norm is a LayerNorm without bias and with one gain for all coordinates. Then E C serves both
// ends, since n(x) C = n(x).
// Exactness: one mean per row of a writer, no inverse.
// Order: after fold_norm_gain, which takes gains and biases out of both kinds alike. Before rotate_residual, which
// needs RMSNorms. Reference: docs/theorems/center_layer_norm.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "pare/algebra/basis.h"
#include "pare/algebra/normed_streams.h"
#include "pare/arch/count.h"
#include "pare/arch/norms.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

const char* norm_in_words(NormKind kind) {
  switch (kind) {
    case NormKind::layer:
      return "a LayerNorm";
    case NormKind::rms:
      return "an RMSNorm";
    case NormKind::dyt:
      return "a DyT";
    case NormKind::scale:
      return "a scale";
  }
  return "a norm";
}

// Why a table that is also the head has to keep its means; none where it need not.
std::vector<Precondition> tied_obstacles(const Model& model, const Streams& streams,
                                         const std::vector<NormBetween>& norms) {
  const char* expected = "an untied head, or a last LayerNorm without bias and with a uniform gain";
  const char* remedy = "untie the head, which costs more";
  const TensorId table = weight_of(token_table);
  std::vector<Precondition> failed;
  for (size_t i = 0; i < streams.all.size(); ++i) {
    const std::vector<Port>& ports = streams.all[i].ports;
    const bool is_read =
        std::ranges::any_of(ports, [&](const Port& port) { return port.tensor == table && port.role == Role::reader; });
    if (!is_read) {
      continue;
    }
    const auto norm = std::ranges::find(norms, i, &NormBetween::writes);
    const auto writer = std::ranges::find(ports, Role::writer, &Port::role);
    std::string found;
    if (writer != ports.end()) {
      found = fmt::format("the head is tied, and {} writes what it reads", name_of(writer->tensor.module));
    } else if (norm == norms.end()) {
      found = "the head is tied, and no norm stands before it";
    } else if (norm->norm.kind != NormKind::layer) {
      found = fmt::format("the head is tied, and {} stands before it", norm_in_words(norm->norm.kind));
    } else if (norm->norm.bias) {
      found = fmt::format("the head is tied, and {} has a bias", name_of(norm->module));
    } else if (!has_uniform_gain(model, *norm)) {
      found = fmt::format("the head is tied, and the gain of {} is not uniform", name_of(norm->module));
    } else {
      continue;
    }
    failed.push_back(in_the_way(head_matrix, expected, found, remedy));
  }
  return failed;
}

// What of a stream would see that its mean is gone, or write it anew.
std::vector<Precondition> obstacles_of_mean(const Model& model, const Streams& streams,
                                            const std::vector<NormBetween>& norms, size_t index) {
  std::vector<Precondition> failed;
  for (const NormBetween& norm : norms) {
    const bool scale = norm.norm.kind == NormKind::scale;
    if (norm.reads == index && norm.norm.kind != NormKind::layer) {
      failed.push_back(in_the_way(norm.module, "LayerNorms alone to read the stream",
                                  fmt::format("{} reads it", norm_in_words(norm.norm.kind)),
                                  scale ? "fold_constant_norm, which takes it away" : "none: it depends on the mean"));
    }
    if (norm.writes == index) {
      failed.push_back(
          in_the_way(norm.module, "only matrices, tables and biases to write the stream",
                     scale ? "a scale writes it" : "a norm writes it",
                     scale ? "fold_constant_norm, which takes it away" : "none: no weight can subtract its mean"));
    }
  }
  for (const Touch& touch : streams.all[index].touches) {
    const bool is_norm = touch.kind == TouchKind::norm_reads || touch.kind == TouchKind::norm_writes;
    if (!is_norm && touch.kind != TouchKind::sinusoidal) {
      failed.push_back(in_the_way(touch.module, "LayerNorms alone to read the stream", text_of(touch),
                                  "none: it depends on the mean"));
    }
  }
  bool tied = false;
  for (const Port& port : streams.all[index].ports) {
    if (port.role == Role::reader) {
      failed.push_back(in_the_way(port.tensor.module, "LayerNorms alone to read the stream",
                                  "a matrix reads it without a norm", "none: it depends on the mean"));
    }
    tied |= port.role == Role::writer && port.tensor == weight_of(token_table);
  }
  if (tied && is_table_of_both_ends(model.architecture)) {
    const std::vector<Precondition> more = tied_obstacles(model, streams, norms);
    failed.insert(failed.end(), more.begin(), more.end());
  }
  return failed;
}

Basis without_mean(int64_t width) {
  const RowMap centred{fmt::format("centring({})", width), {}, [](const at::Tensor& rows, const auto&) {
                         return rows - rows.mean(1, true);
                       }};
  return {.write = centred, .read = centred};
}

// Norms read what is centred, and a basis would ask whether it may change under them: it may.
Streams unseen_by_norms(Streams streams, const std::set<size_t>& centred) {
  for (const size_t index : centred) {
    std::erase_if(streams.all[index].touches, [](const Touch& t) { return t.kind == TouchKind::norm_reads; });
  }
  return streams;
}

Proposal propose_centring(const Model& model, const Options&, const std::optional<Budget>&) {
  Proposal proposal{.after = model};
  const Streams streams = find_streams(model.architecture);
  const std::vector<NormBetween> norms = norms_between(model.architecture, streams);
  std::set<size_t> centred, refused;
  for (const NormBetween& norm : norms) {
    if (norm.norm.kind != NormKind::layer || refused.contains(norm.reads) || centred.contains(norm.reads)) {
      continue;
    }
    const std::vector<Precondition> failed = obstacles_of_mean(model, streams, norms, norm.reads);
    (failed.empty() ? centred : refused).insert(norm.reads);
    proposal.preconditions.insert(proposal.preconditions.end(), failed.begin(), failed.end());
  }
  std::set<ModuleId> changed;
  for (const NormBetween& norm : norms) {
    if (centred.contains(norm.reads)) {
      changed.insert(norm.module);
      proposal.preconditions.push_back({.where = name_of(norm.module),
                                        .block = norm.module.block,
                                        .expected = "a LayerNorm that reads matrices, tables and biases",
                                        .found = "it is",
                                        .holds = true});
    } else if (!refused.contains(norm.reads)) {
      proposal.preconditions.push_back({.where = name_of(norm.module),
                                        .block = norm.module.block,
                                        .expected = "a LayerNorm",
                                        .found = fmt::format("it is {}", norm_in_words(norm.norm.kind))});
    }
  }
  if (norms.empty()) {
    proposal.preconditions.push_back(
        {.where = "model", .expected = "a LayerNorm", .found = "it has no norm that runs"});
  }
  if (centred.empty()) {
    return proposal;
  }
  std::map<size_t, Basis> bases;
  RoundingWalk walk;
  for (const size_t index : centred) {
    bases.emplace(index, without_mean(streams.all[index].width));
    step_along(walk, model, streams.all[index].ports);
  }
  proposal.after = change_basis(model, unseen_by_norms(streams, centred), bases);
  for (const PlacedNorm& site : norms_of(proposal.after.architecture)) {
    if (changed.contains(site.module)) {
      site.norm->kind = NormKind::rms;
    }
  }
  proposal.roundings = walk.roundings();
  proposal.applies = true;
  proposal.notes.push_back(
      fmt::format("{} became RMSNorms with the same number of parameters; rotate_residual can now rotate "
                  "their stream",
                  changed.size() == 1 ? "one LayerNorm" : fmt::format("{} LayerNorms", changed.size())));
  if (const int64_t grown = count(proposal.after.architecture).total - count(model.architecture).total; grown > 0) {
    proposal.notes.push_back(
        fmt::format("computed positions have to be stored: {} parameters more", with_commas(grown)));
  }
  return proposal;
}

}  // namespace

const Pass& pass_center_layer_norm() {
  static const Pass pass{
      .id = "center_layer_norm",
      .theorem = "LayerNorm(x) = RMSNorm(xC), and W C is a matrix, C = I - 1'1/d",
      .saves = "no parameters: norms that need no mean, and a stream that rotate_residual can turn",
      .reference = "SliceGPT (Ashkboos et al. 2024), which converts LayerNorm so",
      .preconditions = {"LayerNorms alone read the stream", "only matrices, tables and biases write it",
                        "the head is untied, or the last norm has no bias and a uniform gain"},
      .options = {},
      .propose = propose_centring,
  };
  return pass;
}

}  // namespace pare
