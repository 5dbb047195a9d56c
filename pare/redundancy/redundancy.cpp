#include "pare/redundancy/redundancy.h"

#include <fmt/format.h>

#include "pare/arch/count.h"
#include "pare/arch/head.h"
#include "pare/arch/norm_exits.h"
#include "pare/arch/norms.h"
#include "pare/redundancy/tally.h"
#include "pare/support/error.h"

namespace pare {

namespace {

const char* words_of(Symmetry symmetry) {
  switch (symmetry) {
    case Symmetry::stream_basis:
      return "any basis of a stream";
    case Symmetry::stream_rotation:
      return "rotation of a stream";
    case Symmetry::norm_gain:
      return "gain folds into readers";
    case Symmetry::scale:
      return "scale beside a matrix";
    case Symmetry::norm_scale:
      return "scale before a DyT";
    case Symmetry::value_output:
      return "value-output gauge";
    case Symmetry::query_key:
      return "query-key gauge";
    case Symmetry::qk_norm_gain:
      return "gains of queries and keys";
    case Symmetry::head_shape:
      return "scale of a shaped head";
    case Symmetry::mlp_scaling:
      return "scale of a neuron";
    case Symmetry::key_bias:
      return "key bias";
    case Symmetry::value_bias:
      return "value bias";
    case Symmetry::table_shift:
      return "constant between tables";
    case Symmetry::stream_shift:
      return "constant of a stream";
    case Symmetry::layer_norm_means:
      return "mean before a LayerNorm";
    case Symmetry::layer_norm_ones:
      return "mean after a LayerNorm";
    case Symmetry::table_norm:
      return "norm of a table alone";
    case Symmetry::unread_rows:
      return "rows nobody reads";
    case Symmetry::constant_query:
      return "query of a probe";
  }
  PARE_UNREACHABLE("a symmetry without a name");
}

// What sees so little that parameters are left which no symmetry explains.
void refuse_blindness(Tally& tally, const Architecture& a) {
  const Embedding& e = a.embedding;
  if (e.masked && e.norm && e.position == Position::none && e.types == 0) {
    // Each row of the table has to keep its length, and whatever does that to all of them is free.
    tally.cannot("a norm of a table alone, whose rows are multiplied by how many tokens are masked");
  }
  if (!a.embedding.patch && a.vocab < a.width) {
    tally.cannot(fmt::format("a vocabulary of {}, smaller than the width {}", a.vocab, a.width));
  }
  for (const Block& block : a.blocks) {
    if (block.attention.window == 1 || a.context == 1) {
      tally.cannot("a token that sees only itself: its query and key do nothing");
    }
    if (block.attention.mask == Mask::causal && a.head.pool == Pool::first && answers_sequences(a)) {
      tally.cannot("the first token answers, and sees only itself");
    }
  }
}

// Where nothing but the token table stands before the embedding's norm, the table takes back whatever an RMSNorm or a
// DyT does to each row: the norm might as well not be there. A LayerNorm leaves the rows on a plane, which is one in
// any basis; what of its gain and bias does not move that plane the table takes back.
bool norms_table_alone(const Architecture& a) {
  const Embedding& e = a.embedding;
  return e.norm && e.position == Position::none && e.types == 0 && !e.patch && !e.masked && !a.head.tied &&
         a.first_layer == FirstLayer::dense && (!e.factor || e.factor_scope == FactorScope::sum);
}

void count_table_norm(Tally& tally, const Architecture& a) {
  const Norm& norm = *a.embedding.norm;
  const int64_t width = embedding_width(a), gains = norm.gain ? width : 0, biases = norm.bias ? width : 0;
  switch (norm.kind) {
    case NormKind::layer:
      tally.add(Symmetry::table_norm, (norm.gain ? 1 : 0) + (norm.bias ? width - 1 : 0));
      break;
    case NormKind::rms:
      tally.add(Symmetry::table_norm, gains + biases);
      break;
    case NormKind::dyt:
      tally.add(Symmetry::table_norm, gains + biases + 1);
      break;
    case NormKind::scale:
      tally.add(Symmetry::table_norm, gains + biases);
      break;
  }
}

}  // namespace

Redundancy Tally::result() const {
  Redundancy found;
  for (const auto& [symmetry, counted] : counts_) {
    found.symmetries.push_back({words_of(symmetry), counted.places, counted.parameters});
    found.total += counted.parameters;
  }
  found.lower_bound.assign(reasons_.begin(), reasons_.end());
  return found;
}

// A scale is in the matrices beside it as well, x diag(g) W = x (diag(g) W): whatever it is, they make up for it. So
// its gain is redundant, and its bias unless it is the only one there. One that no matrix takes stays.
Architecture without_scales(Tally& tally, Architecture a) {
  const auto take = [&] {
    const Streams streams = find_streams(a);
    for (const NormBetween& norm : norms_between(a, streams)) {
      const AffineExit exit = exit_of(a, streams, norm);
      if (norm.norm.kind != NormKind::scale || exit.way == AffineExit::Way::none) {
        continue;
      }
      Architecture bare = a;
      take_out(bare, streams, norm, exit);
      const int64_t width = streams.all[norm.writes].width, less = count(a).total - count(bare).total;
      const int64_t own = (norm.norm.gain ? width : 0) + (norm.norm.bias ? width : 0);
      if (exit.way == AffineExit::Way::readers && less < own) {
        continue;  // what readers without biases get of a constant is not anything that biases could be
      }
      tally.add(Symmetry::scale, less);
      a = std::move(bare);
      return true;
    }
    return false;
  };
  const std::optional<Norm>& pooled = a.head.pool_norm;
  if (a.task == Task::encoder && pooled && pooled->kind == NormKind::scale && !pooled->gain && !pooled->bias) {
    a.head.pool_norm.reset();  // it says a multiple of a state that is an answer itself
  }
  while (take()) {
  }
  for (const PlacedNorm& placed : norms_of(a)) {
    if (placed.norm->kind == NormKind::scale) {
      tally.cannot("a scale that no matrix beside it takes in");
    }
  }
  return a;
}

Redundancy redundancy(const Architecture& stored) {
  Tally tally;
  const Architecture architecture = without_scales(tally, without_attention_pool(tally, stored));
  Architecture bare = architecture;  // as bases see it
  if (norms_table_alone(architecture)) {
    count_table_norm(tally, architecture);
    bare.embedding.norm.reset();
  }
  const bool on_a_plane = architecture.embedding.norm && architecture.embedding.norm->kind == NormKind::layer;
  const Architecture& a = on_a_plane ? architecture : bare;
  const Places places = find_places(a);
  refuse_blindness(tally, a);
  count_bases(tally, bare);
  count_heads(tally, a, places);
  count_mlps(tally, a);
  count_shifts(tally, a, places);
  count_constants(tally, a, places);
  count_means(tally, a, places);
  return tally.result();
}

}  // namespace pare
