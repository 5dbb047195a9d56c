#include "pare/checkpoint/companions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "pare/checkpoint/family.h"
#include "pare/checkpoint/modeling_code.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/json.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/sha256.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr size_t deepest = 16, most_entries = 20'000, most_named = 10;

constexpr std::string_view training = "training state, which fits the original's weights only";
constexpr std::string_view adapter = "an adapter, which fits the original's weights only";
constexpr std::string_view other_weights = "named like weights, which would still be the original's";
constexpr std::string_view other_model = "a model of its own";
constexpr std::string_view hidden = "hidden";
constexpr std::string_view outside_link =
    "a link that leaves the model's folder; --follow-links copies what it leads to";
constexpr std::string_view folder_link = "a link to a folder";
constexpr std::string_view odd_name = "its name has other characters than text has";
constexpr std::string_view no_file = "no regular file, nor a link to one";

constexpr std::string_view training_names[] = {"optimizer*", "scheduler.*",        "scaler.*",
                                               "rng_state*", "trainer_state.json", "training_args.bin"};
constexpr std::string_view llama2c_tokenizer = "tok*.bin";
constexpr std::string_view weight_names[] = {
    "*.safetensors",
    "*.safetensors.index.json",
    "*.bin",
    "*.bin.index.json",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.gguf",
    "*.onnx",
    "*.onnx_data",
    "*.h5",
    "*.h5.index.json",
    "*.msgpack",
    "*.ot",
    "*.mlmodel",
    "*.npz",
    "*.msgpack.index.json",
};

template <size_t count>
bool is_like(const std::string& name, const std::string_view (&patterns)[count]) {
  return std::any_of(std::begin(patterns), std::end(patterns),
                     [&](std::string_view pattern) { return glob_match(pattern, name); });
}

// Why a file of this name stays behind, or nothing.
std::string_view reason_against(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (is_like(name, training_names)) {
    return training;
  }
  if (glob_match("adapter_*", name)) {
    return adapter;
  }
  return is_like(name, weight_names) && !glob_match(llama2c_tokenizer, name) ? other_weights : std::string_view();
}

// Configuration, weights and certificate of the model itself, which the new one replaces by its own.
std::set<std::string> own_files(const ModelFolder& model) {
  std::set<std::string> names = {"config.json", "certificate.json"};
  for (const TensorFile& file : model.stored.files) {
    names.insert(file.path().filename().string());
  }
  for (const GgufFile& file : model.gguf) {
    names.insert(file.path().filename().string());
  }
  if (model.stored.index) {
    names.insert(model.stored.index->name);
  }
  if (model.family == native_family().model_type) {
    names.insert(modeling_name);  // written anew where it is still needed
  }
  return names;
}

// sentence-transformers lists in modules.json what is applied to the model's output, each in a folder of its own. The
// output does not change, so these stay right with all their weights.
std::set<fs::path> pipeline_folders(const fs::path& folder) {
  std::set<fs::path> folders;
  std::error_code missing;
  if (!fs::is_regular_file(folder / "modules.json", missing)) {
    return folders;
  }
  nlohmann::json modules;
  try {
    modules = parse_json(read_text_file(folder / "modules.json", 1 << 20), "modules.json");
  } catch (const InputError&) {
    return folders;  // a file like any other, then
  }
  for (const nlohmann::json& module : modules.is_array() ? modules : nlohmann::json::array()) {
    if (module.is_object() && module.contains("path") && module.at("path").is_string()) {
      fs::path path = fs::path(module.at("path").get<std::string>() + "/").lexically_normal().parent_path();
      if (!path.empty() && path != ".") {  // that is the model itself
        folders.insert(std::move(path));
      }
    }
  }
  return folders;
}

class Search {
 public:
  Search(const ModelFolder& model, OutsideLinks links)
      : folder_(model.path),
        real_(real_path(model.path)),
        follow_(links == OutsideLinks::follow),
        own_(own_files(model)),
        pipeline_(pipeline_folders(model.path)) {
    walk("", 0, false);
  }
  Companions found;

 private:
  void walk(const fs::path& below, size_t depth, bool of_pipeline) {
    check_interrupt();
    refuse_if(depth > deepest, "{} has folders more than {} deep: a model has not; move what is no part of it",
              quote(folder_.string()), deepest);
    for (const fs::directory_entry& entry : entries_of(folder_ / below)) {
      refuse_if(++seen_ > most_entries,
                "{} has more than {} files beside its weights: move what is no part of the model",
                quote(folder_.string()), with_commas(most_entries));
      const fs::path name = below / entry.path().filename();
      if (!below.empty() || !own_.contains(name.string())) {
        add(name, entry, depth, of_pipeline);
      }
    }
  }

  void add(const fs::path& name, const fs::directory_entry& entry, size_t depth, bool of_pipeline) {
    std::error_code unknown;
    const std::string last = name.filename().string();
    const bool folder = entry.is_directory(unknown), link = entry.is_symlink(unknown);
    if (quote(last) != "'" + last + "'") {
      leave(name, folder && !link, odd_name);
    } else if (last.starts_with(".") && (folder || (last != ".gitattributes" && last != ".gitignore"))) {
      leave(name, folder && !link, hidden);
    } else if (folder && link) {
      leave(name, false, folder_link);
    } else if (folder) {
      const bool part = of_pipeline || pipeline_.contains(name);
      if (!part && is_other_model(entry.path())) {
        leave(name, true, other_model);
      } else {
        walk(name, depth + 1, part);
        if (fs::is_empty(entry.path(), unknown)) {  // sentence-transformers has such
          found.empty_folders.push_back(name);
        }
      }
    } else if (!entry.is_regular_file(unknown)) {
      leave(name, false, no_file);
    } else if (const std::string_view why = of_pipeline ? "" : reason_against(last); !why.empty()) {
      leave(name, false, why);
    } else if (!link || may_follow(name, entry.path())) {
      found.bytes += InputFile(entry.path()).size();
      found.files.push_back(name);
    }
  }

