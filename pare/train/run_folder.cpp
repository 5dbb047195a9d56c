#include "pare/train/run_folder.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>

#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/family.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/shards.h"
#include "pare/data/tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/json.h"
#include "pare/support/mapped.h"
#include "pare/support/memory.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"
#include "pare/train/optimiser_files.h"
#include "pare/train/token_shards.h"
#include "pare/train/tokens.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr const char* config_file = "config.json";
constexpr const char* data_file = "data.json";
constexpr const char* start_file = "start.json";
constexpr const char* order_file = "order.i32";
constexpr const char* hashes_file = "run.sha256";
constexpr const char* metrics_file = "metrics.jsonl";
constexpr const char* checkpoints_folder = "checkpoints";
constexpr const char* tokenizer_folder = "tokenizer";  // a copy, so that no checkpoint depends on what lies elsewhere
constexpr uint64_t largest_run_file = 4'000'000'000, shard_size = 5'000'000'000;

// Of all files that make the model beside an optimiser's state, whatever else lies there.
std::string weights_hash(const ModelFolder& folder) {
  std::string text;
  for (const auto& [name, hash] : file_hashes(folder)) {
    text += fmt::format("{}  {}\n", hash, name);
  }
  return sha256_of(text);
}

void copy_text(const fs::path& from, const fs::path& to) {
  write_text_file(to, read_text_file(from, largest_run_file));
}

void keep_tokenizer(const fs::path& run, const TrainConfig& config) {
  const std::map<std::string, fs::path> files = tokenizer_files(reading_of_run(config));
  const bool bytes = files.empty() && learns_bytes(config);
  if (files.empty() && !bytes) {
    return;
  }
  std::error_code refused;
  if (!fs::create_directory(run / tokenizer_folder, refused)) {
    fail_io("create", run / tokenizer_folder, refused.value());
  }
  for (const auto& [name, file] : files) {
    copy_text(file, run / tokenizer_folder / name);
  }
  if (bytes) {
    write_text_file(run / tokenizer_folder / "tokenizer.json", byte_tokenizer_json(config.architecture.vocab));
  }
}

// A model in the native format with the tokenizer of its run, and what its optimiser remembers. `target` is what the
// first rank says.
void write_checkpoint(const fs::path& target, const StoredState& state, int64_t step, const Communicator& ranks) {
  const PromptlyFreed promptly;
  std::optional<AtomicFolder> output;
  if (ranks.is_first()) {
    output.emplace(target, [](const fs::path&) {});  // what stands there is not whole
  }
  const fs::path folder = ranks.broadcast(output ? fs::absolute(output->temporary()).string() : "");
  if (!is_folder(folder)) {
    throw IoError(
        fmt::format("{} sees no {}, where the first rank writes: the run's folder has to be one that all ranks "
                    "see, under the same path",
                    ranks.name(), quote(folder.string())));
  }
  const Model& model = state.model;
  const Weights weights = family_weights(native_family(), model.architecture, model.weights);
  const WriteShare share{ranks.rank(), ranks.size(), state.shared};
  if (output) {
    write_text_file(folder / config_file, family_config(native_family(), model.architecture).dump(2) + "\n");
  }
  ranks.alone() ? write_weights(folder, weights, shard_size) : write_weights(folder, weights, share);
  ranks.barrier();
  write_optimiser_state(folder, state.optimiser, step, ranks.broadcast(output ? weights_hash(open_model(folder)) : ""),
                        share);
  ranks.barrier();
  if (!output) {
    return;
  }
  if (const fs::path kept = target.parent_path().parent_path() / tokenizer_folder; is_folder(kept)) {
    for (const fs::directory_entry& file : entries_of(kept)) {
      copy_text(file.path(), folder / file.path().filename());
    }
  }
  output->commit();
}

int open_or_refuse(const fs::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    fail_io("open", path, errno);
  }
  return descriptor;
}

int locked(const fs::path& path) {
  refuse_if(!is_folder(path) || !path_exists(path / config_file) || !path_exists(path / data_file),
            "{} is not a run: expected a folder that 'pare train' wrote, with {} and {}", quote(path.string()),
            config_file, data_file);
  return lock_folder(path);
}

