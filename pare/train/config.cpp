#include "pare/train/config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "pare/arch/architecture_json.h"
#include "pare/arch/json_fields.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/support/error.h"
#include "pare/train/morph_target.h"

namespace pare {

static Words<TrainTask> words(TrainTask) {
  return {{TrainTask::causal_lm, "causal_lm"},   {TrainTask::masked_lm, "masked_lm"},
          {TrainTask::classifier, "classifier"}, {TrainTask::sorting, "sorting"},
          {TrainTask::copying, "copying"},       {TrainTask::addition, "addition"}};
}
static Words<DataFormat> words(DataFormat) {
  return {{DataFormat::bytes, "bytes"},    {DataFormat::uint16, "uint16"},   {DataFormat::uint32, "uint32"},
          {DataFormat::idx, "idx"},        {DataFormat::cifar10, "cifar10"}, {DataFormat::cifar100, "cifar100"},
          {DataFormat::folders, "folders"}};
}
static Words<InitRecipe> words(InitRecipe) {
  return {{InitRecipe::plain, "plain"},
          {InitRecipe::gpt2, "gpt2"},
          {InitRecipe::norm_free, "norm_free"},
          {InitRecipe::orthogonal, "orthogonal"}};
}
static Words<Shard> words(Shard) {
  return {{Shard::nothing, "nothing"}, {Shard::optimiser, "optimiser"}, {Shard::everything, "everything"}};
}
static Words<TrainDtype> words(TrainDtype) {
  return {{TrainDtype::float32, "float32"}, {TrainDtype::float64, "float64"}, {TrainDtype::bfloat16, "bfloat16"}};
}

namespace {

// What a number may be: from `least` on, and less than `most`.
struct Range {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
};
constexpr Range from(double least) {
  return {.least = least};
}
constexpr Range within(double least, double most) {
  return {least, most};
}

// Two more readers of the descriptions below: one lists what they name, one checks what they allow.
class KeyLister {
 public:
  explicit KeyLister(std::string prefix) : prefix_(std::move(prefix)) {}
  template <class T>
  void add(const char* key, T& value, const char* meaning, const Range&) {
    keys.push_back({prefix_ + key, JsonWriter::write(value).dump(), meaning});
  }
  template <class T>
  void add(const char* key, std::optional<T>&, const char* meaning, const Range&) {
    keys.push_back({prefix_ + key, "null", meaning});
  }
  template <class T>
  void group(const char* key, T& value) {
    KeyLister inner(prefix_ + key + ".");
    describe(inner, value);
    keys.insert(keys.end(), inner.keys.begin(), inner.keys.end());
  }
  std::vector<ConfigKey> keys;

 private:
  std::string prefix_;
};

class RangeChecker {
 public:
  RangeChecker(std::string prefix, Problems& problems) : prefix_(std::move(prefix)), problems_(problems) {}
  template <class T>
  void add(const char* key, T& value, const char*, const Range& range) {
    if constexpr (std::is_arithmetic_v<T>) {
      check(key, static_cast<double>(value), range);
    } else if constexpr (std::is_same_v<T, std::vector<double>> || std::is_same_v<T, std::vector<int64_t>>) {
      for (const auto one : value) {
        check(key, static_cast<double>(one), range);
      }
    }
  }
  template <class T>
  void group(const char* key, T& value) {
    RangeChecker inner(prefix_ + key + ".", problems_);
    describe(inner, value);
  }

