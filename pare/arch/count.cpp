#include "pare/arch/count.h"

#include <functional>

#include "pare/arch/slots.h"

namespace pare {

namespace {

Counts count_if(const Architecture& architecture, const std::function<bool(const TensorSpec&)>& counted) {
  Counts counts;
  const Slots slots = slots_of(architecture);  // without the table's indices by name: nothing is looked up
  for (const TensorSpec& spec : slots.tensors) {
    if (spec.index || !counted(spec)) {
      continue;
    }
    const int64_t elements = element_count(spec.shape);
    counts.parts[spec.part] += elements;
    counts.total += elements;
  }
  return counts;
}

int64_t cache_elements(const Attention& attention, int64_t width) {
  if (attention.mask == Mask::full) {
    return 0;
  }
  const int64_t kv_width = attention.kv_heads * attention.head_width;
  if (attention.remembered == Remembered::inputs) {
    return width;
  }
  if (is<FromKey>(attention.value) || is<FromValue>(attention.key)) {
    return kv_width;
  }
  // Collapsed scores and values both read the input itself, which is then cached once.
  const bool keys_are_inputs = attention.scores == Form::collapsed;
  const bool values_are_inputs = attention.values == Form::collapsed;
  const int64_t inputs = keys_are_inputs || values_are_inputs ? width : 0;
  return inputs + (keys_are_inputs ? 0 : kv_width) + (values_are_inputs ? 0 : kv_width);
}

}  // namespace

Counts count(const Architecture& architecture) {
  return count_if(architecture, [](const TensorSpec&) { return true; });
}

Counts count_block(const Architecture& architecture, int64_t block) {
  return count_if(architecture, [block](const TensorSpec& spec) { return spec.id.module.block == block; });
}

int64_t cache_elements_per_token(const Architecture& architecture) {
  int64_t elements = 0;
  for (int64_t n : layer_blocks(architecture)) {
    elements += cache_elements(architecture.blocks[n].attention, architecture.width);
  }
  return elements;
}

}  // namespace pare
