#pragma once
// What is about to be written, and what each pass comes to in it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/companions.h"
#include "pare/rewrite/compatible.h"
#include "pare/rewrite/pipeline.h"
#include "pare/rewrite/write.h"

namespace pare {

struct Plan {
  WrittenForm form = WrittenForm::strict;
  Prepared prepared;
  std::vector<StoredChange> changes;  // of each step of the pipeline
  int64_t neutral = 0;                // all that the compat form makes ones, zeros or identities
  Companions companions;              // what goes along, and what stays behind
};

// Refused where the form cannot say the result. Computes only what the compat form has to look at.
Plan plan_writing(const ModelFolder& source, const Pipeline& pipeline, WrittenForm form,
                  const std::optional<Dtype>& dtype, Companions companions);

uint64_t bytes_of(const Plan& plan);  // that the output will take, without headers

const char* word(WrittenForm form);
std::string what_it_is(const Plan& plan, const Pipeline& pipeline);  // one line for people

}  // namespace pare
