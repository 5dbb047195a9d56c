#include "pare/train/token_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "pare/data/tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"
#include "pare/train/samples.h"
#include "pare/train/start.h"
#include "pare/train/trainer.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr const char* shards_file = "tokens.json";
constexpr int64_t shards_version = 1;
constexpr uint64_t largest_shards_file = 64'000'000;

// Tokens into files of at most so many each.
class ShardWriter {
 public:
  ShardWriter(fs::path folder, std::string name, bool narrow, int64_t most, int64_t vocab)
      : folder_(std::move(folder)), name_(std::move(name)), narrow_(narrow), most_(most), vocab_(vocab) {}

  void write(std::span<const int64_t> tokens, const std::string& source) {
    for (const int64_t token : tokens) {
      if (token >= vocab_) {
        throw InputError(fmt::format("{} has the token {}, but the Architecture's vocabulary ends before {}",
                                     quote(source), token, vocab_));
      }
    }
    while (!tokens.empty()) {
      if (!file_) {
        file_.emplace(folder_ / file_name());
        hash_.emplace();
        count_ = 0;
      }
      const size_t taken = std::min(tokens.size(), static_cast<size_t>(most_ - count_));
      narrow_ ? write_as<uint16_t>(tokens.first(taken)) : write_as<uint32_t>(tokens.first(taken));
      tokens = tokens.subspan(taken);
      count_ += static_cast<int64_t>(taken);
      if (count_ == most_) {
        end_shard();
      }
    }
  }

  nlohmann::ordered_json finish() {
    if (file_) {
      end_shard();
    }
    return std::move(list_);
  }

 private:
  std::string file_name() const { return fmt::format("{}-{:05}.{}", name_, list_.size(), narrow_ ? "u16" : "u32"); }

  template <class Word>
  void write_as(std::span<const int64_t> tokens) {
    static_assert(std::endian::native == std::endian::little, "shards are little-endian");
    const std::vector<Word> words(tokens.begin(), tokens.end());
    hash_->update(std::as_bytes(std::span(words)));
    file_->write(std::as_bytes(std::span(words)));
  }

  void end_shard() {
    file_->sync();
    const std::string name = file_name();
    list_.push_back({{"file", name}, {"tokens", count_}, {"sha256", hash_->hex()}});
    file_.reset();
  }

  fs::path folder_;
  std::string name_;
  bool narrow_;
  int64_t most_, vocab_, count_ = 0;
  std::optional<OutputFile> file_;
  std::optional<Sha256> hash_;
  nlohmann::ordered_json list_ = nlohmann::ordered_json::array();
};

struct WrittenPart {
  nlohmann::ordered_json sources = nlohmann::ordered_json::array(), shards;
  int64_t tokens = 0, sequence = 0;
};

WrittenPart write_part(const std::vector<std::string>& paths, const TokenReading& reading, ShardWriter writer) {
  WrittenPart part;
  for (const std::string& path : paths) {
    const TokenFile file =
        each_token(path, reading, [&](std::span<const int64_t> tokens) { writer.write(tokens, path); });
    part.sources.push_back({{"path", path}, {"bytes", file.bytes}, {"tokens", file.tokens}, {"sha256", file.sha256}});
    part.tokens += file.tokens;
  }
  part.shards = writer.finish();
  return part;
}

// What a model draws, with all that decides what it is.
WrittenPart write_samples(const TrainConfig& config, const ModelFolder& folder, at::Device device, ShardWriter writer) {
  const SamplesConfig samples = complete_samples(config, folder);
  WrittenPart part{.tokens = samples.count * samples.length, .sequence = samples.length};
  draw_samples(folder.model, samples, static_cast<uint64_t>(config.data.seed), {arithmetic_of(config.dtype), device},
               [&](std::span<const int64_t> tokens) { writer.write(tokens, samples.model); });
  nlohmann::ordered_json source = source_manifest(samples.model, folder);
  source["drawn"] = {{"count", samples.count},   {"length", samples.length},
                     {"prefix", samples.prefix}, {"temperature", samples.temperature},
                     {"seed", config.data.seed}, {"device", device.is_cpu() ? "cpu" : "cuda"}};
  part.sources.push_back(source);
  part.shards = writer.finish();
  return part;
}

