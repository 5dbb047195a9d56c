// Constants: of tables, of biases, and what is never written or never read.

#include <algorithm>
#include <map>
#include <utility>

#include "pare/redundancy/tally.h"

namespace pare {

namespace {

// ---- the tables of the embedding: what one row adds another can take away

// How many tables add to the same tokens; all but one of their constants is free.
void count_table_shifts(Tally& tally, const Architecture& a, const Places& places) {
  const Embedding& e = a.embedding;
  if (a.first_layer == FirstLayer::table) {
    return;
  }
  const Place& embedded = places.all[places.embedded];
  const std::optional<Norm> before_head = a.head.tied ? places.layer_norm_of(places.head_input) : std::nullopt;
  const bool centred = before_head.has_value();
  const Norm last = before_head.value_or(Norm{});
  const bool of_table = !e.factor || e.factor_scope == FactorScope::sum;
  if (centred && !last.gain && last.bias && !a.head.bias && embedded.mean_unseen && of_table) {
    // A constant before the head moves every row's mean by as much as the row sees of it: nobody else sees means.
    tally.add(Symmetry::stream_shift, embedded.width);
  }
  const int64_t full = embedded.mean_unseen ? embedded.width - 1 : embedded.width;
  const bool learned = e.position == Position::learned;
  int64_t whole = (learned ? 1 : 0) + (e.types > 0 ? 1 : 0);  // of full width
  if (e.patch) {
    whole += e.patch->bias ? 1 : 0;
    if (e.class_token && (learned || e.patch->bias)) {
      // The class token's own place has two that add up where positions are learned, and one else.
      tally.add(Symmetry::table_shift, learned ? full : 0);
      if (!learned) {
        tally.cannot("a class token without learned positions");
      }
    } else if (e.class_token) {
      tally.cannot("a class token beside patches without a constant");
    }
    if (e.registers_placed && learned) {  // so have they
      tally.add(Symmetry::table_shift, e.registers * full, e.registers);
    }
    if (e.types > 0) {
      tally.cannot("images with types");
    }
  } else if (e.factor && e.factor_scope == FactorScope::token) {
    whole += e.factor_bias ? 1 : 0;
    if (e.masked) {
      // A constant of the table would count by how many tokens are masked.
    } else if (whole > 0 && !a.head.tied) {
      tally.add(Symmetry::table_shift, *e.factor);
    } else if (whole == 0 && !a.head.tied && !is_fixed(places, places.embedded)) {
      tally.cannot("the constant of a factorised table has nothing to meet it");
    }
  } else {
    whole += a.head.tied || e.masked ? 0 : 1;
  }
  if (e.masked && !a.head.tied) {
    tally.add(Symmetry::unread_rows, token_width(a));
  }
  tally.add(Symmetry::table_shift, std::max<int64_t>(whole - 1, 0) * full, std::max<int64_t>(whole - 1, 0));
  // A tied table's constant shows in every logit, but for the one direction that the LayerNorm before the head hides.
  const bool counted_as_mean = centred && !last.gain && embedded.mean_unseen;
  const bool one_hidden = centred && (!last.bias || a.head.bias) && !counted_as_mean;
  tally.add(Symmetry::table_shift, one_hidden && whole > 0 ? 1 : 0);
  if (learned && e.position_pad) {  // the padding token and its position are always seen together
    tally.add(Symmetry::table_shift, !a.head.tied ? full : one_hidden ? 1 : 0);
  }
  const int64_t unread = learned ? e.position_offset - (e.position_pad ? 1 : 0) : 0;
  tally.add(Symmetry::unread_rows, unread * embedded.width, unread);
}

// ---- biases of keys and values

void count_key_bias(Tally& tally, const Attention& t) {
  if (!t.bias.key || t.scores == Form::collapsed || t.qk_norm || t.softcap || is<SameAsKey>(t.query)) {
    return;
  }
  const int64_t turned = t.rope ? t.rope->width : 0;
  tally.add(Symmetry::key_bias, t.kv_heads * (t.head_width - turned));
}

// Where the output has no bias, the value's can move only as far as a constant of what it writes can.
void count_value_biases(Tally& tally, const Architecture& a, const Places& places) {
  std::vector<size_t> open;
  std::vector<int64_t> sizes;
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    const Attention& t = a.blocks[n].attention;
    if (!t.bias.value || t.values == Form::collapsed || t.gate || is_tabled(a, n)) {
      continue;
    }
    const int64_t size = t.kv_heads * t.head_width;
    if (t.bias.output) {
      tally.add(Symmetry::value_bias, size);
      continue;
    }
    const size_t output = places.blocks[n].attention_output;
    if (value_bias_reaches_all(t, a.width)) {  // it is the output's bias, and what is beside that
      tally.add(Symmetry::value_bias, size - a.width + (places.all[output].mean_unseen ? 1 : 0));
      continue;
    }
    for (size_t i = 0; i < places.sums.size(); ++i) {
      if (places.sums[i].target == output) {
        open.push_back(i);
        sizes.push_back(size);
      }
    }
  }
  if (open.empty()) {
    return;
  }
  const int64_t freed = free_constants(places, Zone::stream, Direction::generic, {.sums = open}) -
                        free_constants(places, Zone::stream, Direction::generic, {});
  if (freed != 0 && freed != std::ssize(open)) {
    tally.cannot("some value biases without an output bias can move, others not");
    return;
  }
  for (size_t i = 0; i < open.size(); ++i) {
    const Place& output = places.all[places.sums[open[i]].target];
    const int64_t seen = output.mean_unseen ? output.width - 1 : output.width;
    tally.add(Symmetry::value_bias, freed > 0 ? sizes[i] : std::max<int64_t>(sizes[i] - seen, 0));
  }
}

// ---- what is never written, or never read

// How many vectors reach a place, and how many rows look at what is put there; both stop counting at `enough`.
struct Traffic {
  std::vector<int64_t> written, read;
};

Traffic traffic_of(const Places& places) {
  constexpr int64_t enough = int64_t{1} << 40;
  Traffic traffic{std::vector<int64_t>(places.all.size()), std::vector<int64_t>(places.all.size())};
  for (size_t p = 0; p < places.all.size(); ++p) {
    const Place& place = places.all[p];
    for (const PlaceWriter& writer : place.writers) {
      traffic.written[p] += writer.vectors;
    }
    for (const PlaceReader& reader : place.readers) {
      traffic.read[p] += reader.rows;
    }
    traffic.read[p] += place.pinned || place.identity || !place.norms.empty() ? place.width : 0;
  }
  std::map<ModuleId, std::vector<size_t>> normed;  // what each norm reads
  for (size_t p = 0; p < places.all.size(); ++p) {
    for (const PlaceNorm& norm : places.all[p].norms) {
      normed[norm.module].push_back(p);
    }
  }
  using Neighbours = std::vector<std::vector<size_t>>;
  Neighbours before(places.all.size()), after(places.all.size());
  for (const Sum& sum : places.sums) {
    std::vector<size_t>& from = before[sum.target];
    from.insert(from.end(), sum.added.begin(), sum.added.end());
    for (size_t place : sum.added) {
      after[place].push_back(sum.target);
    }
    if (sum.norm && sum.added.empty()) {
      const std::vector<size_t>& reads = normed[sum.norm->module];
      from.insert(from.end(), reads.begin(), reads.end());
    }
  }
  const Traffic own = traffic;
  const auto changes = [&](std::vector<int64_t>& all, const std::vector<int64_t>& alone, const Neighbours& near,
                           size_t p) {
    int64_t sum = alone[p];
    for (size_t other : near[p]) {
      sum = std::min(enough, sum + all[other]);
    }
    return std::exchange(all[p], sum) != sum;
  };
  // Sums are in the order of the computation, so one round forward and one back settles all but shared blocks.
  bool moved = true;
  for (size_t round = 0; moved && round <= places.sums.size(); ++round) {
    moved = false;
    for (const Sum& sum : places.sums) {
      moved |= changes(traffic.written, own.written, before, sum.target);
    }
    for (auto sum = places.sums.rbegin(); sum != places.sums.rend(); ++sum) {
      for (size_t place : sum->added) {
        moved |= changes(traffic.read, own.read, after, place);
      }
    }
  }
  return traffic;
}

// Matrices then have rows or columns that do nothing, which no symmetry here explains.
void check_traffic(Tally& tally, const Places& places) {
  const Traffic traffic = traffic_of(places);
  for (size_t p = 0; p < places.all.size(); ++p) {
    const Place& place = places.all[p];
    // Behind an identity or an activation there is no matrix to count.
    const bool is_read = !place.readers.empty(), is_written = !place.writers.empty();
    if (is_read && traffic.written[p] > 0 && traffic.written[p] < place.width) {
      tally.cannot("a matrix that reads more directions than are ever written");
    }
    if (is_written && traffic.read[p] < place.width) {
      tally.cannot("a matrix that writes more directions than are ever read");
    }
  }
}

}  // namespace

void count_constants(Tally& tally, const Architecture& a, const Places& places) {
  check_traffic(tally, places);
  count_table_shifts(tally, a, places);
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    if (!is_tabled(a, n)) {
      count_key_bias(tally, a.blocks[n].attention);
    }
  }
  count_value_biases(tally, a, places);
}

}  // namespace pare
