#pragma once
// For the parts of redundancy(): where each puts what it counts.

#include <map>
#include <set>
#include <string>

#include "pare/arch/places.h"
#include "pare/arch/redundancy.h"

namespace pare {

enum class Symmetry {
  stream_basis,
  stream_rotation,
  norm_gain,
  norm_scale,
  value_output,
  query_key,
  qk_norm_gain,
  mlp_scaling,
  key_bias,
  value_bias,
  table_shift,
  stream_shift,
  layer_norm_means,
  layer_norm_ones,
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

void count_bases(Tally& tally, const Architecture& a);
void count_heads(Tally& tally, const Architecture& a, const Places& places);
void count_mlps(Tally& tally, const Architecture& a);
void count_constants(Tally& tally, const Architecture& a, const Places& places);

}  // namespace pare
