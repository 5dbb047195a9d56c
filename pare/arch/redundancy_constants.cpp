// Constants: what can be added to a place and taken away again by whoever reads it; and what LayerNorm hides.

#include <fmt/format.h>
#include <algorithm>
#include <numeric>

#include "pare/arch/redundancy_tally.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// ---- the rank of a sparse system whose coefficients are one, or generic

constexpr uint64_t prime = 2147483647;

class LinearSystem {
 public:
  using Row = std::map<size_t, uint64_t>;

  void add(Row row) {
    while (!row.empty()) {
      const auto [variable, leading] = *row.begin();
      const auto pivot = rows_.find(variable);
      if (pivot == rows_.end()) {
        rows_[variable] = scaled(row, inverse(leading));
        return;
      }
      for (const auto& [other, value] : pivot->second) {
        uint64_t& entry = row[other];
        entry = (entry + prime - leading * value % prime) % prime;
        if (entry == 0) {
          row.erase(other);
        }
      }
    }
  }
  int64_t rank() const { return std::ssize(rows_); }

  // A generic number: any that no equation knows.
  uint64_t generic() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % (prime - 1) + 1;
  }

 private:
  static uint64_t inverse(uint64_t value) {
    uint64_t result = 1;
    for (uint64_t power = prime - 2; power > 0; power /= 2) {
      result = power % 2 == 1 ? result * value % prime : result;
      value = value * value % prime;
    }
    return result;
  }
  static Row scaled(Row row, uint64_t factor) {
    for (auto& [variable, value] : row) {
      value = value * factor % prime;
    }
    return row;
  }
  std::map<size_t, Row> rows_;  // by their first variable
  uint64_t state_ = 12;
};

// ---- which places a constant can be added to

// Along the all-ones direction LayerNorm hides constants that are counted as means; every other direction is like any.
enum class Direction { generic, ones };

// What cannot take a constant back, in rows of all such readers together.
int64_t stubborn_rows(const Places& places, size_t p) {
  const PlaceNorm* norm = places.layer_norm_of(p);
  int64_t rows = 0;
  for (const PlaceReader& reader : places.all[p].readers) {
    // What is hidden of a matrix after a LayerNorm with a bias moves its constant, whatever it is.
    const bool hidden = norm && norm->norm.bias && reader.unseen > 0;
    rows += reader.absorbs || hidden ? 0 : reader.rows;
  }
  return rows;
}

bool is_fixed(const Places& places, size_t p) {
  const Place& place = places.all[p];
  return place.pinned || !place.norms.empty() || stubborn_rows(places, p) > 0;
}

// How many constants are free in one direction of a zone's vectors. `more`: sums with a constant that is not stored.
int64_t free_constants(const Places& places, Zone zone, Direction direction, const std::vector<size_t>& more) {
  LinearSystem system;
  const size_t count = places.all.size();
  int64_t variables = 0;
  std::vector<bool> known(count);
  for (size_t p = 0; p < count; ++p) {
    const bool left_out = direction == Direction::ones && places.all[p].mean_unseen;
    known[p] = places.all[p].zone != zone || left_out || is_fixed(places, p);
    variables += known[p] ? 0 : 1;
  }
  for (size_t i = 0; i < places.sums.size(); ++i) {
    const Sum& sum = places.sums[i];
    if (places.all[sum.target].zone != zone || (direction == Direction::ones && places.all[sum.target].mean_unseen)) {
      continue;
    }
    LinearSystem::Row row;
    const auto put = [&](size_t place, uint64_t coefficient) {
      if (!known[place]) {
        row[place] = (row[place] + coefficient) % prime;
      }
    };
    put(sum.target, prime - 1);
    for (size_t place : sum.added) {
      put(place, 1);
    }
    for (size_t place : sum.mapped) {
      // Behind a LayerNorm with a bias the value's matrix takes the constant back itself.
      const PlaceNorm* norm = places.layer_norm_of(place);
      if (!norm || !norm->norm.bias) {
        put(place, system.generic());
      }
    }
    if (sum.constant || std::find(more.begin(), more.end(), i) != more.end()) {
      row[count + i] = 1;
      ++variables;
    }
    std::erase_if(row, [](const auto& entry) { return entry.second == 0; });
    system.add(row);
  }
  return variables - system.rank();
}

int64_t width_of(const Places& places, Zone zone) {
  for (const Place& place : places.all) {
    if (place.zone == zone) {
      return place.width;
    }
  }
  return 0;
}