// A folder without a tokenizer has none.
TokenReading reading_of_model(const fs::path& folder) {
  TokenReading reading;
  if (tokenizers_in(folder).size() == 1 && !reads_bytes(folder)) {
    reading.tokenizer = std::make_shared<Tokenizer>(open_tokenizer(folder));
  }
  return reading;
}

[[noreturn]] void refuse_shards(const std::string& folder, const std::string& why) {
  throw InputError(
      fmt::format("{} {}: expected a folder as 'pare train CONFIG --prepare -o FOLDER' writes it", quote(folder), why));
}

nlohmann::json read_manifest(const std::string& folder) {
  const fs::path path = fs::path(folder) / shards_file;
  if (!path_exists(folder)) {
    refuse_shards(folder, "is not there");
  }
  if (!path_exists(path)) {
    refuse_shards(folder, fmt::format("has no {}", shards_file));
  }
  nlohmann::json json = parse_json(read_text_file(path, largest_shards_file), path.string());
  if (!json.is_object() || json.value("pare_tokens", nlohmann::json()) != shards_version) {
    refuse_shards(folder, fmt::format("has another kind of {}", shards_file));
  }
  return json;
}

// As the samples were drawn; 0: the shards are of a text.
int64_t drawn_length(const nlohmann::json& manifest) {
  const nlohmann::json::json_pointer place("/sources/train/0/drawn/length");
  const nlohmann::json found = manifest.contains(place) ? manifest.at(place) : nlohmann::json(0);
  return found.is_number_integer() ? found.get<int64_t>() : -1;
}

TokenArray open_part(const std::string& folder, const nlohmann::json& json, const char* part, DataFormat format) {
  if (!json.contains(part) || !json[part].is_array()) {
    refuse_shards(folder, fmt::format("has no list {} in {}", part, shards_file));
  }
  std::vector<std::string> paths;
  for (const nlohmann::json& shard : json[part]) {
    const bool known = shard.is_object() && shard.contains("file") && shard["file"].is_string() &&
                       shard.contains("tokens") && shard["tokens"].is_number_unsigned() && shard.contains("sha256") &&
                       shard["sha256"].is_string();
    const std::string name = known ? shard["file"].get<std::string>() : "";
    if (!known || name.empty() || name.find('/') != std::string::npos) {
      refuse_shards(folder, fmt::format("has a shard without file, tokens and sha256 in {}", shards_file));
    }
    const fs::path path = fs::path(folder) / name;
    const uint64_t width = format == DataFormat::uint16 ? 2 : 4, bytes = InputFile(path).size();
    if (bytes % width != 0 || bytes / width != shard["tokens"].get<uint64_t>()) {
      throw InputError(fmt::format("{} has {} bytes, but {} says {} tokens of {} bytes: {} since it was written?",
                                   quote(path.string()), bytes, shards_file, shard["tokens"].dump(), width,
                                   bytes / width < shard["tokens"].get<uint64_t>() ? "was it cut" : "was it changed"));
    }
    paths.push_back(path.string());
  }
  TokenArray tokens = open_tokens(paths, {.format = format});
  for (size_t i = 0; i < paths.size(); ++i) {
    if (nlohmann::json(tokens.files()[i].sha256) != json[part][i]["sha256"]) {
      throw InputError(fmt::format("{} is damaged: its SHA-256 is not the one in {}. Prepare it again", quote(paths[i]),
                                   shards_file));
    }
  }
  return tokens;
}

}  // namespace

