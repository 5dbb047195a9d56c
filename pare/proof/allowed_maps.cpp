#include "pare/proof/allowed_maps.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "pare/proof/stream_map.h"

namespace pare {

namespace {

bool is_uniform(const ModelView& side, const ModuleId& norm, int64_t width) {
  const at::Tensor gain = side.gain(norm, width).value;
  return (gain == gain[0]).all().item<bool>();
}

// Nothing of the norm that writes stream `after` knows the coordinates. A bias is written there like anything else.
bool commutes(const ModelView& a, const ModelView& b, const ModuleId& norm, size_t after) {
  const int64_t width = a.streams().all[after].width;
  return a.folded().gains.contains(after) || (is_uniform(a, norm, width) && is_uniform(b, norm, width));
}

bool is_pinned(const Stream& stream) {
  return std::ranges::any_of(stream.touches, [](const Touch& touch) {
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

std::vector<std::vector<size_t>> turning_together(const ModelView& a, const ModelView& b) {
  const size_t count = a.streams().all.size();
  std::vector<size_t> parents(count);
  std::iota(parents.begin(), parents.end(), size_t{0});
  const auto root = [&parents](size_t s) {
    while (parents[s] != s) {
      s = parents[s];
    }
    return s;
  };
  std::vector<bool> stays(count, false);
  std::map<ModuleId, size_t> written;
  for (size_t s = 0; s < count; ++s) {
    for (const Touch& touch : a.streams().all[s].touches) {
      if (touch.kind == TouchKind::norm_writes) {
        written[touch.module] = s;
      }
    }
  }
  const auto turns = [](const ModelView& view, const ModuleId& norm) {  // where its gain is uniform
    const auto found = view.norms().find(norm);
    return found != view.norms().end() &&
           (found->second.kind == NormKind::rms || found->second.kind == NormKind::scale);
  };
  for (size_t s = 0; s < count; ++s) {
    for (const ModelView* side : {&a, &b}) {
      for (const Touch& touch : side->streams().all[s].touches) {
        if (touch.kind == TouchKind::sinusoidal) {  // computed positions are rows like stored ones
          continue;
        }
        const bool norm = touch.kind == TouchKind::norm_reads || touch.kind == TouchKind::norm_writes;
        if (!norm || !turns(a, touch.module) || !turns(b, touch.module) ||
            !commutes(a, b, touch.module, written.at(touch.module))) {
          stays[s] = true;
        } else {
          parents[root(s)] = root(written.at(touch.module));
        }
      }
    }
  }
  std::map<size_t, std::vector<size_t>> sets;
  std::map<size_t, bool> pinned;
  for (size_t s = 0; s < count; ++s) {
    sets[root(s)].push_back(s);
    pinned[root(s)] = pinned[root(s)] || stays[s];
  }
  std::vector<std::vector<size_t>> found;
  for (const auto& [leader, streams] : sets) {
    if (streams.size() > 1 && !pinned.at(leader)) {
      found.push_back(streams);
    }
  }
  return found;
}

std::vector<MapGroup> groups_of_streams(const ModelView& a, const ModelView& b) {
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

std::vector<std::string> misplaced(const ModelView& a, const ModelView& b, const std::vector<StreamMap>& maps) {
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
