#include "pare/linear/map_group.h"

namespace pare {

std::vector<std::pair<int64_t, int64_t>> turning_planes(const Rope& rope) {
  std::vector<std::pair<int64_t, int64_t>> planes;
  for (int64_t i = 0; i < rope.width / 2; ++i) {
    planes.push_back(rope.layout == RopeLayout::half ? std::pair(i, i + rope.width / 2) : std::pair(2 * i, 2 * i + 1));
  }
  return planes;
}

}  // namespace pare
