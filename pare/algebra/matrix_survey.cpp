#include "pare/algebra/matrix_survey.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "pare/algebra/amplification.h"
#include "pare/algebra/basis.h"
#include "pare/algebra/prediction.h"
#include "pare/arch/tensors.h"
#include "pare/support/interrupt.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

// Only one matrix writes the stream, and only an MLP reads it: then M* = P M, whatever P is.
bool is_absorbable(const Stream& stream, const ModuleId& matrix) {
  return std::ranges::all_of(stream.ports, [&](const Port& port) {
    const ModuleId& module = port.tensor.module;
    return port.role == Role::writer ? module == matrix : module.sublayer == Sublayer::mlp;
  });
}

// What is the same for every matrix on a stream. One stream may have all the layers of a model on it: it is looked at
// once, not once for each of them.
struct Surroundings {
  std::vector<std::string> others;  // what touches it and is no matrix
  double amplified = 1;
  bool collapsed = false;  // some matrix on it is
};

class SurveyedStreams {
 public:
  SurveyedStreams(const Model& model, const Streams& streams)
      : streams(streams), table(tensor_table(model.architecture)), model_(model), walks_(streams.all.size()) {
    const std::vector<Block>& blocks = model.architecture.blocks;
    for (size_t n = 0; n < blocks.size(); ++n) {
      const BlockStreams& at = streams.blocks[n];
      const int64_t runs = runs_of(model.architecture, static_cast<int64_t>(n));
      walks_[at.attention_input].step(1, runs);
      if (blocks[n].mlp && at.mlp_input != at.attention_input) {
        walks_[at.mlp_input].step(1, runs);
      }
    }
  }

  const Surroundings& around(size_t stream) {
    const auto [entry, first] = around_.try_emplace(stream);
    if (first) {
      const std::vector<Port>& ports = streams.all[stream].ports;
      entry->second = {.others = obstacles(streams.all[stream]),
                       .amplified = amplification(model_, ports),
                       .collapsed = std::ranges::any_of(
                           ports, [&](const Port& port) { return table.at(port.tensor).shape.size() == 3; })};
    }
    return entry->second;
  }
  double walk(size_t stream) const { return std::max(walks_[stream].roundings(), 1.0); }

  const Streams& streams;
  const TensorTable table;

 private:
  const Model& model_;
  std::vector<RoundingWalk> walks_;
  std::map<size_t, Surroundings> around_;
};

const char* letter(Target target) {
  return target == Target::query ? "q" : target == Target::key ? "k" : "v";
}

// What would make it square; or which target of the block is, where that could go.
std::string square_remedy(const Architecture& architecture, const TensorTable& table, const Removal& removal,
                          bool free) {
  const bool grouped = removal.target == Target::key || removal.target == Target::value;
  std::string remedy = fmt::format("{} * head_width = width, in training", grouped ? "kv_heads" : "heads");
  for (Target other : {Target::query, Target::key, Target::value}) {
    const Removal there{.block = removal.block, .target = other};
    const TensorSpec* stored = table.find(weight_of(there.module()));
    const Shape square = {architecture.width, architecture.width};
    if (free && removal.target != Target::output && stored && stored->shape == square) {
      return fmt::format("target={}, which is square; or {}", letter(other), remedy);
    }
  }
  return remedy;
}

// What would have to go from the stream. Nothing, where it is what a removed matrix left: then its basis is spent.
std::string stream_remedy(const Stream& stream) {
  const auto any = [&stream](auto... kinds) {
    return std::ranges::any_of(stream.touches, [&](const Touch& touch) { return ((touch.kind == kinds) || ...); });
  };
  if (any(TouchKind::norm_reads, TouchKind::norm_writes)) {
    return "train the model without the norm";
  }
  if (any(TouchKind::hidden, TouchKind::pooled, TouchKind::elsewhere)) {
    return "none: the basis of an answer is not free";
  }
  return any(TouchKind::activation) ? "train the model without it" : "";
}

SurveyedMatrix survey(const Model& model, SurveyedStreams& surveyed, int64_t block, Target target) {
  const TensorTable& table = surveyed.table;
  const BlockStreams& at = surveyed.streams.blocks[block];
  SurveyedMatrix site{.removal = {.stream = target == Target::output ? at.attention_output : at.attention_input,
                                  .block = block,
                                  .target = target}};
  Removal& removal = site.removal;
  const TensorSpec* stored = table.find(weight_of(removal.module()));
  if (!stored || stored->shape.size() != 2) {
    site.failed.push_back(
        {.where = removal.name(), .block = block, .expected = "a dense matrix of its own", .found = "there is none"});
    return site;
  }
  const Shape& shape = stored->shape;
  const bool square = shape[0] == shape[1];
  const Stream& stream = surveyed.streams.all[removal.stream];
  const Surroundings& around = surveyed.around(removal.stream);
  const std::vector<std::string>& others = around.others;
  if (!square) {
    site.failed.push_back({.where = removal.name(),
                           .block = block,
                           .expected = "a square matrix",
                           .found = fmt::format("it is {} x {}", shape[0], shape[1]),
                           .remedy = square_remedy(model.architecture, table, removal, others.empty())});
  }
  if (!others.empty()) {
    site.failed.push_back({.where = fmt::format("blocks.{}", block),
                           .block = block,
                           .expected = "a stream that only matrices touch",
                           .found = abridged(others),
                           .remedy = stream_remedy(stream)});
  }
  removal.amplified = around.amplified;
  removal.walk = surveyed.walk(removal.stream);
  removal.twice = around.collapsed;
  removal.absorbed = target == Target::output && is_absorbable(stream, removal.module());
  site.possible = square && others.empty();
  site.measured = model.has_weights() && square && !removal.absorbed;
  return site;
}