void count_shifts(Tally& tally, const Places& places) {
  for (Zone zone : {Zone::embedding, Zone::stream, Zone::transform, Zone::sequence}) {
    const int64_t width = width_of(places, zone);
    if (width == 0) {
      continue;
    }
    const int64_t generic = free_constants(places, zone, Direction::generic, {});
    const int64_t ones = free_constants(places, zone, Direction::ones, {});
    tally.add(Symmetry::stream_shift, (width - 1) * generic + ones, std::max(generic, ones));
  }
  for (size_t p = 0; p < places.all.size(); ++p) {
    const int64_t rows = stubborn_rows(places, p);
    const Place& place = places.all[p];
    if (rows > 0 && rows < place.width && !place.pinned && place.norms.empty()) {
      tally.cannot(
          fmt::format("{} rows without a bias read a place of width {}: some constants pass them", rows, place.width));
    }
  }
}

// ---- the tables of the embedding: what one row adds another can take away

// How many tables add to the same tokens; all but one of their constants is free.
void count_table_shifts(Tally& tally, const Architecture& a, const Places& places) {
  const Embedding& e = a.embedding;
  if (a.first_layer == FirstLayer::table) {
    return;
  }
  const Place& embedded = places.all[places.embedded];
  const PlaceNorm* last_norm = a.head.tied ? places.layer_norm_of(places.head_input) : nullptr;
  const bool of_table = !e.factor || e.factor_scope == FactorScope::sum;
  if (last_norm && !last_norm->norm.gain && last_norm->norm.bias && !a.head.bias && embedded.mean_unseen && of_table) {
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
    if (e.types > 0) {
      tally.cannot("images with types");
    }
  } else if (e.factor && e.factor_scope == FactorScope::token) {
    whole += e.factor_bias ? 1 : 0;
    if (whole > 0 && !a.head.tied) {
      tally.add(Symmetry::table_shift, *e.factor);
    } else if (whole == 0 && !a.head.tied && !is_fixed(places, places.embedded)) {
      tally.cannot("the constant of a factorised table has nothing to meet it");
    }
  } else {
    whole += a.head.tied ? 0 : 1;
  }
  tally.add(Symmetry::table_shift, std::max<int64_t>(whole - 1, 0) * full, std::max<int64_t>(whole - 1, 0));
  // A tied table's constant shows in every logit, but for the one direction that the LayerNorm before the head hides.
  const PlaceNorm* last = last_norm;
  const bool counted_as_mean = last && !last->norm.gain && embedded.mean_unseen;
  const bool one_hidden = last && (!last->norm.bias || a.head.bias) && !counted_as_mean;
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
    const Attention& t = a.blocks[static_cast<size_t>(n)].attention;
    if (!t.bias.value || t.values == Form::collapsed || t.gate || is_tabled(a, n)) {
      continue;
    }
    const int64_t size = t.kv_heads * t.head_width;
    if (t.bias.output) {
      tally.add(Symmetry::value_bias, size);
      continue;
    }
    const size_t output = places.blocks[static_cast<size_t>(n)].attention_output;
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
  const int64_t freed = free_constants(places, Zone::stream, Direction::generic, open) -
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

// ---- what LayerNorm hides

// Whether a constant that leaves a block's attention is taken back further on: by the bias of a parallel MLP, say.
bool settles_downstream(const Places& places, int64_t block) {
  const size_t output = places.blocks[static_cast<size_t>(block)].attention_output;
  std::vector<size_t> sums;
  for (size_t i = 0; i < places.sums.size(); ++i) {
    if (places.sums[i].target == output) {
      sums.push_back(i);
    }
  }
  return free_constants(places, Zone::stream, Direction::generic, sums) >
         free_constants(places, Zone::stream, Direction::generic, {});
}

void count_layer_norm(Tally& tally, const Architecture& a, const Places& places) {
  std::map<ModuleId, int64_t> hidden_twice;  // a matrix that is hidden from both sides: one direction is the same
  for (const Place& place : places.all) {
    for (const PlaceWriter& writer : place.writers) {
      if (!place.mean_unseen) {
        continue;
      }
      const bool tied = a.head.tied && writer.module == token_table;
      const PlaceNorm* last = tied ? places.layer_norm_of(places.head_input) : nullptr;
      const bool seen_by_head = tied && (!last || last->norm.gain || (last->norm.bias && !a.head.bias));
      tally.add(Symmetry::layer_norm_means, seen_by_head ? 0 : writer.vectors, writer.vectors);
      hidden_twice[writer.module] = 1;
    }
  }
  for (size_t p = 0; p < places.all.size(); ++p) {
    const PlaceNorm* norm = places.layer_norm_of(p);
    if (!norm) {
      continue;
    }
    for (const PlaceReader& reader : places.all[p].readers) {
      // What absorbs a constant without settling it sends it on.
      const bool settles = reader.settles || !norm->norm.bias ||
                           (reader.absorbs && reader.module.block && settles_downstream(places, *reader.module.block));
      int64_t hidden = settles ? reader.unseen : reader.unless;
      if (!settles && reader.absorbs && reader.module.slot == Slot::value) {
        // What it sends on must come out as nothing, or as a mean that nobody sees.
        const size_t output = places.blocks[static_cast<size_t>(*reader.module.block)].attention_output;
        const int64_t seen = places.all[output].width - (places.all[output].mean_unseen ? 1 : 0);
        hidden = std::max<int64_t>(reader.rows - seen, 0);
      }
      tally.add(Symmetry::layer_norm_ones, hidden, 1);
      const bool collapsed = reader.module.slot == Slot::value_output;
      ModuleId written = reader.module;
      written.slot = collapsed ? Slot::output : written.slot;
      if (hidden > 0 && hidden_twice.contains(written)) {
        const bool is_output = reader.module.slot == Slot::value_output || reader.module.slot == Slot::projection ||
                               reader.module.slot == Slot::transform;
        const int64_t matrices = collapsed ? a.blocks[static_cast<size_t>(*reader.module.block)].attention.heads : 1;
        tally.add(Symmetry::layer_norm_ones, is_output ? -matrices : 0, 0);
      }
    }
  }
}

// Places that matrices read and that then only LayerNorms see: x may become x + (u x) 1 for any u, the matrices take it
// back, and the mean is hidden. Places that are added to one another have one u. What a LayerNorm writes there has only
// a gain and a bias to follow with: u is then the one direction that the norm never gives.
class MeanMaps {
 public:
  MeanMaps(const Architecture& a, const Places& places) : a_(a), places_(places), parents_(places.all.size()) {
    std::iota(parents_.begin(), parents_.end(), size_t{0});
    for (const Sum& sum : places.sums) {
      for (size_t from : sum.added) {
        if (!sum.norm && is_seen(from) && is_seen(sum.target)) {
          parents_[root(from)] = root(sum.target);
        }
      }
    }
  }

  void count(Tally& tally) const {
    for (size_t p = 0; p < places_.all.size(); ++p) {
      if (root(p) == p && is_seen(p) && is_free(p)) {
        tally.add(Symmetry::layer_norm_means, directions(p), 1);
      }
    }
  }

 private:
  size_t root(size_t place) const {
    while (parents_[place] != place) {
      place = parents_[place];
    }
    return place;
  }
  bool is_seen(size_t p) const { return !places_.all[p].mean_unseen; }

  bool is_free(size_t component) const {
    bool hidden = false;
    for (size_t p = 0; p < places_.all.size(); ++p) {
      const Place& place = places_.all[p];
      if (root(p) != component) {
        continue;
      }
      if (place.pinned || place.identity || place.zone != Zone::stream) {
        return false;
      }
      for (const PlaceNorm& norm : place.norms) {
        hidden = true;
        if (norm.norm.kind != NormKind::layer) {
          return false;
        }
      }
      for (const PlaceWriter& writer : place.writers) {
        if (a_.head.tied && writer.module == token_table) {
          return false;
        }
      }
      const bool read_by_head = p == places_.head_input && a_.head.tied;
      if (read_by_head) {
        return false;
      }
    }
    for (const Sum& sum : places_.sums) {
      for (size_t from : sum.added) {
        hidden = hidden || (root(from) == component && !is_seen(sum.target));
      }
    }
    return hidden;
  }

  int64_t directions(size_t component) const {
    std::set<ModuleId> norms;
    bool others = false, only_layer = true;
    for (const Sum& sum : places_.sums) {
      if (root(sum.target) != component) {
        continue;
      }
      if (sum.norm) {
        norms.insert(sum.norm->module);
        only_layer = only_layer && sum.norm->norm.kind == NormKind::layer;
      } else {
        others = true;
      }
    }
    if (norms.empty()) {
      return places_.all[component].width;
    }
    return others && only_layer && norms.size() == 1 ? 1 : 0;
  }

  const Architecture& a_;
  const Places& places_;
  std::vector<size_t> parents_;
};

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
  const Traffic own = traffic;
  for (size_t round = 0; round <= places.sums.size(); ++round) {
    Traffic next = own;
    for (const Sum& sum : places.sums) {
      for (size_t from : sum.added) {
        next.written[sum.target] = std::min(enough, next.written[sum.target] + traffic.written[from]);
        next.read[from] = std::min(enough, next.read[from] + traffic.read[sum.target]);
      }
      if (sum.norm && sum.added.empty()) {
        for (size_t p = 0; p < places.all.size(); ++p) {
          for (const PlaceNorm& norm : places.all[p].norms) {
            next.written[sum.target] += norm.module == sum.norm->module ? traffic.written[p] : 0;
          }
        }
      }
    }
    if (next.written == traffic.written && next.read == traffic.read) {
      break;
    }
    traffic = next;
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
  count_shifts(tally, places);
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    if (!is_tabled(a, n)) {
      count_key_bias(tally, a.blocks[static_cast<size_t>(n)].attention);
    }
  }
  count_value_biases(tally, a, places);
  count_layer_norm(tally, a, places);
  MeanMaps(a, places).count(tally);
}

}  // namespace pare
