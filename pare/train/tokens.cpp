#include "pare/train/tokens.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/data/text_tokens.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"

namespace pare {

namespace {

constexpr size_t piece_bytes = size_t{1} << 20;

int64_t token_bytes(DataFormat format) {
  switch (format) {
    case DataFormat::bytes:
      return 1;
    case DataFormat::uint16:
      return 2;
    case DataFormat::uint32:
      return 4;
    default:
      PARE_UNREACHABLE("a format of tokens without a size");
  }
}

template <class Word>
void widen(const std::byte* bytes, std::span<int64_t> into) {
  for (int64_t& token : into) {
    Word word;
    std::memcpy(&word, bytes, sizeof word);
    token = static_cast<int64_t>(word);
    bytes += sizeof word;
  }
}

// Tokens of so many bytes each.
void widen(const std::byte* bytes, int64_t width, std::span<int64_t> into) {
  static_assert(std::endian::native == std::endian::little, "tokens are stored little-endian");
  width == 1 ? widen<uint8_t>(bytes, into) : width == 2 ? widen<uint16_t>(bytes, into) : widen<uint32_t>(bytes, into);
}

// Whether a file is packed. What holds ids may begin with any bytes, so there the name decides.
bool is_packed(const std::string& path, DataFormat format) {
  if (format != DataFormat::bytes) {
    return path.ends_with(".gz") || path.ends_with(".xz");
  }
  std::array<std::byte, 2> begin = {};
  const size_t count = InputFile(path).read_at(0, begin);
  return count == 2 && (begin == std::array{std::byte{0x1F}, std::byte{0x8B}} ||
                        begin == std::array{std::byte{0xFD}, std::byte{'7'}});
}

ByteSource open_ids(const std::string& path, DataFormat format) {
  if (format == DataFormat::bytes || is_packed(path, format)) {
    return open_bytes(path);
  }
  return [file = std::make_shared<const InputFile>(path), at = uint64_t{0}](std::span<std::byte> into) mutable {
    const size_t count = file->read_at(at, into);
    at += count;
    return count;
  };
}

// All bytes, in pieces that are full but for the last.
void each_piece(const ByteSource& source, const std::function<void(std::span<const std::byte>)>& take) {
  std::vector<std::byte> piece(piece_bytes);
  for (size_t count = piece.size(); count == piece.size();) {
    check_interrupt();
    count = 0;
    while (count < piece.size()) {
      const size_t read = source(std::span(piece).subspan(count));
      if (read == 0) {
        break;
      }
      count += read;
    }
    take(std::span<const std::byte>(piece).first(count));
  }
}

void read_ids(const std::string& path, DataFormat format, TokenFile& found, Sha256& hash, const TakeTokens& take) {
  const int64_t size = token_bytes(format);
  std::vector<int64_t> tokens;
  each_piece(open_ids(path, format), [&](std::span<const std::byte> piece) {
    hash.update(piece);
    found.bytes += piece.size();
    tokens.resize(piece.size() / static_cast<size_t>(size));
    widen(piece.data(), size, tokens);
    take(tokens);
  });
  refuse_if(found.bytes % static_cast<uint64_t>(size) != 0,
            "{} has {} bytes, which are no whole number of tokens of {} bytes: another data.format, "
            "or an incomplete download?",
            quote(path), found.bytes, size);
}

void read_text(const std::string& path, Tokenizer& tokenizer, TokenFile& found, Sha256& hash, const TakeTokens& take) {
  each_piece(open_bytes(path), [&](std::span<const std::byte> piece) {
    hash.update(piece);
    found.bytes += piece.size();
  });
  TextTokens text(path, tokenizer);
  for (std::vector<int64_t> tokens; text.read(tokens); tokens.clear()) {
    check_interrupt();
    take(tokens);
  }
}

// The files of a tokenizer: that which it names, and those that belong to it.
std::vector<std::filesystem::path> files_of(const Tokenizer& tokenizer) {
  const std::filesystem::path main = tokenizer.subject();
  std::vector<std::filesystem::path> files = {main};
  const std::string name = main.filename().string();
  if (name == "encoder.json" || name == "vocab.json") {
    files.push_back(main.parent_path() / (name == "encoder.json" ? "vocab.bpe" : "merges.txt"));
  }
  const std::filesystem::path settings = main.parent_path() / "tokenizer_config.json";
  if ((files.size() > 1 || name.ends_with(".txt")) && std::filesystem::exists(settings)) {
    files.push_back(settings);
  }
  return files;
}

// Tokens of one file, on disk or held.
struct StoredTokens {
  int64_t count = 0, width = 1;  // bytes of a token
  std::unique_ptr<InputFile> file;
  std::vector<std::byte> held;