 private:
  void check(const char* key, double value, const Range& range) {
    if (std::isfinite(range.most) && (value < range.least || value >= range.most)) {
      problems_.add(fmt::format("{}{}: {} is not between {} and {}", prefix_, key, value, range.least, range.most));
    } else if (value < range.least) {
      problems_.add(fmt::format("{}{}: {} is less than {}", prefix_, key, value, range.least));
    }
  }
  std::string prefix_;
  Problems& problems_;
};

template <class Io>
constexpr bool knows_meanings = std::is_same_v<Io, KeyLister> || std::is_same_v<Io, RangeChecker>;
template <class T>
constexpr bool may_be_null = false;
template <class T>
constexpr bool may_be_null<std::optional<T>> = true;

// A key with its meaning and range. Its default is what the struct begins with.
template <class Io, class T>
void field(Io& io, const char* key, T& value, const char* meaning, const Range& range = {}) {
  if constexpr (knows_meanings<Io>) {
    io.add(key, value, meaning, range);
  } else if constexpr (may_be_null<T>) {
    io.nullable(key, value);
  } else {
    const T fallback = value;
    io.optional(key, value, fallback);
  }
}
// Written only where it is not what it begins with: files of those who never turn to it stay as they were.
template <class Io, class T>
void rare_field(Io& io, const char* key, T& value, const char* meaning) {
  if (!std::is_same_v<Io, JsonWriter> || value != T{}) {
    field(io, key, value, meaning);
  }
}
template <class Io, class T>
void group(Io& io, const char* key, T& value) {
  if constexpr (knows_meanings<Io>) {
    io.group(key, value);
  } else {
    const T fallback = value;
    io.optional(key, value, fallback);
  }
}

}  // namespace

template <class Io>
static void describe(Io& io, SamplesConfig& s) {
  field(io, "count", s.count,
        "--prepare: how many sequences a model draws by itself, which are learned from instead of a text; 0: none",
        from(0));
  field(io, "model", s.model, "the folder of the model that draws them; empty: that of from");
  field(io, "length", s.length, "tokens of each, with the prefix; 0: one more than the context of the run", from(0));
  field(io, "prefix", s.prefix,
        "tokens that each begins with; none: what its tokenizer puts before a text, or bos_token_id", from(0));
  field(io, "temperature", s.temperature, "what its logits are divided by", from(1e-3));
}

template <class Io>
static void describe(Io& io, DataConfig& d) {
  field(io, "train", d.train, "files to train on, one after another, .gz and .xz too; none for a generated task");
  field(io, "validation", d.validation, "files to validate on; none: the end of the text, or some of the images");
  field(io, "validation_share", d.validation_share, "how much of data.train is measured on, where no files are",
        within(0, 1));
  field(
      io, "format", d.format,
      "text: bytes, each of which is a token; uint16, uint32: token ids, little-endian. Images: idx (MNIST: pictures, "
      "labels), cifar10, cifar100 (binary batches), folders (CLASS/NAME.jpg or .png)");
  field(io, "tokenizer", d.tokenizer, "a model folder or a file of a tokenizer, whose tokens the text becomes");
  field(io, "shards", d.shards, "a folder that --prepare wrote, instead of data.train, validation and format");
  group(io, "samples", d.samples);
  field(io, "seed", d.seed, "of the order of batches, of masks, of samples and of generated tasks", from(0));
  field(io, "mask_share", d.mask_share, "masked_lm: how many tokens are to be guessed", within(0, 1));
  field(io, "mask_token", d.mask_token, "masked_lm: the token that stands for a masked one");
  field(io, "length", d.length, "generated tasks: symbols to sort or copy, digits of a number to add", from(1));
  field(io, "symbols", d.symbols, "sorting, copying: how many different symbols there are", from(2));
  field(io, "mean", d.mean, "images: taken from every pixel, which are 0 to 1; one number, or one a channel");
  field(io, "deviation", d.deviation, "images: what pixels are divided by then", from(1e-6));
}

template <class Io>
static void describe(Io& io, OptimiserConfig& o) {
  field(io, "lr", o.lr, "the largest learning rate", from(0));
  field(io, "min_lr", o.min_lr, "the learning rate of the last step", from(0));
  field(io, "warmup", o.warmup, "steps until the largest learning rate", from(0));
  field(io, "betas", o.betas, "how long AdamW remembers gradients, and their squares", within(0, 1));
  field(io, "epsilon", o.epsilon, "added to the root of the squares",
        from(1e-30));  // 0 divides 0 by 0 where a token never occurs
  field(io, "decay", o.decay, "weight decay, decoupled, of matrices and tables only", from(0));
  field(io, "clip", o.clip, "the longest gradient of all parameters together; 0: any", from(0));
}

template <class Io>
static void describe(Io& io, InitConfig& i) {
  field(io, "recipe", i.recipe,
        "gpt2: normal, what writes to a skip divided by sqrt(2 layers); plain: matrices keep the scale of what they "
        "read; norm_free: plain, and blocks without norm write with deviation 1; orthogonal: the same, with orthogonal "
        "values, outputs and MLPs");
  field(io, "deviation", i.deviation, "gpt2: of matrices and tables", from(0));
  field(io, "key", i.key, "gpt2: what that of a key's matrix is multiplied by", from(0));
  field(io, "embedding", i.embedding, "norm_free, orthogonal: deviation of the embeddings", from(0));
}

template <class Io>
static void describe(Io& io, DropoutRates& d) {
  field(io, "embedding", d.embedding, "how much of what the first layer gets is left out, in training only",
        within(0, 1));
  field(io, "attention", d.attention, "how much of the attention from token to token", within(0, 1));
  field(io, "residual", d.residual, "how much of what each sublayer writes", within(0, 1));
}

template <class Io>
static void describe(Io& io, EvaluateConfig& e) {
  field(io, "every", e.every, "steps between two looks at the validation text; the last step has one too", from(1));
  field(io, "batches", e.batches, "how many batches of it; 0: all", from(0));
}

template <class Io>
static void describe(Io& io, CheckpointConfig& c) {
  field(io, "every", c.every, "steps between two checkpoints; the first and the last step have one too", from(1));
  field(io, "keep", c.keep, "how many of the last ones stay; 0: all", from(0));
}

template <class Io>
static void describe(Io& io, DistillationConfig& d) {
  field(io, "weight", d.weight, "teacher: its share of the loss, from 0 to 1; the rest is that of the targets",
        from(0));
  field(io, "temperature", d.temperature,
        "teacher: both sides' logits are divided by it, and their part multiplied by its square", from(1e-3));
}

template <class Io>
static void describe(Io& io, ConditioningConfig& c) {
  field(io, "weight", c.weight,
        "how much the loss asks that what eliminate_projection will invert be close to orthogonal: the mean of "
        "(σ - 1)² over the singular values of each matrix; 0: nothing",
        from(0));
}

// An Architecture is read apart: it may be a name, or what changes of another, or not be there.
struct WrittenArchitectureName {
  nlohmann::ordered_json json;
};
static std::string read_special(const nlohmann::json& json, WrittenArchitectureName& value) {
  value.json = json;
  return json.is_object() || json.is_string() || json.is_null() ? "" : "an Architecture: an object, a file or a preset";
}
static nlohmann::ordered_json write_special(WrittenArchitectureName& value) {
  return value.json;
}

struct WrittenMorph {
  WrittenArchitectureName to;
  int64_t steps = 0;
  double evenness = MorphConfig().evenness;
};

template <class Io>
static void describe(Io& io, WrittenMorph& m) {
  field(io, "to", m.to,
        "what the model becomes while it is trained: an Architecture, a file, a preset, or what changes: norms=none, "
        "attention.KEY and mlp.KEY of every block, any key of the Architecture");
  field(io, "steps", m.steps, "in how many steps, from the first on");
  field(
      io, "evenness", m.evenness,
      "norms that go: how much the loss asks that all tokens be of one size, the variance of log std; where they are, "
      "a norm is a constant",
      from(0));
}

struct WrittenConfig {
  WrittenArchitectureName architecture;
  WrittenMorph morph;
  TrainConfig config;
};

template <class Io>
static void describe(Io& io, WrittenConfig& w) {
  TrainConfig& c = w.config;
  field(io, "name", c.name, "what `pare compare` calls the run; none: its folder");
  field(io, "from", c.from, "a model folder, native or of Hugging Face, to start from; empty: init draws the start");
  field(io, "architecture", w.architecture,
        "what is trained: an Architecture, a JSON file with one, or a preset; with from, its own");
  field(io, "task", c.task, "causal_lm, masked_lm, classifier, or generated: sorting, copying, addition");
  group(io, "data", c.data);
  field(io, "context", c.context, "tokens of a sequence; 0: the Architecture's context", from(0));
  field(io, "batch", c.batch, "sequences that are computed at once", from(1));
  field(io, "accumulate", c.accumulate, "batches whose gradients make one step", from(1));
  field(io, "steps", c.steps, "how often the weights are moved", from(1));
  group(io, "optimiser", c.optimiser);
  group(io, "init", c.init);
  group(io, "dropout", c.dropout);
  field(io, "seed", c.seed, "of the weights at the start, and of what dropout leaves out", from(0));
  field(io, "dtype", c.dtype, "of the arithmetic: float32, float64, bfloat16 (its weights are kept in float32)");
  rare_field(io, "recompute", c.recompute,
             "keeps what each layer is given and runs it again on the way back: the same numbers, with the activations "
             "of one layer in memory, for the time of a second forward pass");
  rare_field(
      io, "shard", c.shard,
      "of what each of several ranks holds only a part: nothing, optimiser (its state), everything (the blocks too)");
  field(io, "teacher", c.teacher, "a model folder whose answers are learned beside the targets; empty: none");
  group(io, "distillation", c.distillation);
  group(io, "morph", w.morph);
  group(io, "conditioning", c.conditioning);
  field(io, "stop_above", c.stop_above,
        "a loss that ends the run; 0: three times the first one, or three times what guessing costs", from(0));
  group(io, "evaluate", c.evaluate);
  group(io, "checkpoint", c.checkpoint);
}

static Architecture architecture_of(const nlohmann::json& json, const TrainConfig& config, const std::string& subject,
                                    const FindArchitecture& find) {
  if (json.is_null()) {
    return open_model(config.from).model.architecture;
  }
  return json.is_string() ? find(json.get<std::string>()) : architecture_from_json(json, subject + ": architecture");
}

TrainConfig train_config_from_json(const nlohmann::json& json, const std::string& subject,
                                   const FindArchitecture& find) {
  Problems problems, contradictions;
  WrittenConfig written;
  JsonReader reader(json, "", problems, contradictions);
  reader.read(json, "", written);
  TrainConfig& config = written.config;
  problems.add_if(written.architecture.json.is_null() && config.from.empty(),
                  "architecture: is required, or a model to start from (from)");
  if (problems.empty()) {
    config.architecture = architecture_of(written.architecture.json, config, subject, find);
    config.morph.steps = written.morph.steps;
    config.morph.evenness = written.morph.evenness;
    if (!written.morph.to.json.is_null()) {
      config.morph.to = morph_target(config.architecture, written.morph.to.json, "morph.to", find);
    }
    RangeChecker ranges("", problems);
    describe(ranges, written);
    check_config(config, problems);
  }
  problems.throw_if_any(subject);
  return std::move(config);
}

nlohmann::ordered_json train_config_to_json(const TrainConfig& config) {
  WrittenConfig written{
      {architecture_to_json(config.architecture)}, {{}, config.morph.steps, config.morph.evenness}, config};
  if (config.morph.to) {
    written.morph.to.json = architecture_to_json(*config.morph.to);
  }
  return JsonWriter::write(written);
}

std::vector<ConfigKey> train_config_keys() {
  WrittenConfig written;
  KeyLister lister("");
  describe(lister, written);
  for (ConfigKey& key : lister.keys) {
    if (key.key == "architecture") {
      key.fallback = "required without from";
    }
  }
  lister.keys.push_back({"sweep", "none",
                         "several runs: {\"seeds\": [...], KEY: [...], \"variants\": {NAME: {KEY: VALUE}}}, each in a "
                         "folder of its own"});
  return lister.keys;
}

const Architecture& last_architecture(const TrainConfig& config) {
  return config.morph.to ? *config.morph.to : config.architecture;
}

bool has_other_parts(const TrainConfig& config) {
  return !config.teacher.empty() || config.morph.to.has_value() || config.conditioning.weight > 0;
}

int64_t context_of(const TrainConfig& config) {
  switch (config.task) {
    case TrainTask::sorting:
    case TrainTask::copying:
      return 2 * config.data.length;  // problem, mark, answer, less the last token, which is only an answer
    case TrainTask::addition:
      return 3 * config.data.length + 2;
    default:
      return config.context > 0 && !config.architecture.embedding.patch ? config.context : config.architecture.context;
  }
}

bool is_generated(TrainTask task) {
  return task == TrainTask::sorting || task == TrainTask::copying || task == TrainTask::addition;
}

const char* word(TrainTask task) {
  return word_of(task);
}

const char* word(DataFormat format) {
  return word_of(format);
}

const char* word(TrainDtype dtype) {
  return word_of(dtype);
}

}  // namespace pare
