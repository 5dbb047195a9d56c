#pragma once
// Taps: record or replace any named intermediate of a forward pass, by glob.
// Names: residual.L, residual.L.mid,
// blocks.L.attention.{input,query,key,value,scores,probabilities,shape,heads,gate,output},
// blocks.L.mlp.{input,up,gate,hidden,probabilities,output}, final, pooled, logits, sequence_logits. L counts layers in
// running order.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pare {

class Taps {
 public:
  using Replace = std::function<at::Tensor(const std::string& name, const at::Tensor& value)>;

  void record(std::string glob);
  void replace(std::string glob, Replace function);

  // Whether anything asks for this name: the executor takes the explicit path where scores are wanted.
  bool wants(const std::string& name) const;
  // Called by the executor: replaces, then records, and hands back what the computation goes on with.
  at::Tensor touch(const std::string& name, at::Tensor value);

  const std::map<std::string, at::Tensor>& recorded() const { return recorded_; }
  void clear() { recorded_.clear(); }

 private:
  std::vector<std::string> globs_;
  std::vector<std::pair<std::string, Replace>> replacements_;
  std::map<std::string, at::Tensor> recorded_;
};

}  // namespace pare
