#include "pare/verify/drawn_seed.h"
namespace pare {
uint64_t drawn_seed(const ModelFolder&, const ModelFolder&, uint64_t seed) {
  return seed;
}
}  // namespace pare