// As sha256sum writes it, and checks it.
std::string hash_line(const std::string& name, const std::string& text) {
  return fmt::format("{}  {}\n", sha256_of(text), name);
}

struct MetricLine {
  std::string text;
  nlohmann::json json;
};

std::vector<MetricLine> metric_lines(const fs::path& run) {
  const std::string text = read_text_file(run / metrics_file, largest_run_file);
  std::vector<MetricLine> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      break;  // a process that was killed wrote half a line
    }
    const std::string subject = fmt::format("{}, line {}", (run / metrics_file).string(), lines.size() + 1);
    MetricLine& line = lines.emplace_back(MetricLine{text.substr(begin, end - begin), {}});
    line.json = parse_json(line.text, subject);
    refuse_if(!line.json.is_object() || !line.json.contains("step") || !line.json["step"].is_number_integer(),
              "{} has no step", subject);
    for (const char* key : {"loss", "lr", "cross_entropy", "validation", "accuracy"}) {
      if (line.json.contains(key) && !line.json[key].is_number()) {
        throw InputError(
            fmt::format("{}: {} is {}, not a number: was it edited?", subject, key, line.json[key].dump()));
      }
    }
    refuse_if(line.json.contains("loss") != line.json.contains("lr") ||
                  line.json.contains("validation") != line.json.contains("accuracy"),
              "{} has half of what a step writes: was it edited?", subject);
    begin = end + 1;
  }
  return lines;
}

