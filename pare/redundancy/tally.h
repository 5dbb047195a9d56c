#pragma once
// For the parts of redundancy(): where each puts what it counts.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "pare/redundancy/places.h"
#include "pare/redundancy/redundancy.h"

namespace pare {

enum class Symmetry {
  stream_basis,
  stream_rotation,
  norm_gain,
  scale,
  norm_scale,
  value_output,
  query_key,
  qk_norm_gain,
  head_shape,
  mlp_scaling,
  key_bias,
  value_bias,
  table_shift,
  stream_shift,
  layer_norm_means,
  layer_norm_ones,
  table_norm,
  unread_rows,
};

class Tally {
 public:
  void add(Symmetry symmetry, int64_t parameters, int64_t places = 1) {
    if (parameters != 0) {
      counts_[symmetry].parameters += parameters;
      counts_[symmetry].places += places;
    }
  }
  void cannot(const std::string& why) { reasons_.insert(why); }
  Redundancy result() const;

 private:
  std::map<Symmetry, SymmetryCount> counts_;
  std::set<std::string> reasons_;
};

inline int64_t rotations(int64_t width) {
  return width < 2 ? 0 : width * (width - 1) / 2;
}

// ---- constants that can be added to places

// Along the all-ones direction LayerNorm hides constants that are counted as means; every other direction is like any.
enum class Direction { generic, ones };

struct Freed {
  std::vector<size_t> sums;      // that have a constant which is not stored
  std::set<size_t> places = {};  // that are looked at as if their rows took constants back
  std::set<size_t> mapped = {};  // whose values do not see them
};

bool is_fixed(const Places& places, size_t place, Direction direction = Direction::generic);
// How many constants are free in one direction of a zone's vectors.
int64_t free_constants(const Places& places, Zone zone, Direction direction, const Freed& freed);

// ---- the parts

void count_bases(Tally& tally, const Architecture& a);
void count_heads(Tally& tally, const Architecture& a, const Places& places);
void count_mlps(Tally& tally, const Architecture& a);
void count_shifts(Tally& tally, const Architecture& a, const Places& places);
void count_constants(Tally& tally, const Architecture& a, const Places& places);
void count_means(Tally& tally, const Architecture& a, const Places& places);

}  // namespace pare
