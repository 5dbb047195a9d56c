#pragma once
// The Python beside a native model with which transformers runs it: one file, pare/export/python/modeling_pare.py, the
// same for every model.

#include <string_view>

#include "pare/arch/architecture.h"

namespace pare {

constexpr const char* modeling_name = "modeling_pare.py";
constexpr std::string_view modeling_module = "modeling_pare";

std::string_view modeling_code();

// The classes there: of a model, and of transformers that opens it. {"PareForCausalLM", "AutoModelForCausalLM"}
struct ModelingClass {
  std::string_view ours, automatic;
};
ModelingClass modeling_class(const Architecture& architecture);

}  // namespace pare
