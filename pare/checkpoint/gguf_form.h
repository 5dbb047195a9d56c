#pragma once
// A model as a GGUF file holds it: the inverse of gguf_model.h, by the same tables.

#include <string>
#include <vector>

#include "pare/checkpoint/gguf_model.h"
#include "pare/checkpoint/model.h"

namespace pare {

struct GgufForm {
  const GgufFamily* family = nullptr;
  std::vector<GgufEntry> metadata;  // general.architecture, and all keys of it
  Weights weights;                  // by their names in the file, in the types that the model has
  std::vector<std::string> notes;   // what llama.cpp computes otherwise than the model
};

// The architecture of GGUF that is this model: what a file of it would say is written, read again and compared.
// `family`, that of the model or of what it was made from, is tried first. Refused where there is none, with every
// reason against that one or else the one that comes nearest, and then with `advice`; `subject` is what is to be
// written.
GgufForm gguf_form(const Model& model, const std::string& family, const std::string& subject,
                   const std::string& advice);

}  // namespace pare
