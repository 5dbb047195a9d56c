// Constants of streams: what can be added to a place and taken away again by whoever reads it.

#include <fmt/format.h>

#include <algorithm>

#include "pare/redundancy/tally.h"

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

// What cannot take a constant back, in rows of all such readers together.
int64_t stubborn_rows(const Places& places, size_t p) {
  const std::optional<Norm> norm = places.layer_norm_of(p);
  int64_t rows = 0;
  for (const PlaceReader& reader : places.all[p].readers) {
    // What is hidden of a matrix after a LayerNorm with a bias moves its constant, whatever it is.
    const bool hidden = norm && norm->bias && reader.unseen > 0;
    rows += reader.absorbs || hidden ? 0 : reader.rows - reader.passed;
  }
  return rows;
}

}  // namespace

// Norms see every constant, but LayerNorm no mean.
bool is_fixed(const Places& places, size_t p, Direction direction) {
  const Place& place = places.all[p];
  const bool normed = std::ranges::any_of(place.norms, [&](const PlaceNorm& n) {
    return direction == Direction::generic || n.norm.kind != NormKind::layer;
  });
  return place.pinned || normed || stubborn_rows(places, p) > 0;
}

int64_t free_constants(const Places& places, Zone zone, Direction direction, const Freed& freed) {
  LinearSystem system;
  const size_t count = places.all.size();
  int64_t variables = 0;
  std::vector<bool> known(count);
  for (size_t p = 0; p < count; ++p) {
    const bool left_out = direction == Direction::ones && places.all[p].mean_unseen;
    const bool fixed = is_fixed(places, p, direction) && !freed.places.contains(p);
    known[p] = places.all[p].zone != zone || left_out || fixed;
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
      const std::optional<Norm> norm = places.layer_norm_of(place);
      if ((!norm || !norm->bias) && !freed.mapped.contains(place)) {
        put(place, system.generic());
      }
    }
    if (sum.constant || std::ranges::find(freed.sums, i) != freed.sums.end()) {
      row[count + i] = 1;
      ++variables;
    }
    std::erase_if(row, [](const auto& entry) { return entry.second == 0; });
    system.add(row);
  }
  return variables - system.rank();
}

namespace {

// Fewer rows than the place is wide: the constants that they do not see pass them.
bool is_partly_fixed(const Places& places, size_t p) {
  const int64_t rows = stubborn_rows(places, p);
  return rows > 0 && rows < places.all[p].width && !places.all[p].pinned && places.all[p].norms.empty();
}

int64_t width_of(const Places& places, Zone zone) {
  for (const Place& place : places.all) {
    if (place.zone == zone) {
      return place.width;
    }
  }
  return 0;
}

// Constants of a zone, in all directions. Where some rows of a place see constants and others do not, as many
// directions fewer as there are rows; places that can only move together add up theirs.
void count_shifts_of(Tally& tally, const Places& places, Zone zone, int64_t width) {
  const auto dimension = [&](const std::set<size_t>& freed) {
    const Freed all{.sums = {}, .places = freed};
    return std::pair{free_constants(places, zone, Direction::generic, all),
                     free_constants(places, zone, Direction::ones, all)};
  };
  const auto [generic, ones] = dimension({});
  const int64_t least = (width - 1) * generic + ones;
  std::set<size_t> partly;
  for (size_t p = 0; p < places.all.size(); ++p) {
    if (places.all[p].zone == zone && is_partly_fixed(places, p)) {
      partly.insert(p);
    }
  }
  const auto [most_generic, most_ones] = dimension(partly);
  if (most_generic == generic && most_ones == ones) {
    tally.add(Symmetry::stream_shift, least, std::max(generic, ones));
    return;
  }
  std::vector<std::set<size_t>> classes;  // places whose constants are multiples of one another
  for (size_t p : partly) {
    const auto rank_with = [&](std::set<size_t> fixed) {
      fixed.insert(p);
      std::set<size_t> others = partly;
      std::erase_if(others, [&](size_t q) { return fixed.contains(q); });
      return most_generic - dimension(others).first;
    };
    if (rank_with({}) == 0) {
      continue;
    }
    const auto same =
        std::ranges::find_if(classes, [&](const std::set<size_t>& c) { return rank_with({*c.begin()}) == 1; });
    same == classes.end() ? static_cast<void>(classes.push_back({p})) : static_cast<void>(same->insert(p));
  }
  int64_t seen = 0;
  for (const std::set<size_t>& together : classes) {
    int64_t rows = 0;
    for (size_t p : together) {
      rows += stubborn_rows(places, p);
    }
    seen += std::min(rows, width);
  }
  if (std::ssize(classes) != most_generic - generic || most_ones - ones != most_generic - generic) {
    tally.cannot(
        fmt::format("fewer rows without a bias than the {} directions of what they read, at several places", width));
  }
  tally.add(Symmetry::stream_shift, std::max(least, (width - 1) * most_generic + most_ones - seen), most_generic);
}

// Values of fewer rows than the stream is wide do not see some constants, which then do not come out of the heads.
void count_unseen_by_values(Tally& tally, const Architecture& a, const Places& places) {
  const int64_t least = free_constants(places, Zone::stream, Direction::generic, {});
  std::map<size_t, int64_t> rows;
  for (size_t n = 0; n < places.blocks.size(); ++n) {
    const Attention& t = a.blocks[n].attention;
    const int64_t of_block = t.values == Form::collapsed || is<Identity>(t.value) ? a.width : t.kv_heads * t.head_width;
    rows[places.blocks[n].attention_input] += of_block;
  }
  std::set<size_t> all;
  int64_t together = 0;
  for (const auto& [place, seen] : rows) {
    const int64_t more =
        seen < a.width
            ? free_constants(places, Zone::stream, Direction::generic, {.sums = {}, .mapped = {place}}) - least
            : 0;
    if (more > 0) {
      tally.add(Symmetry::stream_shift, more * (a.width - seen));
      all.insert(place);
      together += more;
    }
  }
  if (together != free_constants(places, Zone::stream, Direction::generic, {.sums = {}, .mapped = all}) - least) {
    tally.cannot("constants that several blocks' values together do not see");
  }
}

}  // namespace

void count_shifts(Tally& tally, const Architecture& a, const Places& places) {
  count_unseen_by_values(tally, a, places);
  for (Zone zone : {Zone::embedding, Zone::stream, Zone::transform, Zone::sequence}) {
    if (const int64_t width = width_of(places, zone); width > 0) {
      count_shifts_of(tally, places, zone, width);
    }
  }
}

}  // namespace pare