PreparedShards write_shards(const TrainConfig& config, const fs::path& folder, at::Device device,
                            int64_t tokens_per_shard) {
  const DataConfig& data = config.data;
  refuse_if(config.task != TrainTask::causal_lm && config.task != TrainTask::masked_lm,
            "only text is prepared: the task {} reads none", word(config.task));
  refuse_if(!data.shards.empty(), "data.shards: {} is prepared already", quote(data.shards));
  AtomicFolder output(folder, [](const fs::path& path) {
    throw InputError(fmt::format("{} exists already: choose another folder, or remove it", quote(path.string())));
  });
  const std::optional<ModelFolder> drawing =
      data.samples.count > 0 ? std::optional(open_sampled(config)) : std::nullopt;
  const TokenReading reading = drawing && data.tokenizer.empty() && data.format == DataFormat::bytes
                                   ? reading_of_model(drawing->path)
                                   : token_reading(data);
  const bool narrow = config.architecture.vocab <= 1 << 16;
  const auto writer = [&](const char* name) {
    return ShardWriter(output.temporary(), name, narrow, tokens_per_shard, config.architecture.vocab);
  };
  const WrittenPart train = drawing ? write_samples(config, *drawing, device, writer("train"))
                                    : write_part(data.train, reading, writer("train"));
  const WrittenPart validation = write_part(data.validation, reading, writer("validation"));
  const PreparedShards result{.path = folder.string(),
                              .dtype = narrow ? "uint16" : "uint32",
                              .train_tokens = train.tokens,
                              .validation_tokens = validation.tokens,
                              .shards = static_cast<int64_t>(train.shards.size() + validation.shards.size())};
  write_text_file(output.temporary() / shards_file,
                  json_text({{"pare_tokens", shards_version},
                             {"dtype", result.dtype},
                             {"vocabulary", config.architecture.vocab},
                             {"tokenizer", tokenizer_json(reading)},
                             {"bytes", drawing ? reads_bytes(drawing->path) : learns_bytes(config)},
                             {"sequence", train.sequence},
                             {"sources", {{"train", train.sources}, {"validation", validation.sources}}},
                             {"train", train.shards},
                             {"validation", validation.shards}}));
  output.commit();
  return result;
}

bool learns_bytes(const TrainConfig& config) {
  const DataConfig& data = config.data;
  if (is_generated(config.task) || config.architecture.embedding.patch || !data.tokenizer.empty()) {
    return false;
  }
  if (data.shards.empty()) {
    return data.format == DataFormat::bytes;
  }
  return read_manifest(data.shards).value("bytes", nlohmann::json()) == true;  // older ones do not say
}

TokenReading reading_of_run(const TrainConfig& config) {
  const DataConfig& data = config.data;
  const nlohmann::json made_with = data.tokenizer.empty() && !data.shards.empty()
                                       ? read_manifest(data.shards).value("tokenizer", nlohmann::json())
                                       : nlohmann::json();
  if (!made_with.is_object()) {
    return token_reading(data);
  }
  const std::string path = made_with.value("path", "");
  if (!path_exists(path)) {
    return token_reading(data);
  }
  TokenReading reading{.tokenizer = std::make_shared<Tokenizer>(open_tokenizer(path))};
  return tokenizer_hash(*reading.tokenizer) == made_with.value("sha256", "") ? reading : token_reading(data);
}

TokenShards open_shards(const std::string& folder) {
  const nlohmann::json json = read_manifest(folder);
  const nlohmann::json dtype = json.value("dtype", nlohmann::json());
  if (dtype != "uint16" && dtype != "uint32") {
    refuse_shards(folder, fmt::format("has tokens of the type {}", dtype.dump()));
  }
  nlohmann::ordered_json tokenizer = json.value("tokenizer", nlohmann::json());
  if (!tokenizer.is_null() && !(tokenizer.is_object() && tokenizer.contains("path") && tokenizer.contains("sha256"))) {
    refuse_shards(folder, fmt::format("names a tokenizer without path and sha256 in {}", shards_file));
  }
  const nlohmann::json sequence = json.value("sequence", nlohmann::json(0));  // older ones do not say
  if (!sequence.is_number_integer() || sequence < 0 || sequence > (int64_t{1} << 31)) {
    refuse_shards(folder, fmt::format("has sequences of {} tokens in {}", sequence.dump(), shards_file));
  }
  const DataFormat format = dtype == "uint16" ? DataFormat::uint16 : DataFormat::uint32;
  TokenArray train = open_part(folder, json, "train", format);
  if (train.files().empty()) {
    refuse_shards(folder, "has no shards to learn from");
  }
  const int64_t length = sequence.get<int64_t>();
  if (const int64_t said = drawn_length(json); length != said || (length > 0 && train.size() % length != 0)) {
    refuse_shards(folder, fmt::format("has {} tokens in sequences of {}, which were drawn with {} each", train.size(),
                                      length, said));
  }
  return {std::move(train), open_part(folder, json, "validation", format), std::move(tokenizer), length};
}

}  // namespace pare
