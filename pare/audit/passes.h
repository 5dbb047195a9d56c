#pragma once
// The part of `audit` that asks every pass: what can go, what it costs, and if not, why not.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pare/rewrite/pipeline.h"

namespace pare {

// usual: condition numbers where a pass could use them, and where they take seconds, not minutes
enum class Measure { usual, always };

struct PassAudit {
  std::vector<PassStep> alone;  // every pass on the model as it is
  Pipeline together;            // what saves, one after another
  bool measured = false;        // condition numbers are there
  bool skipped = false;         // they could be, but would take long
  Dtype dtype = Dtype::f32;     // the bytes are counted in
  int64_t parameters = 0;
};

// `dtype`: what the model is stored in, or would be.
PassAudit audit_passes(const Model& model, Dtype dtype, Measure measure);

// What the passes that save remove together.
int64_t saved_together(const PassAudit& audit);

std::string text_of(const PassAudit& audit);
void add_json(nlohmann::ordered_json& json, const PassAudit& audit);

}  // namespace pare
