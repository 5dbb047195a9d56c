#pragma once
// What a norm is, wherever one stands.

#include "pare/arch/kinds.h"

namespace pare {

struct Norm {
  NormKind kind = NormKind::rms;
  NormPlace place = NormPlace::pre;  // post: after the skip is added; of queries and keys: after they are turned
  double epsilon = 1e-5;
  bool gain = true;
  bool bias = false;
  double offset = 0;  // added to the stored gain: Gemma stores w and multiplies by 1 + w
  double factor = 1;  // of a scale: x -> factor x g + b
  bool operator==(const Norm&) const = default;
};

}  // namespace pare
