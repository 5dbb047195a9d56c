#pragma once
// What a model is to become, in as few words as that takes: an Architecture written out, a word that names one, or
// only what changes of the source.

#include <nlohmann/json.hpp>
#include <string>

#include "pare/train/config.h"

namespace pare {

// Changes are the Architecture's own keys, as deep as they lie, numbers or * for the entries of a list, of blocks
// the number that their tensors have; and three words
// for all places at once: "norms": "none", "attention": {...} and "mlp": {...} of every block.
// InputError where the result is no Architecture.
Architecture morph_target(const Architecture& source, const nlohmann::json& to, const std::string& subject,
                          const FindArchitecture& find);

// The entry of a list that a part of a key names. InputError "SUBJECT: ..." where there is none.
nlohmann::json& entry_at(nlohmann::json& list, const std::string& part, const std::string& subject);

}  // namespace pare
