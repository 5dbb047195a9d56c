#include "pare/checkpoint/not_a_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "pare/arch/presets.h"
#include "pare/checkpoint/pytorch_file.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr const char* a_model = "a model is a folder with config.json and weights, or a GGUF file";

bool is_model(const fs::path& folder) {
  return path_exists(folder / "config.json");
}

// Sorted; hidden files are nobody's model.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(".")) {
      found.push_back(entry->path());
    }
  }
  if (error) {
    fail_io("list", folder, error.value());
  }
  std::ranges::sort(found);
  return found;
}

// The folders of models in a folder, also one level further down (organisation/model).
std::vector<fs::path> models_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::path& entry : entries(folder)) {
    if (!is_folder(entry)) {
      continue;
    }
    if (is_model(entry)) {
      found.push_back(entry);
      continue;
    }
    for (const fs::path& inner : entries(entry)) {
      if (is_folder(inner) && is_model(inner)) {
        found.push_back(inner);
      }
    }
  }
  return found;
}

// The Hugging Face cache keeps a model as models--ORG--NAME/snapshots/REVISION, and refs/main names the revision in
// use.
std::vector<fs::path> snapshots_of(const fs::path& cached) {
  if (!is_folder(cached / "snapshots")) {
    return {};
  }
  std::ifstream ref(cached / "refs" / "main");
  std::string revision;
  if (std::getline(ref, revision) && !revision.empty() && is_folder(cached / "snapshots" / revision)) {
    return {cached / "snapshots" / revision};
  }
  return entries(cached / "snapshots");
}

std::vector<fs::path> cached_models(const fs::path& folder) {
  std::vector<fs::path> found = snapshots_of(folder);
  for (const char* below : {"", "hub"}) {  // the cache's own folder, or the one around it
    const fs::path hub = folder / below;
    if (!found.empty() || !is_folder(hub)) {
      continue;
    }
    for (const fs::path& entry : entries(hub)) {
      if (entry.filename().string().starts_with("models--")) {
        const std::vector<fs::path> inner = snapshots_of(entry);
        found.insert(found.end(), inner.begin(), inner.end());
      }
    }
  }
  return found;
}

std::string quoted_list(const std::vector<fs::path>& paths) {
  constexpr size_t shown = 10;
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(paths.size(), shown); ++i) {
    words.push_back(quote(paths[i].string()));
  }
  return fmt::format("{}{}", fmt::join(words, ", "),
                     paths.size() > shown ? fmt::format(" and {} more", paths.size() - shown) : "");
}

[[noreturn]] void refuse_file(const fs::path& file) {
  const std::string subject = quote(file.string());
  if (const std::optional<std::string> advice = other_format(file)) {
    throw InputError(fmt::format("{} {}", subject, *advice));
  }
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  refuse_if(is_model(folder), "{} is one file of a model: give its folder, {}", subject, quote(folder.string()));
  refuse_if(file.extension() == ".safetensors" || is_pytorch_name(file),
            "{} is weights without a config.json beside it; {}", subject, a_model);
  throw InputError(fmt::format("{} is not a folder; {}", subject, a_model));
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string subject = quote(folder.string());
  const std::vector<fs::path> files = entries(folder);
  refuse_if(files.empty(), "{} is an empty folder; {}", subject, a_model);
  if (const std::vector<fs::path> cached = cached_models(folder); !cached.empty()) {
    throw InputError(fmt::format("{} is a place in the Hugging Face cache, and the model lies in {}{}", subject,
                                 cached.size() > 1 ? "one of " : "", quoted_list(cached)));
  }
  if (const std::vector<fs::path> models = models_in(folder); !models.empty()) {
    throw InputError(fmt::format("{} is a folder of models and not a model: did you mean {}{}?", subject,
                                 models.size() > 1 ? "one of " : "", quoted_list(models)));
  }
  std::vector<fs::path> ggufs;
  std::ranges::copy_if(files, std::back_inserter(ggufs),
                       [](const fs::path& file) { return file.extension() == ".gguf"; });
  refuse_if(!ggufs.empty(), "{} holds several GGUF files: name one of {}", subject, quoted_list(ggufs));
  for (const fs::path& file : files) {
    if (const std::optional<std::string> advice = other_format(file)) {
      throw InputError(fmt::format("{} has no config.json; {} {}", subject, quote(file.filename().string()), *advice));
    }
  }
  for (const fs::path& file : files) {
    if (file.extension() == ".safetensors" || is_pytorch_name(file)) {
      throw InputError(
          fmt::format("{} has {} but no config.json, which says what the weights are: download that file too", subject,
                      quote(file.filename().string())));
    }
  }
  throw InputError(fmt::format("{} has no config.json; {}", subject, a_model));
}

