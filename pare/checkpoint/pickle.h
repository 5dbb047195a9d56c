#pragma once
// Pickles of tensors, as torch.save writes them: dicts, lists, plain values and tensors. Nothing in them is run, and a
// name of any other Python object is refused.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "pare/checkpoint/dtype.h"

namespace pare {

// Values refer to each other by their place in one list: nothing to follow in circles, nothing to free in a chain.
using PickleIndex = uint32_t;

struct PickledStorage {
  std::string key;             // the name of its bytes
  std::optional<Dtype> dtype;  // none: untyped, and counted in bytes
  uint64_t count = 0;
};
struct PickledTensor {
  PickledStorage storage;
  Dtype dtype = Dtype::f32;
  uint64_t offset = 0;  // in elements, as the strides
  std::vector<int64_t> shape, strides;
};
struct PickledTuple {
  std::vector<PickleIndex> items;
};
struct PickledList {
  std::vector<PickleIndex> items;
};
struct PickledDict {
  std::vector<std::pair<PickleIndex, PickleIndex>> entries;  // as they were set: a key may be there twice
};
struct PickledGlobal {
  std::string name;  // one that is known
};
struct PickledOther {};  // bytes, floats and whole numbers too large to be a size: told apart by nobody
using PickleValue = std::variant<std::monostate, bool, int64_t, std::string, PickledOther, PickledTuple, PickledList,
                                 PickledDict, PickledGlobal, PickledStorage, PickledTensor>;

struct Pickle {
  std::vector<PickleValue> values;
  PickleIndex root = 0;
  size_t end = 0;  // bytes that it took

  const PickleValue& at(PickleIndex index) const { return values.at(index); }
};

constexpr uint64_t longest_pickle = 64 << 20;

// The pickle that `bytes` begin with. InputError that names the byte and what stands there; for a Python object, its
// name. Strides and sizes are whole numbers that are not negative, and nothing else is known of them. Pure, for the
// fuzzer and the tests.
Pickle parse_pickle(std::string_view bytes, const std::string& subject);

std::string_view kind_of(const PickleValue& value);  // "a dict"

}  // namespace pare
