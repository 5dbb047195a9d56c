#pragma once
// A rewritten model on its way to disk: rounded once, in our form or in that of its source, with what belongs to it.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/companions.h"
#include "pare/checkpoint/family.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/passes/pass.h"
#include "pare/rewrite/explain.h"

namespace pare {

enum class WrittenForm {
  strict,  // native: what was removed has no tensor
  compat,  // the source family's own layout, every tensor present, for any stock engine
};

// Everything but the writing.
struct Prepared {
  std::string config;
  // Its weights are under the names of the form; in compat also copies of tied ones, where the source has them.
  Model model;
  Explanation explanation;
  std::map<std::string, CopiedTensor> copied = {};  // compat only: what the source's files hold and no pass looks at
  bool own_code = false;  // transformers is to run it, with the Python of pare/checkpoint/modeling_code.h
};

// Refused where the source's family cannot express the result. Without a type each tensor keeps the one that it, or
// most of the model, was stored in.
Prepared prepare(const ModelFolder& source, const Model& after, WrittenForm form, const std::optional<Dtype>& dtype);

// The same model in the files of a family, which may be another than its source's, or the native one. Keys of the
// source's config.json that a family does not say stay where it is the source's own.
Prepared prepare_as(const Family& family, const ModelFolder& source, const Model& model,
                    const std::optional<Dtype>& dtype);

// A GGUF file has its tokenizer within, where no copy of files takes it along.
std::vector<std::string> warnings_of_tokenizer(const ModelFolder& source);

// Into a folder that exists. Hands back the SHA-256 of each companion that was copied.
std::map<std::string, std::string> write_prepared(const std::filesystem::path& folder, const ModelFolder& source,
                                                  const Prepared& prepared, const Companions& companions,
                                                  uint64_t shard_bytes);

}  // namespace pare