  bool may_follow(const fs::path& name, const fs::path& link) {
    found.links.push_back(name);
    const fs::path target = real_path(link);
    if (!leaves(target)) {
      return true;
    }
    if (follow_) {
      found.followed[name.string()] = target.string();
    } else {
      found.left.push_back({fmt::format("{} -> {}", name.string(), target.string()), outside_link});
    }
    return follow_;
  }

  void leave(const fs::path& name, bool whole_folder, std::string_view why) {
    found.left.push_back({name.string() + (whole_folder ? "/" : ""), why});
  }

  // A training checkpoint, an adapter or an earlier result: copied without its weights it would be of no use.
  static bool is_other_model(const fs::path& folder) {
    bool config = false, weights = false;
    for (const fs::directory_entry& entry : entries_of(folder)) {
      const std::string name = entry.path().filename().string();
      config = config || name == "config.json" || name == "adapter_config.json";
      weights = weights || !reason_against(name).empty();
    }
    return config && weights;
  }

  // Where a path ends after all links, those on the way to it too. It is there, or was a moment ago.
  static fs::path real_path(const fs::path& path) {
    std::error_code error;
    fs::path real = fs::canonical(path, error);
    if (error) {
      fail_io("follow", path, error.value());
    }
    return real;
  }

  // The cache keeps a model as models--ORG--NAME with its files in blobs, and folders of links to them.
  bool leaves(const fs::path& target) const {
    const bool inside = std::mismatch(real_.begin(), real_.end(), target.begin(), target.end()).first == real_.end();
    const fs::path blobs = target.parent_path();
    return !inside && !(blobs.filename() == "blobs" && blobs.parent_path().filename().string().starts_with("models--"));
  }

  const fs::path& folder_;
  const fs::path real_;
  const bool follow_;
  const std::set<std::string> own_;
  const std::set<fs::path> pipeline_;
  size_t seen_ = 0;
};

std::string copy_hashed(const fs::path& from, const fs::path& to) {
  const InputFile source(from);
  OutputFile copy(to);
  std::vector<std::byte> piece(1 << 20);
  Sha256 hash;
  // As much as there was when it was opened: a file that somebody still writes to has no end.
  for (uint64_t offset = 0; offset < source.size();) {
    check_interrupt();
    const std::span<std::byte> wanted =
        std::span(piece).first(std::min<uint64_t>(piece.size(), source.size() - offset));
    const std::span<const std::byte> read = wanted.first(source.read_at(offset, wanted));
    refuse_if(read.empty(), "{} ended after {} of its {} bytes while it was copied: somebody writes to it",
              quote(from.string()), with_commas(offset), with_commas(source.size()));
    copy.write(read);
    hash.update(read);
    offset += read.size();
  }
  std::error_code ignored;  // as private as it was, where the file system knows of that
  fs::permissions(to, fs::status(from).permissions(), ignored);
  return hash.hex();
}

}  // namespace

Companions find_companions(const ModelFolder& model, OutsideLinks links) {
  if (!is_folder(model.path)) {  // a single file has none: what lies around it may be anything
    return {};
  }
  return std::move(Search(model, links).found);
}

std::vector<std::string> left_behind_lines(const Companions& companions) {
  std::vector<std::string_view> order;
  std::map<std::string_view, std::vector<std::string>> names;
  for (const LeftBehind& left : companions.left) {
    if (!names.contains(left.why)) {
      order.push_back(left.why);
    }
    names[left.why].push_back(escaped(left.name));
  }
  std::vector<std::string> lines;
  for (const std::string_view why : order) {
    std::vector<std::string>& list = names.at(why);
    const size_t all = list.size();
    list.resize(std::min(all, most_named));
    lines.push_back(fmt::format("{}{} not copied: {}", fmt::join(list, ", "),
                                all > most_named ? fmt::format(" and {} more were", all - most_named)
                                : all > 1        ? " were"
                                                 : " was",
                                why));
  }
  for (const auto& [name, target] : companions.followed) {
    lines.push_back(fmt::format("{} leads out of the model's folder: copied from {}", escaped(name), escaped(target)));
  }
  return lines;
}

std::map<std::string, std::string> copy_companions(const fs::path& from, const Companions& companions,
                                                   const fs::path& to) {
  std::map<std::string, std::string> hashes;
  const auto create = [](const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) {
      fail_io("create", folder, error.value());
    }
  };
  for (const fs::path& name : companions.empty_folders) {
    create(to / name);
    hashes[name.string() + "/"] = Sha256().hex();
  }
  for (const fs::path& name : companions.files) {
    create((to / name).parent_path());
    hashes[name.string()] = copy_hashed(from / name, to / name);
  }
  return hashes;
}

}  // namespace pare
