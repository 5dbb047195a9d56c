#pragma once
// The Architecture's JSON: reading lists every problem with its path, writing gives every key in one fixed order.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "pare/arch/architecture.h"

namespace pare {

// Reads and validates. InputError with every problem, each under its path: blocks[2].attention.kv_heads: ...
Architecture architecture_from_json(const nlohmann::json& json, const std::string& subject);
nlohmann::ordered_json architecture_to_json(const Architecture& architecture);

// The text that is stored: two spaces of indent and a newline at the end; equal values give equal bytes.
std::string architecture_text(const Architecture& architecture);

// The word of an enumerator, as in the JSON.
const char* word(Task task);
const char* word(Activation activation);
const char* word(NormKind kind);

// The list of blocks with an entry for each: one may stand for several that are alike (repeat). Entry N is then block
// N, as tensors are named. What is no list of blocks stays as it is, for whoever reads it to say.
void unfold_blocks(nlohmann::json& blocks);

}  // namespace pare
