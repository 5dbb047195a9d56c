#pragma once
// What attention.cpp and mlp.cpp each say of their kind of sublayer, for those who put a model together of them:
// its fields as JSON, and the rules it must obey. What it stores is declared in slots.h.

#include "pare/arch/architecture.h"
#include "pare/arch/rules.h"

namespace pare {

class JsonReader;
class JsonWriter;

void describe(JsonReader& io, Norm& norm);
void describe(JsonWriter& io, Norm& norm);
void describe(JsonReader& io, Rope& rope);
void describe(JsonWriter& io, Rope& rope);
void describe(JsonReader& io, Attention& attention);
void describe(JsonWriter& io, Attention& attention);
void describe(JsonReader& io, Mlp& mlp);
void describe(JsonWriter& io, Mlp& mlp);

// `path` ends in a dot: "blocks[2].attention.". `width` is the model's.
void check_norm(Rules& rules, const std::string& path, const std::optional<Norm>& norm, bool may_be_post);
void check_rope(Rules& rules, const std::string& path, const Rope& rope, int64_t head_width);
void check_attention(Rules& rules, const std::string& path, const Block& block, int64_t width);
void check_mlp(Rules& rules, const std::string& path, const Block& block);

}  // namespace pare