// Why a checkpoint cannot be continued from; empty where it can. What a process left that was killed, or a disk that
// was full, has no model or no state, or too little of it.
std::string damage_of(const fs::path& checkpoint) {
  try {
    open_model(checkpoint);
    optimiser_state(checkpoint);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// Which moment a state lacks that is of the right step; empty: none.
std::string lacking_state(const fs::path& checkpoint) {
  const ModelFolder folder = open_model(checkpoint);
  const Weights state = optimiser_state(checkpoint);
  const TensorTable table = tensor_table(folder.model.architecture);
  for (const auto& [name, weight] : folder.model.weights) {
    for (const char* kind : {".mean", ".square"}) {
      if (!table.at(name).index && !state.contains(name + kind)) {
        return name + kind;
      }
    }
  }
  return "";
}

// The step up to which every one was measured.
int64_t measured_steps(const fs::path& run) {
  int64_t last = 0;
  for (const nlohmann::json& line : read_metrics(run)) {
    last += line.contains("loss") && line.at("step") == last + 1 ? 1 : 0;
  }
  return last;
}

fs::path checkpoint_place(const fs::path& run, int64_t step) {
  return run / checkpoints_folder / std::to_string(step);
}

std::string stored_hashes(const fs::path& run) {
  refuse_if(!path_exists(run / hashes_file),
            "{} has no {}, which 'pare train' writes with a run: nobody can tell what it was begun with",
            quote(run.string()), hashes_file);
  return read_text_file(run / hashes_file, largest_run_file);
}

// Refuses a file that is not the one that the run began with: it would be believed, and what was computed came from
// another.
void check_unedited(const fs::path& run, const std::string& name, const std::string& text) {
  refuse_if(stored_hashes(run).find(hash_line(name, text)) == std::string::npos,
            "{} is not as it was when the run began ({} has another SHA-256): what was computed did not come "
            "from it. Put it back, or begin a new run with the change",
            quote((run / name).string()), hashes_file);
}

[[noreturn]] Architecture no_names(const std::string& word) {
  throw InputError(fmt::format("the architecture of a run is written out, found the name {}", quote(word)));
}

}  // namespace

StoredState state_of(const Trainer& trainer) {
  return {trainer.model(), trainer.state(), trainer.shared()};
}

static Weights copied(const Weights& weights) {
  Weights copy;
  for (const auto& [name, weight] : weights) {
    const at::Tensor held = weight.load().clone();
    copy[name] = Weight::leaf(name, weight.dtype(), weight.shape(), [held] { return held.clone(); });
  }
  return copy;
}

StoredState copied(const StoredState& state) {
  return {{state.model.architecture, copied(state.model.weights)}, copied(state.optimiser)};
}

void RunFolder::refuse_existing(const fs::path& path) {
  throw InputError(fmt::format("{} exists already: choose another folder, or continue the run in it with --resume",
                               quote(shown(path))));
}

void RunFolder::create(const fs::path& path, const TrainConfig& config, const Batches& batches, const Trainer& start,
                       const nlohmann::ordered_json& source, const Communicator& ranks) {
  if (!ranks.is_first()) {
    write_checkpoint({}, state_of(start), 0, ranks);
    return;
  }
  AtomicFolder output(path, refuse_existing);
  const fs::path& folder = output.temporary();
  std::string hashes;
  const auto write = [&](const char* name, const nlohmann::ordered_json& json) {
    const std::string text = json_text(json);
    write_text_file(folder / name, text);
    hashes += hash_line(name, text);
  };
  write(config_file, train_config_to_json(config));
  write(data_file, batches.manifest());
  if (!source.empty()) {
    write(start_file, source);
  }
  write_text_file(folder / hashes_file, hashes);
  if (const std::vector<int32_t>& order = batches.order(); !order.empty()) {
    OutputFile file(folder / order_file);
    file.write(std::as_bytes(std::span(order)));
    file.sync();
  }
  write_text_file(folder / metrics_file, "");
  keep_tokenizer(folder, config);
  std::error_code refused;
  if (!fs::create_directory(folder / checkpoints_folder, refused)) {
    fail_io("create", folder / checkpoints_folder, refused.value());
  }
  write_checkpoint(folder / checkpoints_folder / "0", state_of(start), 0, ranks);
  output.commit();
}

RunFolder::RunFolder(const fs::path& path) : path_(output_target(path)), lock_(locked(path_)) {}

TrainConfig RunFolder::config() const {
  return read_run_config(path_);
}

nlohmann::json RunFolder::manifest() const {
  return read_run_json(path_, data_file);
}

nlohmann::json RunFolder::source() const {
  return read_run_source(path_);
}

std::vector<int64_t> RunFolder::checkpoints() const {
  std::vector<int64_t> steps;
  for (const fs::directory_entry& entry : entries_of(path_ / checkpoints_folder)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    if (error == std::errc() && end == name.data() + name.size() && step >= 0) {
      steps.push_back(step);
    }
  }
  refuse_if(steps.empty(), "{} has no checkpoint: it cannot be continued", quote(path_.string()));
  std::ranges::sort(steps);
  return steps;
}

RunFolder::Continuation RunFolder::continuation() const {
  const int64_t planned = config().steps, measured = measured_steps(path_);
  std::vector<int64_t> steps = checkpoints();
  Continuation result;
  for (; !steps.empty(); steps.pop_back()) {
    result.step = steps.back();
    const std::string subject = quote(checkpoint_path(result.step).string());
    refuse_if(result.step > planned, "{} is beyond the {} steps of this run: was it renamed? Remove it", subject,
              planned);
    if (const std::string damage = damage_of(checkpoint_path(result.step)); !damage.empty()) {
      result.damaged.push_back(fmt::format("{} is not whole, so it is left out ({})", subject, damage));
      continue;
    }
    if (const std::string stored = optimiser_stamp(checkpoint_path(result.step)).step;
        stored != std::to_string(result.step)) {
      throw InputError(fmt::format("{} holds the state of an optimiser {}: was something copied or renamed? Remove it",
                                   subject, stored.empty() ? "that names no step" : "after step " + quote(stored)));
    }
    if (const std::string lacking = lacking_state(checkpoint_path(result.step)); !lacking.empty()) {
      result.damaged.push_back(
          fmt::format("{} is not whole, so it is left out (the optimiser's state has no {})", subject, lacking));
      continue;
    }
    if (measured < result.step) {
      throw InputError(
          fmt::format("{} is there, but {} has the steps up to {} only: was it cut or edited? Put it back, or remove "
                      "the checkpoints after that step",
                      subject, quote((path_ / metrics_file).string()), measured));
    }
    return result;
  }
  throw InputError(fmt::format("{} has no checkpoint that is whole: it cannot be continued. The last one: {}",
                               quote(path_.string()), result.damaged.front()));
}

fs::path RunFolder::checkpoint_path(int64_t step) const {
  return checkpoint_place(path_, step);
}

std::string checkpoint_says(const fs::path& run, int64_t step) {
  const OptimiserStamp stamp = optimiser_stamp(checkpoint_place(run, step));
  return stamp.step + " " + stamp.weights;
}

StoredState load_checkpoint(const fs::path& run, int64_t step) {
  const fs::path path = checkpoint_place(run, step);
  const ModelFolder folder = open_model(path);
  const std::string belongs = optimiser_stamp(path).weights;  // older ones do not say
  if (!belongs.empty() && belongs != weights_hash(folder)) {
    throw InputError(
        fmt::format("{} holds the state of an optimiser for other weights than lie beside it: was "
                    "something copied there? Remove it, and --resume goes on from the one before",
                    quote(path.string())));
  }
  return {.model = folder.model, .optimiser = optimiser_state(path)};
}

void RunFolder::save(const RunFolder* folder, int64_t step, const StoredState& state, int64_t keep,
                     const Communicator& ranks) {
  if (folder) {
    folder->sync_metrics();  // never behind the weights
  }
  const fs::path path = folder ? folder->checkpoint_path(step) : fs::path();
  const bool is_there = folder && path_exists(path) && damage_of(path).empty();
  if (ranks.sum(is_there) == 0) {
    write_checkpoint(path, state, step, ranks);
  }
  if (folder && keep != 0) {
    folder->remove_all_but(keep, step);
  }
}

void RunFolder::sync_metrics() const {
  if (metrics_ && ::fsync(metrics_->number()) != 0) {
    fail_io("sync", path_ / metrics_file, errno);
  }
}

void RunFolder::remove_all_but(int64_t keep, int64_t step) const {
  std::vector<int64_t> all = checkpoints();
  std::erase(all, 0);                                                  // the start stays
  std::erase_if(all, [step](int64_t other) { return other > step; });  // damaged, and to be written again
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
    std::error_code ignored;  // it is in nobody's way
    fs::remove_all(checkpoint_path(all[i]), ignored);
  }
}

