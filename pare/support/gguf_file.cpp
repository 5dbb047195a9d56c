#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/json.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t first_piece = 1 << 20, most_header = 128 << 20;
constexpr int64_t most_parts = 9'999;

GgufHeader read_header(const InputFile& file) {
  const std::string subject = quote(shown(file.path()));
  std::string begin(std::min<uint64_t>(lfs_pointer_prefix, file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(begin)));
  refuse_lfs_pointer(begin, subject);
  for (uint64_t piece = first_piece;; piece *= 2) {
    std::string bytes(std::min(piece, file.size()), '\0');
    refuse_if(file.read_at(0, std::as_writable_bytes(std::span(bytes))) < bytes.size(),
              "{} became shorter while its header was read", subject);
    if (std::optional<GgufHeader> header = parse_gguf_header(bytes, file.size(), subject)) {
      return *std::move(header);
    }
    refuse_if(piece >= most_header, "{}: the header has more than {} bytes: a damaged file?", subject, most_header);
  }
}

bool is_gguf_file(const fs::path& path) {
  std::error_code unknown;
  if (!fs::is_regular_file(path, unknown)) {
    return false;
  }
  if (path.extension() == ".gguf") {
    return true;
  }
  try {  // stores of other programs name files by their hashes
    std::string begin(4, '\0');
    return InputFile(path).read_at(0, std::as_writable_bytes(std::span(begin))) == 4 && begin == "GGUF";
  } catch (const Error&) {
    return false;
  }
}

// NAME-00002-of-00003.gguf
struct PartName {
  std::string base;
  int64_t number = 0, count = 0;
};

std::optional<PartName> part_name(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!glob_match("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", name)) {
    return std::nullopt;
  }
  const size_t at = name.size() - std::string_view("00001-of-00001.gguf").size();
  return PartName{name.substr(0, at - 1), std::stoll(name.substr(at, 5)), std::stoll(name.substr(at + 9, 5))};
}

fs::path path_of(const fs::path& folder, const PartName& part, int64_t number) {
  return folder / fmt::format("{}-{:05}-of-{:05}.gguf", part.base, number, part.count);
}

int64_t whole(const GgufFile& file, const char* key, int64_t without) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    return without;
  }
  refuse_if(!found->second.is_number_integer() || found->second.get<int64_t>() < 0,
            "{}: {} is {}, expected a whole number", quote(shown(file.path())), key, json_shown(found->second));
  return found->second.get<int64_t>();
}

void check_parts(const std::vector<GgufFile>& files) {
  std::map<std::string, std::string> seen;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string subject = quote(shown(files[i].path()));
    const int64_t number = whole(files[i], "split.no", 0), count = whole(files[i], "split.count", 1);
    refuse_if(number != static_cast<int64_t>(i) || count != std::ssize(files),
              "{} says that it is part {} of {}, and is named as part {} of {}: was it renamed?", subject, number + 1,
              count, i + 1, files.size());
    for (const auto& [name, tensor] : files[i].tensors()) {
      const auto [there, first] = seen.emplace(name, subject);
      refuse_if(!first, "{} and {} both have tensor {}", there->second, subject, quote(name));
    }
  }
  const int64_t all = whole(files.front(), "split.tensors.count", std::ssize(seen));
  refuse_if(all != std::ssize(seen), "{} says that all parts have {} tensors, but they have {}",
            quote(shown(files.front().path())), all, seen.size());
}

}  // namespace

struct GgufFile::State {
  explicit State(const fs::path& path) : file(path), header(read_header(file)) {}
  InputFile file;
  GgufHeader header;
  mutable std::mutex hashing;
  mutable std::string hash;  // empty until someone asks
};

GgufFile::GgufFile(const fs::path& path) : state_(std::make_shared<const State>(path)) {}

const fs::path& GgufFile::path() const {
  return state_->file.path();
}

uint64_t GgufFile::bytes() const {
  return state_->file.size();
}

const GgufMetadata& GgufFile::metadata() const {
  return state_->header.metadata;
}

const std::map<std::string, GgufTensor>& GgufFile::tensors() const {
  return state_->header.tensors;
}

std::string GgufFile::sha256() const {
  const std::lock_guard lock(state_->hashing);
  if (state_->hash.empty()) {
    state_->hash = sha256_of(state_->file);
  }
  state_->file.check_unchanged();  // tensors may have been read since it was hashed
  return state_->hash;
}

void GgufFile::read(const std::string& name, uint64_t offset, std::span<std::byte> into) const {
  const auto found = tensors().find(name);
  PARE_CHECK(found != tensors().end(), "no tensor " + quote(name));
  const GgufTensor& tensor = found->second;
  const uint64_t size = tensor.end - tensor.begin;
  PARE_CHECK(offset <= size && into.size() <= size - offset, "beyond the data of tensor " + quote(name));
  refuse_if(state_->file.read_at(tensor.begin + offset, into) < into.size(),
            "tensor {} ends at byte {} but {} is shorter now than when it was opened: is another program writing it?",
            quote(name), tensor.end, quote(shown(path())));
}

std::vector<GgufFile> open_gguf(const fs::path& path) {
  const std::optional<PartName> part = part_name(path);
  if (!part) {
    std::vector<GgufFile> files = {GgufFile(path)};
    const int64_t count = whole(files.front(), "split.count", 1);
    refuse_if(count > 1, "{} is part {} of a model in {} files: give them the names NAME-00001-of-{:05}.gguf and so on",
              quote(shown(path)), whole(files.front(), "split.no", 0) + 1, count, count);
    return files;
  }
  refuse_if(part->count < 1 || part->count > most_parts || part->number < 1 || part->number > part->count,
            "{}: its name says part {} of {}, which cannot be", quote(shown(path)), part->number, part->count);
  std::vector<fs::path> paths;
  std::vector<std::string> missing;
  for (int64_t number = 1; number <= part->count; ++number) {
    paths.push_back(path_of(path.parent_path(), *part, number));
    if (!path_exists(paths.back())) {
      missing.push_back(quote(paths.back().filename().string()));
    }
  }
  const size_t all = missing.size();
  missing.resize(std::min<size_t>(all, 8));
  refuse_if(all > 0, "{} is one of {} parts, and beside it there is no {}{}: download {} too", quote(shown(path)),
            part->count, fmt::join(missing, ", "), all > 8 ? fmt::format(" and {} more", all - 8) : "",
            all == 1 ? "it" : "them");
  std::vector<GgufFile> files = mapped(paths, [](const fs::path& each) { return GgufFile(each); });
  check_parts(files);
  return files;
}

std::optional<fs::path> find_gguf(const fs::path& path) {
  if (!is_folder(path)) {
    return is_gguf_file(path) ? std::optional(path) : std::nullopt;
  }
  if (path_exists(path / "config.json")) {
    return std::nullopt;
  }
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : entries_of(path)) {
    const std::optional<PartName> part = part_name(entry.path());
    if (entry.path().extension() == ".gguf" && (!part || part->number == 1)) {
      found.push_back(entry.path());
    }
  }
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

}  // namespace pare
