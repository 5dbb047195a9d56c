#include "pare/arch/count.h"

#include <vector>

#include "pare/arch/slots.h"

namespace pare {

namespace {

void add(Counts& counts, const TensorSpec& spec, int64_t times) {
  if (!spec.index) {
    const int64_t elements = times * element_count(spec.shape);
    counts.parts[spec.part] += elements;
    counts.total += elements;
  }
}

// How often each block comes: blocks that are alike and follow each other are counted once. Where a block's place
// matters, each is asked by itself.
std::vector<int64_t> take_repeats(Architecture& a) {
  if (a.layers || a.first_layer == FirstLayer::table) {
    return std::vector<int64_t>(a.blocks.size(), 1);
  }
  std::vector<int64_t> times;
  size_t kept = 0;
  for (size_t n = 0; n < a.blocks.size(); ++n) {
    if (kept > 0 && a.blocks[n] == a.blocks[kept - 1]) {
      ++times.back();
      continue;
    }
    times.push_back(1);
    if (kept != n) {
      a.blocks[kept] = a.blocks[n];
    }
    ++kept;
  }
  a.blocks.resize(kept);
  return times;
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
  Architecture kinds = architecture;
  const std::vector<int64_t> times = take_repeats(kinds);
  Counts counts;
  const Slots slots = slots_of(kinds);  // without the table's indices by name: nothing is looked up
  for (const TensorSpec& spec : slots.tensors) {
    const std::optional<int64_t>& block = spec.id.module.block;
    add(counts, spec, block ? times[*block] : 1);
  }
  return counts;
}

Counts count_block(const Architecture& architecture, int64_t block) {
  Slots slots;
  add_attention_slots(slots, architecture, block);
  if (architecture.blocks[block].mlp) {
    add_mlp_slots(slots, architecture, block);
  }
  Counts counts;
  for (const TensorSpec& spec : slots.tensors) {
    add(counts, spec, 1);
  }
  return counts;
}

int64_t cache_elements_per_token(const Architecture& architecture) {
  int64_t elements = 0;
  for (int64_t n : layer_blocks(architecture)) {
    elements += cache_elements(architecture.blocks[n].attention, architecture.width);
  }
  return elements;
}

}  // namespace pare
