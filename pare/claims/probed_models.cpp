#include "pare/claims/probed_models.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "pare/arch/presets.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/claims/draws.h"
#include "pare/data/text_tokens.h"
#include "pare/model/init.h"
#include "pare/probes/probe_batches.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"

namespace pare {

namespace {

// Of BERT's kind: an encoder that normalises after each skip.
Architecture random_shape(const Trial& trial, int64_t tokens) {
  Architecture shape = find_preset("bert-base").value();
  if (trial.scale == ClaimScale::small) {
    return shape;
  }
  shape.width = 48;
  shape.vocab = 200;
  shape.context = tokens;
  for (Block& block : shape.blocks) {
    block.attention.heads = block.attention.kv_heads = 4;
    block.attention.head_width = 12;
    std::get<DenseMlp>(block.mlp->kind).width = 96;
  }
  return shape;
}

std::vector<Inputs> drawn_inputs(const Architecture& architecture, int64_t tokens, int64_t sequences, uint64_t seed) {
  at::Generator generator = generator_of(seed);
  return {{.ids = at::randint(architecture.vocab, {sequences, tokens}, generator, at::kLong)}};
}

// Sequences of exactly so many tokens, with what the tokenizer puts around each.
std::vector<Inputs> text_inputs(Tokenizer& tokenizer, const std::filesystem::path& text, int64_t tokens,
                                int64_t sequences) {
  const TextSequences read = read_sequences(text, tokenizer, tokens, tokens * sequences);
  std::vector<int64_t> ids;
  for (const std::vector<TokenId>& sequence : read.sequences) {
    if (std::ssize(sequence) == tokens) {
      ids.insert(ids.end(), sequence.begin(), sequence.end());
    }
  }
  refuse_if(ids.empty(), "text {} has {} tokens: a sequence needs {}", quote(text.string()), read.tokens, tokens);
  return {{.ids = at::tensor(ids, at::kLong).view({-1, tokens})}};
}

// None where the model brings none that reads text, such as one of chemistry.
std::optional<Tokenizer> tokenizer_of(const std::filesystem::path& model) {
  try {
    return open_tokenizer(model);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<ProbedModel> probed_models(const Trial& trial, int64_t tokens, int64_t sequences) {
  std::vector<ProbedModel> found;
  const Architecture shape = random_shape(trial, tokens);
  found.push_back({trial.scale == ClaimScale::small ? "random BERT-base" : "small random BERT",
                   {shape, random_weights(shape, trial.seed, Dtype::f32, Draw::plain)},
                   drawn_inputs(shape, tokens, sequences, trial.seed)});
  for (const std::filesystem::path& path : trial.models) {
    const ModelFolder folder = open_model(path);
    const Architecture& read = folder.model.architecture;
    const int64_t few = std::min(tokens, read.context);
    ProbedModel model{
        path.filename().empty() ? path.parent_path().filename() : path.filename(), folder.model, {}, true};
    std::optional<Tokenizer> tokenizer = trial.text.empty() ? std::nullopt : tokenizer_of(path);
    model.name += tokenizer ? "" : " (drawn ids)";
    model.inputs = tokenizer ? text_inputs(*tokenizer, trial.text, few, sequences)
                             : drawn_inputs(read, few, sequences, trial.seed);
    found.push_back(std::move(model));
  }
  return found;
}

ProbeResults probed(const ProbedModel& model, const Interventions& interventions) {
  Probe probe(model.model, {.arithmetic = {.dtype = at::kDouble}, .interventions = interventions});
  measure_all(probe, probe_batches(model.inputs, model.model.architecture),
              fmt::format("probing {}{}", model.name, interventions.any() ? ", changed" : ""));
  return probe.results();
}

void measure_each(const std::vector<ProbedModel>& models, Outcome& found,
                  const std::function<void(const ProbedModel&)>& one) {
  size_t done = 0;
  try {
    for (; done < models.size(); ++done) {
      one(models[done]);
    }
  } catch (const Interrupted&) {
    if (done == 0) {
      throw Interrupted("interrupted before the first model was measured");
    }
    forget_interrupt();  // what was measured is shown
    found.partial = fmt::format("{} of {} measurements", done, models.size());
  }
}

std::vector<const PointMeasures*> stream_of(const ProbeResults& results) {
  std::vector<const PointMeasures*> found;
  for (const PointMeasures& point : results.points) {
    if (point.kind == PointKind::stream && point.sublayer != Sublayer::mlp) {
      found.push_back(&point);
    }
  }
  return found;
}

std::map<int64_t, double> written_ranks(const ProbeResults& results) {
  std::map<int64_t, double> ranks;
  for (const PointMeasures& point : results.points) {
    if (point.kind == PointKind::written && point.sublayer == Sublayer::attention) {
      ranks[point.layer] = average_of(point.ranks.effective_rank);
    }
  }
  return ranks;
}

double average_of(const Spread& spread) {
  return spread.average().value_or(std::nan(""));
}

Correlation correlation(const std::vector<double>& x, const std::vector<double>& y) {
  PARE_CHECK(x.size() == y.size(), "pairs are correlated");
  const int64_t count = std::ssize(x);
  if (count < 4) {
    return {.count = count};
  }
  const at::Tensor a = at::tensor(x, at::kDouble), b = at::tensor(y, at::kDouble);
  const at::Tensor u = a - a.mean(), v = b - b.mean(), lengths = u.norm() * v.norm();
  if (lengths.item<double>() < 1e-12) {
    return {.count = count};
  }
  const double r = (u.dot(v) / lengths).item<double>();
  const double z = std::atanh(std::clamp(r, -1 + 1e-15, 1 - 1e-15)) * std::sqrt(static_cast<double>(count - 3));
  return {r, std::erfc(std::abs(z) / std::sqrt(2.0)), count, true};
}

}  // namespace pare
