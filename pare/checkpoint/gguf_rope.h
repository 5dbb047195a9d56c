#pragma once
// How heads turn, as GGUF says it: some keys of the metadata, and a tensor of factors. Both ways, beside each other.

#include <ATen/core/Tensor.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/arch/rope.h"
#include "pare/support/gguf_writer.h"

namespace pare {

// By which wavelengths grow. No part of the weights: the configuration says it.
constexpr const char* rope_factors_name = "rope_freqs.weight";

// The rope_parameters of a config.json, of the keys of an architecture, which are taken out of `left`.
nlohmann::json rope_of_gguf(std::map<std::string, nlohmann::json>& left, int64_t head_width);
// Adds to a config.json what the factors of a file say.
void add_rope_factors(nlohmann::json& config, const at::Tensor& stored, const std::string& subject);

// The keys, without the architecture before them. What they cannot say, or what llama.cpp does not read, is left out:
// reading them again shows it.
std::vector<GgufEntry> gguf_of_rope(const Rope& rope);
// The factors, where the scaling is one that these can say; in float32.
std::optional<at::Tensor> factors_of_rope(const Rope& rope, int64_t context);

}  // namespace pare