// Both numbers are the weight's own: whoever asks again, about another pass, gets what was measured.
void measure(const Attention& attention, const Weight& weight, Removal& removal) {
  at::Tensor loaded, own_values, gauged_values;
  const auto stored = [&] { return loaded.defined() ? loaded : loaded = load_double(weight); };
  const auto own = [&] { return own_values.defined() ? own_values : own_values = singular_values(stored()); };
  const auto gauged = [&] {  // nothing where there is no gauge
    const at::Tensor gauge = gauged_values.defined() ? at::Tensor() : gauge_of(attention, removal.target, stored());
    return gauge.defined() ? gauged_values = singular_values(gauged_target(stored(), gauge)) : gauged_values;
  };
  const std::string in_gauge = " in the gauge " + gauge_key(attention, removal.target);
  removal.stored = weight.measured("condition number", [&] { return condition_of(own()); });
  removal.gauged = weight.measured("condition number" + in_gauge, [&] {
    return gauged().defined() ? std::min(removal.stored, condition_of(gauged())) : removal.stored;
  });
  removal.usual = removal.uses_gauge()
                      ? weight.measured("usual condition" + in_gauge, [&] { return usual_condition_of(gauged()); })
                      : weight.measured("usual condition", [&] { return usual_condition_of(own()); });
}

// One matrix for each core: singular values of one matrix gain little from several. Not more than four at once, since
// each takes several times its size.
void measure(const Model& model, std::vector<SurveyedMatrix*> sites) {
  const std::vector<Block>& blocks = model.architecture.blocks;
  Progress progress("condition numbers", sites.size());
  std::mutex counting;
  constexpr int64_t at_once = 4;
  const int64_t share = (std::ssize(sites) + at_once - 1) / at_once;
  at::parallel_for(0, std::ssize(sites), share, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Removal& removal = sites[i]->removal;
      {
        const std::lock_guard lock(counting);
        progress.advance();
      }
      measure(blocks[removal.block].attention, model.weights.at(removal.weight()), removal);
    }
  });
}

// What only the numbers can say.
void judge(const Model& model, SurveyedMatrix& site) {
  if (!site.possible || !model.has_weights()) {
    return;
  }
  const Removal& removal = site.removal;
  if (removal.condition() <= largest_condition) {
    return;
  }
  site.possible = false;
  site.failed.push_back(conditioning_of(removal));
}

}  // namespace

std::vector<std::string> obstacles(const Stream& stream) {
  std::vector<std::string> found;
  for (const Touch& touch : stream.touches) {
    if (touch.kind != TouchKind::sinusoidal) {
      found.push_back(text_of(touch));
    }
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::optional<Target> target_from_word(const std::string& word) {
  for (Target target : {Target::query, Target::key, Target::value}) {
    if (word == letter(target)) {
      return target;
    }
  }
  return std::nullopt;
}

std::vector<Target> targets_of(const std::optional<Target>& asked) {
  return asked ? std::vector{*asked} : std::vector{Target::query, Target::key, Target::value};
}

std::string abridged(const std::vector<std::string>& words) {
  constexpr size_t most = 3;
  if (words.size() <= most) {
    return fmt::format("{}", fmt::join(words, ", "));
  }
  return fmt::format("{}, and {} more", fmt::join(words.begin(), words.begin() + most, ", "), words.size() - most);
}

std::string left_over(const std::vector<std::string>& names, std::string_view verb, const std::string& reason) {
  const std::string first = fmt::format("{} {}: {}", names.front(), verb, reason);
  return names.size() == 1 ? first
                           : fmt::format("{}; {} that cost as much or more stay too: {}", first, names.size() - 1,
                                         abridged({names.begin() + 1, names.end()}));
}

Precondition conditioning_of(const Removal& removal) {
  const bool well = removal.condition() <= largest_condition;
  return {.where = removal.name(),
          .block = removal.block,
          .expected = "well conditioned",
          .found = fmt::format("condition number {:.3g}{}", removal.absorbed ? 1 : removal.gauged,
                               removal.twice ? ", which collapsed matrices square" : ""),
          .holds = well,
          .remedy = well ? "" : "another target or layer",
          .measured = removal.condition(),
          .limit = largest_condition};
}

std::vector<SurveyedMatrix> survey_matrices(const Model& model, const Streams& streams, const RemovalQuery& what) {
  SurveyedStreams surveyed(model, streams);
  std::vector<SurveyedMatrix> sites;
  for (int64_t n = 0; n < std::ssize(streams.blocks); ++n) {
    check_interrupt();
    for (Target target : what.targets) {
      if (!what.block || *what.block == n) {
        sites.push_back(survey(model, surveyed, n, target));
      }
    }
  }
  std::vector<SurveyedMatrix*> measured;
  for (SurveyedMatrix& site : sites) {
    site.measured = site.measured && (site.possible || what.measure_all);
    if (site.measured) {
      measured.push_back(&site);
    }
  }
  measure(model, measured);
  for (SurveyedMatrix& site : sites) {
    judge(model, site);
  }
  return sites;
}

at::Tensor in_best_gauge(const Model& model, const Removal& removal) {
  const at::Tensor stored = load_double(model.weights.at(removal.weight()));
  if (!removal.uses_gauge()) {
    return stored;
  }
  const Attention& t = model.architecture.blocks[removal.block].attention;
  return gauged_target(stored, gauge_of(t, removal.target, stored));
}

}  // namespace pare
