// Reads safetensors and writes them again, for tests/conformance/safetensors_interop.py.
//   safetensors_copy FILE OUT                   bytes in, bytes out: every dtype of the format
//   safetensors_copy FOLDER OUT SHARD_BYTES     through tensors, as commands do

#include <fmt/format.h>

#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/weights.h"

namespace {

void copy_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  pare::SafetensorsFile file(from);
  std::map<std::string, pare::SafetensorsWriter::Declared> tensors;
  for (const auto& [name, tensor] : file.tensors()) {
    tensors[name] = {tensor.dtype, tensor.shape};
  }
  pare::SafetensorsWriter writer(to, tensors, file.metadata());
  for (const auto& [name, tensor] : file.tensors()) {
    std::vector<std::byte> bytes(tensor.end - tensor.begin);
    file.read(name, 0, bytes);
    writer.write(name, bytes);
  }
  writer.finish();
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count == 3) {
      copy_file(words[1], words[2]);
    } else if (count == 4) {
      pare::write_weights(words[2], pare::open_weights(words[1]), std::stoull(words[3]));
    } else {
      fmt::print(stderr, "safetensors_copy FILE OUT, or FOLDER OUT SHARD_BYTES\n");
      return 1;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