// What a path that is not there was probably meant to be, in the folder that is; nothing where that is not there
// either.
std::string sibling_like(const fs::path& path) {
  const fs::path folder = path.parent_path();
  if (folder.empty() || !is_folder(folder)) {
    return "";
  }
  const std::vector<std::string> names =
      mapped(entries(folder), [](const fs::path& entry) { return entry.filename().string(); });
  const std::string near = nearest(path.filename().string(), names);
  return near.empty() ? "" : (folder / near).string();
}

bool is_hub_word(std::string_view word) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  return !word.empty() && letters.find(word.front()) != std::string_view::npos &&
         std::ranges::all_of(word, [=](char c) {
           return letters.find(c) != std::string_view::npos || c == '_' || c == '.' || c == '-';
         });
}

// NAME or ORGANISATION/NAME, of such a word or of an address on the hub; empty for what is neither.
std::string hub_name(std::string_view word) {
  bool address = false;
  for (const std::string_view prefix : {"https://", "http://", "www.", "huggingface.co/", "hf.co/"}) {
    if (word.starts_with(prefix)) {
      word.remove_prefix(prefix.size());
      address = true;
    }
  }
  const size_t slash = word.find('/');
  if (slash == std::string_view::npos) {
    return is_hub_word(word) ? std::string(word) : "";
  }
  const std::string_view rest = word.substr(slash + 1), second = rest.substr(0, rest.find('/'));
  const bool whole = address || second == rest;
  return whole && is_hub_word(word.substr(0, slash)) && is_hub_word(second)
             ? fmt::format("{}/{}", word.substr(0, slash), second)
             : "";
}

}  // namespace

std::optional<std::string> other_format(const fs::path& file) {
  const std::string extension = file.extension().string();
  if (extension == ".gguf") {
    return "is GGUF, a model by itself that needs no config.json: give that file";
  }
  constexpr std::pair<std::string_view, std::string_view> formats[] = {
      {".onnx",
       "is ONNX, a program and not a checkpoint, which pare does not read: take the checkpoint that it was made "
       "from, with config.json and weights"},
      {".h5",
       "is weights of TensorFlow, which pare does not read: load the model with transformers 4 and from_tf=True, "
       "and save it again with save_pretrained, which writes safetensors"},
      {".msgpack",
       "is weights of Flax, which pare does not read: load the model with transformers 4 and from_flax=True, "
       "and save it again with save_pretrained, which writes safetensors"},
      {".ckpt",
       "is the checkpoint of a trainer, which pare does not read: load the model with what trained it, and save "
       "its state_dict() with torch.save, or the model with save_pretrained"},
  };
  for (const auto& [ending, advice] : formats) {
    if (extension == ending) {
      return std::string(advice);
    }
  }
  return std::nullopt;
}

std::string hub_hint(const std::string& word) {
  if (const std::string sibling = sibling_like(word); !sibling.empty()) {
    return fmt::format("; did you mean {}?", quote(sibling));
  }
  const std::string name = hub_name(word);
  if (name.empty()) {
    return "";
  }
  const std::string folder = name.substr(name.rfind('/') + 1);
  return fmt::format(
      ". Is it a model on the Hugging Face hub? pare never downloads: 'hf download {} --local-dir {}' does, and then "
      "give the folder {}",
      name, folder, folder);
}

void refuse_not_a_model(const fs::path& path) {
  if (is_folder(path)) {
    refuse_folder(path);
  }
  if (path_exists(path)) {
    refuse_file(path);
  }
  const std::string word = path.string();
  const std::string preset =
      find_preset(word)
          ? fmt::format(". The preset {} has no weights: 'pare init {} -o FOLDER' draws random ones", word, word)
          : "";
  throw InputError(fmt::format("{} is not there; {}{}{}", quote(word), a_model, preset, hub_hint(word)));
}

}  // namespace pare