  void read(int64_t begin, std::span<int64_t> into, std::vector<std::byte>& room) const {
    const size_t bytes = into.size() * static_cast<size_t>(width);
    const std::byte* from = held.data() + begin * width;
    if (file) {
      room.resize(bytes);
      if (file->read_at(static_cast<uint64_t>(begin * width), room) != bytes) {
        throw InputError(fmt::format("{} became shorter while it was trained on", quote(file->path().string())));
      }
      from = room.data();
    }
    widen(from, width, into);
  }
};

void read_stored(const std::vector<StoredTokens>& files, int64_t begin, std::span<int64_t> into) {
  std::vector<std::byte> room;
  for (const StoredTokens& file : files) {
    if (begin >= file.count) {
      begin -= file.count;
      continue;
    }
    const size_t count = std::min(into.size(), static_cast<size_t>(file.count - begin));
    file.read(begin, into.first(count), room);
    into = into.subspan(count);
    begin = 0;
    if (into.empty()) {
      return;
    }
  }
}

}  // namespace

TokenReading token_reading(const DataConfig& config) {
  TokenReading reading{.format = config.format};
  if (!config.tokenizer.empty()) {
    reading.tokenizer = std::make_shared<Tokenizer>(open_tokenizer(config.tokenizer));
    refuse_if(find_gguf(reading.tokenizer->subject()).has_value(),
              "data.tokenizer: {} has its tokenizer beside its weights, and a run keeps its tokenizer with every "
              "checkpoint: name the tokenizer.json of that model",
              quote(reading.tokenizer->subject()));
  }
  return reading;
}

std::string tokenizer_hash(const Tokenizer& tokenizer) {
  const std::vector<std::filesystem::path> files = files_of(tokenizer);
  if (files.size() == 1) {
    return sha256_of_file(files.front());
  }
  std::string text;
  for (const std::filesystem::path& file : files) {
    text += fmt::format("{}  {}\n", sha256_of_file(file), file.filename().string());
  }
  return sha256_of(text);
}

nlohmann::ordered_json tokenizer_json(const TokenReading& reading) {
  if (!reading.tokenizer) {
    return nullptr;
  }
  return {{"path", reading.tokenizer->subject()}, {"sha256", tokenizer_hash(*reading.tokenizer)}};
}

std::map<std::string, std::filesystem::path> tokenizer_files(const TokenReading& reading) {
  std::map<std::string, std::filesystem::path> named;
  const std::vector<std::filesystem::path> files =
      reading.tokenizer ? files_of(*reading.tokenizer) : std::vector<std::filesystem::path>();
  for (const std::filesystem::path& file : files) {
    const std::string name = file.filename().string(), ending = file.extension().string();
    const bool is_whole = files.size() == 1 && ending == ".json", is_vocabulary = file == files[0] && ending == ".txt";
    const bool is_llama2c = ending == ".bin" && !name.starts_with("tok");
    named[is_whole ? "tokenizer.json" : is_vocabulary ? "vocab.txt" : is_llama2c ? "tok-" + name : name] = file;
  }
  return named;
}

int64_t TokenArray::size() const {
  int64_t total = 0;
  for (const TokenFile& file : files_) {
    total += file.tokens;
  }
  return total;
}

at::Tensor TokenArray::read(int64_t begin, int64_t count) const {
  const at::Tensor tokens = at::empty({count}, at::kLong);
  read(begin, {tokens.mutable_data_ptr<int64_t>(), static_cast<size_t>(count)});
  return tokens;
}

void TokenArray::read(int64_t begin, std::span<int64_t> into) const {
  PARE_CHECK(begin >= 0 && begin + std::ssize(into) <= size(), "tokens beyond the end were asked for");
  read_(begin, into);
}

TokenFile each_token(const std::string& path, const TokenReading& reading, const TakeTokens& take) {
  TokenFile found{.path = path};
  Sha256 hash;
  const TakeTokens counted = [&](std::span<const int64_t> tokens) {
    for (const int64_t token : tokens) {
      found.largest = std::max(found.largest, token);
    }
    found.tokens += std::ssize(tokens);
    take(tokens);
  };
  if (reading.tokenizer) {
    read_text(path, *reading.tokenizer, found, hash, counted);
  } else {
    read_ids(path, reading.format, found, hash, counted);
  }
  refuse_if(found.tokens == 0, "{} is empty: there is nothing to learn from it", quote(path));
  found.sha256 = hash.hex();
  return found;
}

TokenArray open_tokens(const std::vector<std::string>& paths, const TokenReading& reading) {
  const auto files = std::make_shared<std::vector<StoredTokens>>();
  std::vector<TokenFile> found;
  Sha256 hash;
  TokenPlaces places;
  for (const std::string& path : paths) {
    StoredTokens& stored = files->emplace_back();
    const bool held = reading.tokenizer || is_packed(path, reading.format);
    stored.width = token_bytes(reading.tokenizer ? DataFormat::uint32 : reading.format);
    std::vector<uint32_t> words;
    found.push_back(each_token(path, reading, [&](std::span<const int64_t> tokens) {
      words.assign(tokens.begin(), tokens.end());
      hash.update(std::as_bytes(std::span(words)));
      places.add(tokens);
      if (!held) {
        return;
      }
      const size_t known = stored.held.size();
      stored.held.resize(known + tokens.size() * static_cast<size_t>(stored.width));
      std::byte* into = stored.held.data() + known;
      for (const uint32_t word : words) {
        std::memcpy(into, &word, static_cast<size_t>(stored.width));
        into += stored.width;
      }
    }));
    stored.count = found.back().tokens;
    if (!held) {
      stored.file = std::make_unique<InputFile>(path);
    }
  }
  return TokenArray(
      found, [files](int64_t begin, std::span<int64_t> into) { read_stored(*files, begin, into); }, hash.hex(),
      std::move(places));
}

}  // namespace pare
