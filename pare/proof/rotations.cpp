#include "pare/proof/rotations.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "pare/arch/norms.h"

namespace pare {

namespace {

std::map<ModuleId, NormKind> kinds_of_norms(Architecture architecture) {
  std::map<ModuleId, NormKind> kinds;
  for (const PlacedNorm& placed : norms_of(architecture)) {
    kinds[placed.module] = placed.norm->kind;
  }
  return kinds;
}

bool is_uniform(const ProofSide& side, const ModuleId& norm, int64_t width) {
  const at::Tensor gain = side.gain(norm, width).value;
  return (gain == gain[0]).all().item<bool>();
}

// Nothing of the norm that writes stream `after` knows the coordinates. A bias is written there like anything else.
bool commutes(const ProofSide& a, const ProofSide& b, const ModuleId& norm, size_t after) {
  const int64_t width = a.streams().all[after].width;
  return a.folded().gains.contains(after) || (is_uniform(a, norm, width) && is_uniform(b, norm, width));
}

}  // namespace

std::vector<std::vector<size_t>> turning_together(const ProofSide& a, const ProofSide& b) {
  const std::map<ModuleId, NormKind> first = kinds_of_norms(a.architecture()),
                                     second = kinds_of_norms(b.architecture());
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
  const auto is_rms = [](const std::map<ModuleId, NormKind>& kinds, const ModuleId& norm) {
    const auto found = kinds.find(norm);
    return found != kinds.end() && found->second == NormKind::rms;
  };
  for (size_t s = 0; s < count; ++s) {
    for (const ProofSide* side : {&a, &b}) {
      for (const Touch& touch : side->streams().all[s].touches) {
        if (touch.kind == TouchKind::sinusoidal) {  // computed positions are rows like stored ones
          continue;
        }
        const bool norm = touch.kind == TouchKind::norm_reads || touch.kind == TouchKind::norm_writes;
        if (!norm || !is_rms(first, touch.module) || !is_rms(second, touch.module) ||
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

}  // namespace pare
