#pragma once
// Files of torch.save: pytorch_model.bin, .pt, .pth. The archive of PyTorch 1.6 and later, and what was written before.
// Nothing in them is run.

#include <filesystem>
#include <string>

#include "pare/checkpoint/tensor_file.h"
#include "pare/checkpoint/zip_file.h"

namespace pare {

// Where each tensor of the state dict lies, checked whole: storages are as large as they should be, and tensors within
// them. The state dict is the whole file, or the one dict in it that holds tensors. Pure, for the fuzzer and the tests.
TensorHeader parse_pytorch(const PlacedBytes& file, const std::string& subject);

class PytorchFile : public TensorFile {
 public:
  explicit PytorchFile(const std::filesystem::path& path);
};

bool is_pytorch_name(const std::filesystem::path& file);  // .bin, .pt, .pth; but no tokenizer, nor what training keeps

}  // namespace pare
