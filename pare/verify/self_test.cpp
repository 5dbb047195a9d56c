#include "pare/verify/self_test.h"
namespace pare {
std::vector<SelfTest> test_check(const ComparedModel&, const ComparedModel&, const Sample&, double, uint64_t,
                                 const std::function<bool(const Comparison&)>&) {
  return {};
}
}  // namespace pare
