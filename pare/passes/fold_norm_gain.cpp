// Theorem: (g ∘ n(x) + c) W + b = n(x) (diag(g) W) + (b + c W), for a norm n and every reader W of its output.
// Before: gain g (or offset + g), norm bias c, readers W, b.   After: diag(g) W, b + c W, a norm without gain and bias.
// bias=keep, where some reader has no b: the gain goes alone, (g ∘ n(x) + c) W + b = (n(x) + c / g) (diag(g) W) + b.
//
// Proof: a matrix is linear, and a diagonal matrix is a matrix.
//
// Preconditions: P1 the norm stands before its readers (a post-norm's output is the stream itself); P2 every reader is
// a matrix of its own: not an identity, not a tied head, not the model's answer; P3 a norm bias needs readers that all
// have biases, or the model would grow; bias=keep: without them it stays, and needs a gain without zeros.
// Exactness: one product per weight, no inverse.
// Order: before passes that remove readers.
// Reference: docs/theorems/fold_norm_gain.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>

#include "pare/algebra/operations.h"
#include "pare/algebra/prediction.h"
#include "pare/algebra/shift.h"
#include "pare/arch/norms.h"
#include "pare/arch/streams.h"
#include "pare/support/error.h"

namespace pare {

namespace {

constexpr double largest_stored_bias = 6e4;  // what every type that models are stored in can hold

// c / g, and zero where both are.
at::Tensor over_gain(const at::Tensor& bias, const at::Tensor& factors) {
  return at::where((bias == 0) & (factors == 0), at::zeros_like(bias), bias / factors);
}

// A norm, the stream that it writes, and those that read it and have no place for its bias: then the norm has to keep
// it; asked to, in units of its gain.
struct Site {
  PlacedNorm norm;
  const Stream* stream = nullptr;  // none: the norm before a first-layer table, which holds its results
  std::vector<std::string> without_bias;
  bool keeps_bias() const { return !without_bias.empty(); }
};

// `norms`: those of a copy of `a`, which may be changed.
std::vector<Site> sites_of(const Architecture& a, const Streams& streams, const std::vector<PlacedNorm>& norms) {
  std::map<ModuleId, const Stream*> written;
  for (const Stream& stream : streams.all) {
    for (const Touch& touch : stream.touches) {
      if (touch.kind == TouchKind::norm_writes) {
        written.emplace(touch.module, &stream);
      }
    }
  }
  const TensorTable stored = tensor_table(a);
  std::vector<Site> sites;
  for (const PlacedNorm& norm : norms) {
    const auto found = written.find(norm.module);
    Site site{.norm = norm, .stream = found == written.end() ? nullptr : found->second};
    if (norm.norm->bias && site.stream) {
      site.without_bias = readers_without_bias(a, stored, *site.stream);
    }
    sites.push_back(std::move(site));
  }
  return sites;
}

// The largest entry of c / g. Infinite where g is zero and c is not; and where both are, there is nothing to keep.
double largest_kept_bias(const Model& model, const PlacedNorm& site) {
  const at::Tensor bias = load_double(model.weights.at(name_of(bias_of(site.module))));
  const at::Tensor gain = load_double(model.weights.at(name_of(weight_of(site.module))));
  return over_gain(bias, gain + site.norm->offset).abs().max().item<double>();
}

// Why this norm has to keep its gain; empty where it need not.
std::optional<Precondition> obstacle(const Model& model, const Site& at, bool may_keep_bias) {
  const PlacedNorm& site = at.norm;
  const Stream* const stream = at.stream;
  const auto fails = [&](const char* expected, std::string found, const char* remedy) {
    return in_the_way(site.module, expected, std::move(found), remedy);
  };
  if (!site.norm->gain && !site.norm->bias) {
    return fails("a gain or a bias", "there is none", "");
  }
  if (!stream) {
    return fails("a norm that runs", "it is inside the first-layer table", "");
  }
  for (const Touch& touch : stream->touches) {
    if (touch.kind != TouchKind::norm_writes || touch.module != site.module) {
      return fails("readers that are matrices", text_of(touch), "none: only a matrix can take a gain");
    }
  }
  for (const Port& port : stream->ports) {
    if (port.role == Role::writer) {
      return fails("a norm before its readers", name_of(port.tensor) + " writes the same stream",
                   "none: the norm's output is the stream itself");
    }
    if (model.architecture.head.tied && port.tensor == weight_of(token_table)) {
      return fails("an untied head", "the head is tied to the embedding", "untie the head, which costs more");
    }
  }
  if (stream->ports.empty()) {
    return fails("readers that are matrices", "nothing reads it", "");
  }
  if (!at.keeps_bias()) {
    return std::nullopt;
  }
  if (!site.norm->gain || !may_keep_bias) {
    return fails("readers with biases", fmt::format("no bias in {}", fmt::join(at.without_bias, ", ")),
                 site.norm->gain ? "bias=keep, which leaves it in the norm, divided by the gain"
                                 : "none that is smaller: the norm's bias would need new ones");
  }
  const double largest = model.has_weights() ? largest_kept_bias(model, site) : 0;
  if (largest <= largest_stored_bias) {
    return std::nullopt;
  }
  Precondition failed =
      fails("a gain that the norm's bias can be divided by",
            std::isfinite(largest) ? fmt::format("a quotient of {:.3g}", largest) : "a gain of zero beside a bias",
            "none that is smaller: the norm's bias would need new ones");
  failed.measured = largest;
  failed.limit = largest_stored_bias;
  return failed;
}

void fold(Model& model, const Site& at) {
  if (!model.has_weights()) {
    return;
  }
  const PlacedNorm& site = at.norm;
  const Stream& stream = *at.stream;
  const bool kept = at.keeps_bias();
  if (site.norm->bias && !kept) {
    shift_readers(model, stream, model.weights.at(name_of(bias_of(site.module))));
    model.weights.erase(name_of(bias_of(site.module)));
  }
  if (!site.norm->gain) {
    return;
  }
  const Weight gain = model.weights.at(name_of(weight_of(site.module)));
  const double offset = site.norm->offset;
  const Formula factors = offset == 0 ? gain.formula() : gain.formula() + fmt::format("{}", offset);
  const RowMap scale{Formula::diagonal(factors), {gain}, [offset](const at::Tensor& rows, const auto& in) {
                       return rows * (in[0] + offset);
                     }};
  for (const Port& port : stream.ports) {
    Weight& reader = model.weights.at(name_of(port.tensor));
    reader = mapped_along(reader, port, stream.width, scale);
  }
  if (kept) {
    Weight& bias = model.weights.at(name_of(bias_of(site.module)));
    bias = computed(bias.shape(), bias.formula() * scale.matrix.inverse(), {bias, gain},
                    [offset](const std::vector<at::Tensor>& in) { return over_gain(in[0], in[1] + offset); });
  }
  model.weights.erase(name_of(weight_of(site.module)));
}

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>&) {
  Proposal proposal{.after = model};
  const Streams streams = find_streams(model.architecture);
  RoundingWalk walk;
  int64_t kept_biases = 0;
  Architecture after = model.architecture;
  for (const Site& at : sites_of(model.architecture, streams, norms_of(after))) {
    const PlacedNorm& site = at.norm;
    if (std::optional<Precondition> failed = obstacle(model, at, options.at("bias") == "keep")) {
      proposal.preconditions.push_back(*std::move(failed));
      continue;
    }
    proposal.preconditions.push_back({.where = name_of(site.module),
                                      .block = site.module.block,
                                      .expected = "readers that are matrices",
                                      .found = fmt::format("{} of them", at.stream->ports.size()),
                                      .holds = true});
    fold(proposal.after, at);
    kept_biases += at.keeps_bias() ? 1 : 0;
    site.norm->gain = false;
    site.norm->bias = at.keeps_bias();
    site.norm->offset = 0;
    walk.step(1, site.module.block ? runs_of(model.architecture, *site.module.block) : 1);
    proposal.applies = true;
  }
  if (proposal.preconditions.empty()) {
    proposal.preconditions.push_back(
        {.where = "model", .expected = "a norm with a gain or a bias", .found = "it has no norms"});
  }
  if (kept_biases > 0) {
    proposal.notes.push_back(fmt::format(
        "{} norms keep their bias, divided by the gain: not all that read them have a bias to take it", kept_biases));
  }
  proposal.roundings = walk.roundings();
  proposal.after.architecture = std::move(after);
  return proposal;
}

}  // namespace

const Pass& pass_fold_norm_gain() {
  static const Pass pass{
      .id = "fold_norm_gain",
      .theorem = "(g n(x) + c) W + b = n(x) (diag(g) W) + (b + c W)",
      .saves = "width for each gain, width for each norm bias",
      .reference = "FlashNorm (Graef et al. 2024), which Graef 2024 cites as reference 19",
      .preconditions = {"the norm stands before its readers", "every reader is a separate matrix",
                        "a norm bias needs readers with biases; bias=keep: or a gain without zeros"},
      .options = {{"bias", "fold|keep", "fold"}},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
