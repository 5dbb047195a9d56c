#include "pare/proof/groups.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "pare/proof/maps.h"
#include "pare/proof/rotations.h"

namespace pare {

namespace {

bool is_pinned(const Stream& stream) {
  return std::any_of(stream.touches.begin(), stream.touches.end(), [](const Touch& touch) {
    return touch.kind != TouchKind::identity && touch.kind != TouchKind::sinusoidal;
  });
}

double largest(const at::Tensor& values) {
  const double found = values.max().item<double>();
  return found >= 0 ? found : std::numeric_limits<double>::infinity();  // what is not a number is far from all
}

// a I + b J on each plane, and nothing between those and the entries that do not turn.
at::Tensor nearest_turning(const at::Tensor& maps, const Rope& rope) {
  at::Tensor found = at::zeros_like(maps);
  const int64_t turned = rope.width, free = maps.size(-1) - turned;
  found.narrow(1, turned, free).narrow(2, turned, free).copy_(maps.narrow(1, turned, free).narrow(2, turned, free));
  const auto at = [](const at::Tensor& of, int64_t row, int64_t column) { return of.select(1, row).select(1, column); };
  for (const auto& [x, y] : turning_planes(rope)) {
    const at::Tensor along = (at(maps, x, x) + at(maps, y, y)) / 2, across = (at(maps, y, x) - at(maps, x, y)) / 2;
    at(found, x, x).copy_(along);
    at(found, y, y).copy_(along);
    at(found, y, x).copy_(across);
    at(found, x, y).copy_(-across);
  }
  return found;
}

}  // namespace

std::vector<MapGroup> groups_of_streams(const ProofSide& a, const ProofSide& b) {
  std::vector<MapGroup> groups;
  for (size_t s = 0; s < a.streams().all.size(); ++s) {
    const bool pinned = is_pinned(a.streams().all[s]) || is_pinned(b.streams().all[s]);
    groups.push_back(pinned ? MapGroup::identity : MapGroup::general);
  }
  for (const std::vector<size_t>& together : turning_together(a, b)) {
    for (size_t s : together) {
      groups[s] = MapGroup::rotation;
    }
  }
  return groups;
}

double distance_to(MapGroup group, const at::Tensor& maps, const std::optional<Rope>& rope) {
  if (!maps.defined() || group == MapGroup::general) {
    return 0;
  }
  const at::Tensor all = maps.dim() == 2 ? maps.unsqueeze(0) : maps;
  if (group == MapGroup::identity) {
    return largest((all - at::eye(all.size(1), all.options())).abs());
  }
  const at::Tensor values = at::linalg_svdvals(all);
  double distance = 0;
  if (group == MapGroup::turning || group == MapGroup::turning_rotation) {
    const at::Tensor beside = (all - nearest_turning(all, *rope)).norm(2, {1, 2});
    distance += largest(at::where(beside == 0, 0.0, beside / values.select(1, -1)));
  }
  if (group == MapGroup::rotation || group == MapGroup::turning_rotation) {
    distance += largest((values - 1).abs());
  }
  return distance;
}

std::vector<std::string> misplaced(const ProofSide& a, const ProofSide& b, const std::vector<StreamMap>& maps) {
  std::vector<std::string> found;
  const std::vector<MapGroup> groups = groups_of_streams(a, b);
  for (size_t s = 0; s < maps.size(); ++s) {
    if (groups[s] == MapGroup::identity && !maps[s].is_identity()) {
      found.push_back(fmt::format("stream {}: a basis stands where something knows the coordinates", s));
    }
  }
  for (const std::vector<size_t>& together : turning_together(a, b)) {
    const StreamMap& first = maps[together.front()];
    for (size_t s : together) {
      const bool both = !first.is_identity() && !maps[s].is_identity();
      if (first.is_identity() != maps[s].is_identity() || (both && !at::equal(first.map, maps[s].map))) {
        found.push_back(
            fmt::format("streams {} and {}: a norm joins them, and their bases differ", together.front(), s));
      }
    }
  }
  return found;
}

}  // namespace pare
