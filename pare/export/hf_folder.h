#pragma once
// A model as a folder that transformers opens.

#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/rewrite/write.h"

namespace pare {

struct HfFolder {
  Prepared prepared;
  std::string family;
  std::vector<std::string> notes;
};

// `family`: a word of it, "pare" for pare's own code, or empty: the source's own where it has one, else the first that
// can say the model and computes it exactly, else pare's own code.
HfFolder prepare_hf(const ModelFolder& source, const std::string& family, const std::optional<Dtype>& dtype);

// The stock families that can say a model exactly, in alphabetical order.
std::vector<const Family*> families_that_say(const Architecture& architecture);

}  // namespace pare
