#include "pare/export/gguf.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/gguf_form.h"
#include "pare/checkpoint/unused_tensors.h"
#include "pare/data/utf8.h"
#include "pare/export/gguf_encoding.h"
#include "pare/export/gguf_texts.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf_writer.h"
#include "pare/support/memory.h"
#include "pare/support/names.h"
#include "pare/support/progress.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

// Vectors, gains of norms and tables that are added stay in float32, as ggml's converter has it: its programs ask for
// that.
bool stays_float32(const std::string& name, const Shape& shape) {
  return shape.size() < 2 || !name.ends_with(".weight") || name.ends_with("_norm.weight") ||
         name == "position_embd.weight" || name == "token_types.weight";
}

GgufType type_of(const std::string& name, const Shape& shape, GgufType wanted) {
  const bool whole = static_cast<uint64_t>(shape.back()) % gguf_block(wanted)->elements == 0;
  return stays_float32(name, shape) ? GgufType::f32 : whole ? wanted : GgufType::f16;
}

uint32_t file_type(GgufType type) {  // llama.cpp's number for "mostly that"
  return type == GgufType::f32 ? 0 : type == GgufType::f16 ? 1 : type == GgufType::q8_0 ? 7 : 32;
}

// The tables first, then block by block.
std::vector<GgufDeclared> declared_of(const Weights& weights, GgufType wanted) {
  std::vector<std::pair<int64_t, GgufDeclared>> numbered;
  for (const auto& [name, weight] : weights) {
    const int64_t block = name.starts_with("blk.") ? std::stoll(name.substr(4)) : -1;
    numbered.emplace_back(block, GgufDeclared{name, type_of(name, weight.shape(), wanted), weight.shape()});
  }
  std::ranges::stable_sort(numbered, {}, [](const auto& each) { return each.first; });
  std::vector<GgufDeclared> declared;
  for (auto& [block, tensor] : numbered) {
    declared.push_back(std::move(tensor));
  }
  return declared;
}

// llama.cpp looks at names: with these in it, it asks for tokens that other models need not have.
bool may_be_named(const std::string& name) {
  std::string small = name;
  std::ranges::transform(small, small.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  const auto has = [&small](std::string_view part) { return small.find(part) != std::string::npos; };
  return !name.empty() && !invalid_utf8(name) && !has("phi3") && !has("phi-3") && !has("modern-bert");
}

std::string name_of_model(const ModelFolder& source) {
  const fs::path path = source.path.filename().empty() ? source.path.parent_path() : source.path;
  const std::string file = (path.extension() == ".gguf" ? path.stem() : path.filename()).string();
  return source.model.architecture.name.empty() ? file : source.model.architecture.name;
}

std::vector<GgufEntry> general_entries(const ModelFolder& source, GgufType type) {
  std::vector<GgufEntry> entries = {{"general.type", GgufKind::string, "model"},
                                    {"general.file_type", GgufKind::u32, file_type(type)},
                                    {"general.quantization_version", GgufKind::u32, 2}};
  if (const std::string name = name_of_model(source); may_be_named(name)) {
    entries.push_back({"general.name", GgufKind::string, name});
  }
  return entries;
}

// A tensor whose rows can be had alone is never held whole.
void write_tensor_data(GgufWriter& writer, const GgufDeclared& tensor, const Weight& weight) {
  constexpr int64_t piece = 1 << 21;  // elements
  const int64_t rows = tensor.shape.front(), row = element_count(tensor.shape) / std::max<int64_t>(rows, 1);
  if (!weight.can_load_rows() || rows * row <= piece) {
    writer.write(tensor.name, gguf_encoded(weight.load(), tensor.type, tensor.name));
    return;
  }
  // Of a vector, blocks would lie across its entries; those are in float32.
  const int64_t step = std::max<int64_t>(1, piece / row);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const at::Tensor part = weight.load_rows(begin, std::min(step, rows - begin));
    writer.write(tensor.name, gguf_encoded(part, tensor.type, tensor.name));
  }
}

void note_other_types(const std::vector<GgufDeclared>& declared, GgufType wanted, std::vector<std::string>& notes) {
  std::vector<std::string> others;
  for (const GgufDeclared& tensor : declared) {
    if (tensor.type != wanted && tensor.type != GgufType::f32) {
      others.push_back(tensor.name);
    }
  }
  if (!others.empty()) {
    notes.push_back(
        fmt::format("in float16, since its rows are no multiple of {} numbers, of which a block of {} is "
                    "made: {}",
                    gguf_block(wanted)->elements, gguf_block(wanted)->name, some_names(others)));
  }
}

}  // namespace

std::vector<std::string> write_gguf(const fs::path& file, const ModelFolder& source, GgufType type,
                                    const fs::path& tokenizer) {
  GgufForm form = gguf_form(source.model, source.family, quote(shown(source.path)));
  GgufTexts texts = gguf_texts(tokenizer, source.path, source.model.architecture.vocab);
  std::vector<std::string> notes = std::move(form.notes);
  notes.insert(notes.end(), texts.notes.begin(), texts.notes.end());

  std::vector<GgufEntry> metadata = std::move(form.metadata);
  for (std::vector<GgufEntry> more : {general_entries(source, type), std::move(texts.entries)}) {
    std::ranges::move(more, std::back_inserter(metadata));
  }
  const std::vector<GgufDeclared> declared = declared_of(form.weights, type);
  note_other_types(declared, type, notes);
  uint64_t total = 0;
  for (const GgufDeclared& tensor : declared) {
    total += gguf_bytes(tensor);
  }
  Progress progress("writing", total, Progress::Unit::bytes);
  const PromptlyFreed promptly;
  GgufWriter writer(file, metadata, declared);
  for (const GgufDeclared& tensor : declared) {
    write_tensor_data(writer, tensor, form.weights.at(tensor.name));
    progress.advance(gguf_bytes(tensor));
  }
  writer.finish();
  return notes;
}

}  // namespace pare
