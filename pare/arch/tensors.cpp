#include "pare/arch/tensors.h"

#include <utility>

#include "pare/arch/slots.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"

namespace pare {

TensorTable::TensorTable(std::vector<TensorSpec> specs) : specs_(std::move(specs)) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    by_id_[specs_[i].id] = i;
    by_name_[specs_[i].name] = i;
  }
}

const TensorSpec* TensorTable::find(const TensorId& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &specs_[found->second];
}

const TensorSpec* TensorTable::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &specs_[found->second];
}

const TensorSpec& TensorTable::at(const TensorId& id) const {
  const TensorSpec* found = find(id);
  PARE_CHECK(found, "no tensor " + name_of(id));
  return *found;
}

const TensorSpec& TensorTable::at(const std::string& name) const {
  const TensorSpec* found = find(name);
  PARE_CHECK(found, "no tensor " + name);
  return *found;
}

TensorTable tensor_table(const Architecture& architecture) {
  check_interrupt();  // as in find_streams
  return TensorTable(slots_of(architecture).tensors);
}

const char* word(Part part) {
  switch (part) {
    case Part::embedding:
      return "embedding";
    case Part::query:
      return "query";
    case Part::key:
      return "key";
    case Part::value:
      return "value";
    case Part::output:
      return "output";
    case Part::query_key:
      return "query_key";
    case Part::value_output:
      return "value_output";
    case Part::gate:
      return "gate";
    case Part::shape:
      return "shape";
    case Part::mlp:
      return "mlp";
    case Part::norm:
      return "norm";
    case Part::bias:
      return "bias";
    case Part::head:
      return "head";
  }
  PARE_UNREACHABLE("a part without a name");
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) {
    PARE_CHECK(!__builtin_mul_overflow(count, size, &count), "validate() bounds every shape");
  }
  return count;
}

}  // namespace pare
