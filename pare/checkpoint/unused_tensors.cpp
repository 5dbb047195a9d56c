#include "pare/checkpoint/unused_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/family.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

static bool is_same(const UnusedTensor& a, const UnusedTensor& b) {
  if (a.tensor().dtype != b.tensor().dtype || a.tensor().shape != b.tensor().shape) {
    return false;
  }
  std::vector<std::byte> one(1 << 20), other(1 << 20);
  for (uint64_t offset = 0; offset < a.bytes();) {
    check_interrupt();
    const size_t piece = static_cast<size_t>(std::min<uint64_t>(one.size(), a.bytes() - offset));
    a.file.read(a.stored, offset, std::span(one).first(piece));
    b.file.read(b.stored, offset, std::span(other).first(piece));
    if (std::memcmp(one.data(), other.data(), piece) != 0) {
      return false;
    }
    offset += piece;
  }
  return true;
}

UnusedTensors unused_tensors(const Family& family, const Architecture& architecture,
                             const std::vector<TensorFile>& files) {
  const std::map<std::string, UnusedName> names = unused_names(family, architecture, weights_of(files));
  UnusedTensors tensors;
  for (const TensorFile& file : files) {
    for (const auto& [stored, tensor] : file.tensors()) {
      if (const auto found = names.find(stored); found != names.end()) {
        tensors.emplace(found->second.name, UnusedTensor{file, stored, found->second.copy_of});
      }
    }
  }
  return tensors;
}

bool read_hidden_states(const UnusedTensors& tensors, int64_t width) {
  return std::ranges::any_of(tensors, [width](const auto& entry) {
    const StoredTensor& tensor = entry.second.tensor();
    return entry.second.copy_of.empty() && !word(tensor.dtype).empty() && tensor.shape.size() == 2 &&
           tensor.shape[1] == width;
  });
}

uint64_t bytes_of(const UnusedTensors& tensors) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += tensor.bytes();
  }
  return bytes;
}

UnusedDifference compare_unused(const UnusedTensors& reference, const UnusedTensors& candidate) {
  UnusedDifference difference;
  for (const auto& [name, tensor] : reference) {
    if (!tensor.copy_of.empty()) {
      continue;
    }
    const auto other = candidate.find(name);
    if (other == candidate.end()) {
      difference.only_reference.push_back(name);
    } else if (!is_same(tensor, other->second)) {
      difference.different.push_back(name);
    }
  }
  for (const auto& [name, tensor] : candidate) {
    if (tensor.copy_of.empty() && !reference.contains(name)) {
      difference.only_candidate.push_back(name);
    }
  }
  return difference;
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t most = 8;
  std::vector<std::string> first;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) {
    first.push_back(escaped(names[i]));
  }
  return fmt::format("{}{}", fmt::join(first, ", "),
                     names.size() > most ? fmt::format(" and {} more", names.size() - most) : "");
}

std::vector<std::string> lines_of(const UnusedTensors& tensors) {
  std::vector<std::string> unread, copies;
  uint64_t unread_bytes = 0, copied_bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    (tensor.copy_of.empty() ? unread : copies).push_back(name);
    (tensor.copy_of.empty() ? unread_bytes : copied_bytes) += tensor.bytes();
  }
  std::vector<std::string> lines;
  if (!unread.empty()) {
    lines.push_back(fmt::format("{} not used by this model: {}", human_bytes(unread_bytes), some_names(unread)));
  }
  if (!copies.empty()) {
    lines.push_back(
        fmt::format("{} of tied tensors, stored a second time: {}", human_bytes(copied_bytes), some_names(copies)));
  }
  return lines;
}

nlohmann::ordered_json to_json(const UnusedTensors& tensors) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [name, tensor] : tensors) {
    list.push_back({{"name", name},
                    {"dtype", dtype_name(tensor.tensor().dtype)},
                    {"shape", tensor.tensor().shape},
                    {"bytes", tensor.bytes()},
                    {"copy_of", nullptr}});
    if (!tensor.copy_of.empty()) {
      list.back()["copy_of"] = tensor.copy_of;
    }
  }
  return list;
}

nlohmann::ordered_json to_json(const UnusedDifference& difference) {
  return {{"only_reference", difference.only_reference},
          {"only_candidate", difference.only_candidate},
          {"different", difference.different}};
}

}  // namespace pare
