#pragma once
// Every operator that pare writes, as ONNX defines it, over libtorch's tensors. Nothing here knows of transformers: a
// graph that is run by these says what its file says, and not what its writer meant.

#include <ATen/core/Tensor.h>

#include <set>
#include <span>
#include <string>
#include <vector>

#include "pare/export/onnx_file.h"

namespace pare {

class OnnxCall {
 public:
  // Floats narrower than `least` are computed in it.
  OnnxCall(const OnnxNode& node, std::span<const at::Tensor> inputs, at::ScalarType least)
      : node_(node), inputs_(inputs), least_(least) {}

  const at::Tensor& input(size_t number) const;
  size_t count() const { return inputs_.size(); }
  std::span<const at::Tensor> inputs() const;
  std::vector<int64_t> integers(size_t number) const;  // of an input without axes, or with one
  int64_t integer(size_t number) const;
  int64_t integer(const char* attribute, int64_t otherwise) const;
  double real(const char* attribute, double otherwise) const;
  std::string text(const char* attribute, const char* otherwise) const;
  std::vector<int64_t> list(const char* attribute) const;
  at::ScalarType float_type(at::ScalarType own) const;
  at::ScalarType least() const { return least_; }
  // InputError where the file said more than was asked for: it might mean something else.
  void check_all_asked() const;

 private:
  const OnnxAttribute* find(const char* name) const;
  const OnnxNode& node_;
  std::span<const at::Tensor> inputs_;
  at::ScalarType least_;
  mutable std::set<const void*> asked_;  // inputs and attributes
};

bool knows_operator(const std::string& op);
// Its inputs may be narrower than what is computed in: tensors that would take too much memory if they were not.
bool takes_as_stored(const std::string& op);
// Of what an operator gives, by what goes in: as the file says, whatever it is computed in.
OnnxType result_type(const OnnxNode& node, std::span<const OnnxType> inputs);
// InputError, naming the node, where its inputs do not fit it.
at::Tensor run_operator(const OnnxNode& node, std::span<const at::Tensor> inputs, at::ScalarType least);

// In which type floats of a file are computed where no float may be narrower than `least`.
at::ScalarType wider_of(at::ScalarType type, at::ScalarType least);

}  // namespace pare