void RunFolder::cut_metrics(int64_t last_step) {
  std::string kept;
  for (const MetricLine& line : metric_lines(path_)) {
    if (line.json.at("step").get<int64_t>() <= last_step) {
      kept += line.text + "\n";
    }
  }
  metrics_.reset();
  AtomicFile file(path_ / metrics_file, [](const fs::path&) {});
  write_text_file(file.temporary(), kept);
  file.commit();
}

void RunFolder::add_metrics(const nlohmann::ordered_json& line) {
  if (!metrics_) {
    metrics_.emplace(open_or_refuse(path_ / metrics_file, O_WRONLY | O_APPEND | O_CREAT));
  }
  const std::string text = line.dump() + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(metrics_->number(), text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) {
      fail_io("write to", path_ / metrics_file, errno);
    }
    done += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
}

std::vector<nlohmann::json> RunFolder::metrics() const {
  return read_metrics(path_);
}

nlohmann::json read_run_json(const fs::path& run, const char* name) {
  const fs::path path = run / name;
  const std::string text = read_text_file(path, largest_run_file);
  check_unedited(run, name, text);
  nlohmann::json json = parse_json(text, path.string());
  refuse_if(!json.is_object() || json.empty(), "{} is no object with something in it: is this a run folder?",
            path.string());
  return json;
}

TrainConfig read_run_config(const fs::path& run) {
  return train_config_from_json(read_run_json(run, config_file), (run / config_file).string(), no_names);
}

nlohmann::json read_run_source(const fs::path& run) {
  const bool listed = stored_hashes(run).find(fmt::format("  {}\n", start_file)) != std::string::npos;
  return listed ? read_run_json(run, start_file) : nlohmann::json::object();
}

std::vector<nlohmann::json> read_metrics(const fs::path& run) {
  return mapped(metric_lines(run), [](MetricLine& line) { return std::move(line.json); });
}

}  // namespace pare
