#include "pare/checkpoint/stored_frequencies.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

void add_stored_frequencies(nlohmann::json& config, const Weights& stored, const std::string& subject) {
  constexpr const char* names = "*rotary_embeddings.inv_freq";
  std::optional<at::Tensor> found;
  std::string first;
  for (const auto& [name, weight] : stored) {
    if (!glob_match(names, name) || weight.shape().size() != 1) {
      continue;
    }
    const at::Tensor frequencies = weight.load().to(at::kDouble);
    refuse_if(found && !at::equal(*found, frequencies),
              "{}: tensors {} and {} differ: frequencies of single layers are not supported", subject, quote(first),
              quote(name));
    first = name;
    found = frequencies;
  }
  if (!found) {
    return;
  }
  config[stored_frequencies_key] = nlohmann::json::array();
  for (int64_t i = 0; i < found->size(0); ++i) {
    config[stored_frequencies_key].push_back((*found)[i].item<double>());
  }
}

}  // namespace pare
