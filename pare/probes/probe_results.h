#pragma once
// What `probe` measures, as plain values: the ranks of the stream at every point of every layer, what each norm does to
// them, what each head attends to and writes, and which of the four collapses that amounts to. docs/probes.md defines
// every number; to_json and the tables of `pare probe` print nothing else.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/arch/norm.h"
#include "pare/arch/tensor_id.h"
#include "pare/support/statistics.h"

namespace pare {

// One n × d matrix, a row for each token of a sequence. Singular values σ1 ≥ σ2 ≥ ...
struct RankMeasures {
  Spread rank;                   // how many σ exceed threshold · σ1
  Spread effective_rank;         // exp of the Shannon entropy of σ / Σσ (Roy and Vetterli 2007)
  Spread stable_rank;            // Σσ² / σ1²
  Spread distance_to_rank_one;   // ‖X - 1 x̄ᵀ‖ / ‖X‖: 0 where all tokens are the same, at most 1
  Spread affine_rank;            // rank of X - 1 x̄ᵀ, by its own σ1
  std::vector<Spread> spectrum;  // σ_i / σ_1 for i = 1, 2, ...; at most spectrum_length of them
};
constexpr int64_t spectrum_length = 128;

// stream: what the skips carry. read: what a sublayer reads, where a norm stands before it. written: what a sublayer
// adds. before_norm: the sum that a norm after the skip gets, which is no stream yet. final: after the last norm.
enum class PointKind { stream, read, written, before_norm, final };

struct PointMeasures {
  std::string name;  // of the tap, such as residual.3.mid, or of what a norm reads: blocks.3.attention.norm
  PointKind kind = PointKind::stream;
  int64_t layer = 0;                        // in running order; the last stream and `final` have the number of layers
  Sublayer sublayer = Sublayer::attention;  // that reads or wrote it; `end` for what stands after the last layer
  RankMeasures ranks;
};

// A hypothesis of the rank-neutrality theorem, checked in each sequence.
struct Hypothesis {
  int64_t holds = 0, checked = 0;  // sequences
  Spread number;                   // what decides
  std::string inapplicable;        // why it says nothing about this norm; empty: it does
};

struct NormMeasures {
  std::string name;  // blocks.3.attention.norm
  int64_t layer = 0;
  NormKind kind = NormKind::layer;
  NormPlace place = NormPlace::pre;
  size_t before = 0, after = 0;  // into ProbeResults::points
  // |rank after - rank before|, which the theorem says is 0 for the affine rank, and without bias for the rank.
  Spread rank_change, affine_rank_change;
  Hypothesis no_constant_row;  // H1: the least σ(x_i) / ‖x_i‖ of a row is not rounding
  Hypothesis ones_outside;     // H2: sine of the angle between the all-ones vector and the row space
  Hypothesis gains_nonzero;    // H3: the least |γ_j| / max |γ|; decided by exact zeros
  Hypothesis scales_outside;   // H4: sine of the angle between (σ(x_1), ..., σ(x_n)) and the columns of XP
};

struct ContextGap {
  int64_t tokens = 0;  // of the prefix
  Spread gap;          // σ1/σ2 of its attention matrix
};

struct HeadMeasures {
  Spread entropy;              // nats, mean over the queries of a sequence
  Spread distance_to_uniform;  // log(visible tokens) - entropy, the same mean
  Spread relative_entropy;     // entropy / log(visible tokens), over queries that see more than one
  Spread gap;                  // σ1/σ2 of the attention matrix of the whole sequence; undefined where σ2 is 0
  Spread inverse_gap;          // σ2/σ1: 0 is rank one, defined for two tokens and more
  std::vector<ContextGap> by_context;  // prefixes of 4, 8, 16, ... tokens
  std::optional<double> asymmetry;     // ‖M_a‖/‖M‖ of M = W_Q W_Kᵀ: 0 reciprocal, 1 directional
  std::string no_asymmetry;            // why not
  Spread output_dimension;             // rank of Y_h W_O^h: how many directions it writes into
};

// Principal angles between the row spaces of two heads' Y_h W_O^h, in radians.
struct HeadPair {
  int64_t first = 0, second = 0;
  Spread smallest, mean;
  Spread alignment;  // cos² of the smallest
};

struct LayerMeasures {
  int64_t layer = 0, block = 0;
  std::vector<HeadMeasures> heads;
  std::vector<HeadPair> pairs;         // first < second, in that order
  Spread multi_head_rank;              // of Σ_h Y_h W_O^h in a sequence: never above its tokens
  std::optional<int64_t> corpus_rank;  // the same of all tokens of all sequences, one below the other
  std::optional<double> width_bound;   // 2d - r with r = corpus_rank; nothing where no MLP follows
  std::optional<int64_t> mlp_width;
  Spread recovery_ambiguity;         // n (H - 1) k of a sequence
  int64_t ambiguity_of_a_token = 0;  // (H - 1) k
  int64_t value_output_gauge = 0;    // dimension of GL(k) for each value head that stands between two dense matrices
};

enum class Collapse { rank_in_depth, rank_in_width, head_channel, entropy };
// none; partial: in some layers or heads; collapsed: in most; structural: of every model of this architecture.
enum class CollapseVerdict { none, partial, collapsed, structural, undetermined };

struct CollapseFinding {
  Collapse collapse = Collapse::rank_in_depth;
  CollapseVerdict verdict = CollapseVerdict::undetermined;
  std::optional<double> number;  // that decides
  std::string measure;           // what that number is, in words
  std::string rule;              // which values mean what
  std::string place;             // where it is worst, with its number; empty: nowhere in particular
  std::string undecided;         // why the number decides nothing, where the verdict is undetermined
};

struct ModelGauge {  // what pare/redundancy/redundancy.h counts
  std::optional<int64_t> dimension;
  std::string undetermined;  // why not
};

struct ProbeResults {
  double threshold = 0;
  std::string dtype;  // computed in
  int64_t width = 0, sequences = 0, tokens = 0, shortest = 0, longest = 0;
  bool partial = false;  // interrupted: of fewer sequences than were asked for
  int64_t asked_sequences = 0;
  std::vector<std::string> interventions;  // in words; empty: the model as it is
  Spread effect;                           // of these: ‖changed - plain‖/‖plain‖ of what the last layer leaves
  std::vector<PointMeasures> points;       // in running order
  std::vector<NormMeasures> norms;
  std::vector<LayerMeasures> layers;
  ModelGauge gauge;
  std::vector<CollapseFinding> findings;  // one for each collapse, in the order of the enum
  int64_t broken = 0;                     // sequences with activations that are not finite, and where the first was so
  std::string first_broken;
  int64_t overflowing = 0;  // sequences with finite activations that a norm makes zeros of
  std::string first_overflowing;
  std::vector<std::string> warnings;  // of these
};

// The document of `pare probe --json`: docs/json/probe.schema.json.
nlohmann::ordered_json to_json(const ProbeResults& results);

// In tables for people, 80 columns wide: one row for the heads of a layer together, or one for each.
enum class HeadRows { layers, heads };
std::string text_of(const ProbeResults& results, HeadRows rows);

}  // namespace pare
