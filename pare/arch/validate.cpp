#include "pare/arch/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "pare/arch/architecture_json.h"
#include "pare/arch/head.h"
#include "pare/arch/sublayer.h"
#include "pare/arch/tensors.h"

namespace pare {

namespace {

constexpr size_t most_layers = 100'000;

// Every number that a model computes with is one of float32, whatever it is stored and run in: libtorch has no answer
// for the others.
void check_numbers(const nlohmann::ordered_json& json, const std::string& path, Rules& rules) {
  if (json.is_number_float()) {
    rules.require(std::abs(json.get<double>()) <= std::numeric_limits<float>::max(), path,
                  "{:g} is beyond what float32 can hold", json.get<double>());
    return;
  }
  for (const auto& [key, value] : json.items()) {
    if (value.is_structured() || value.is_number_float()) {
      check_numbers(value,
                    json.is_array() ? fmt::format("{}[{}]", path, key)
                    : path.empty()  ? key
                                    : path + "." + key,
                    rules);
    }
  }
}

class Validator {
 public:
  Validator(const Architecture& architecture, const std::vector<std::string>& paths)
      : a_(architecture), paths_(paths) {}

  const std::vector<std::string>& problems() const { return rules_.problems.list(); }

  void run() {
    rules_.in_range("width", a_.width);
    rules_.in_range("context", a_.context);
    embedding();
    blocks();
    if (rules_.problems.empty()) {
      layers();
    }
    check_norm(rules_, "final_norm", a_.final_norm, false);
    head();
    if (rules_.problems.empty() && a_.first_layer == FirstLayer::table) {
      first_layer_table();
    }
    if (rules_.problems.empty()) {
      sizes();
    }
    if (rules_.problems.empty()) {  // who cannot be written has other problems
      check_numbers(architecture_to_json(a_), "", rules_);
    }
  }

 private:
  void embedding() {
    const Embedding& e = a_.embedding;
    if (e.patch) {
      const std::string path = "embedding.patch.";
      rules_.require(a_.vocab == 0, "vocab", "{} with patches: an image model has no tokens", a_.vocab);
      rules_.in_range(path + "size", e.patch->size);
      rules_.in_range(path + "channels", e.patch->channels);
      rules_.in_range(path + "image", e.patch->image);
      if (!rules_.problems.empty()) {
        return;
      }
      rules_.require(e.patch->image % e.patch->size == 0, path + "size", "{} does not divide image {}", e.patch->size,
                     e.patch->image);
      rules_.require(a_.context == patch_positions(a_), "context", "{} is not the {} positions of the patches{}{}",
                     a_.context, patch_positions(a_), e.class_token ? " and the class token" : "",
                     e.registers > 0 ? " and the registers" : "");
      rules_.require(!e.factor, "embedding.factor", "a factorised table needs tokens, not patches");
      rules_.require(a_.task == Task::encoder || a_.task == Task::classifier || a_.task == Task::token_classifier,
                     "task", "patches have no tokens to predict");
    } else {
      rules_.in_range("vocab", a_.vocab);
      rules_.require(!e.class_token, "embedding.class_token",
                     "is for patches; a text model puts it into the vocabulary");
      rules_.require(e.registers == 0, "embedding.registers", "are for patches, found {}", e.registers);
    }
    rules_.in_range("embedding.registers", e.registers, 0);
    rules_.require(!e.registers_placed || e.registers > 0, "embedding.registers_placed", "there are no registers");
    rules_.require(e.registers == 0 || e.class_token, "embedding.registers",
                   "stand behind a class token: there is none");
    if (e.masked) {
      rules_.in_range("embedding.masked.id", e.masked->id, 0, std::max<int64_t>(a_.vocab - 1, 0));
      rules_.require(e.masked->usual >= 0 && e.masked->usual < 1, "embedding.masked.usual", "{} is no share below 1",
                     e.masked->usual);
      rules_.require(a_.first_layer == FirstLayer::dense, "embedding.masked",
                     "a table per token does not see the others");
    }
    rules_.in_range("embedding.position_offset", e.position_offset, 0);
    rules_.require(
        e.position_offset == 0 || e.position == Position::learned || e.position == Position::sinusoidal_halves,
        "embedding.position_offset", "{} without learned positions", e.position_offset);
    if (e.position_pad) {
      rules_.in_range("embedding.position_pad", *e.position_pad, 0, std::max<int64_t>(a_.vocab - 1, 0));
      rules_.require(e.position_offset > 0, "embedding.position_pad",
                     "needs a row before the first: position_offset is 0");
    }
    rules_.in_range("embedding.types", e.types, 0);
    if (e.factor) {
      rules_.in_range("embedding.factor", *e.factor);
    }
    rules_.require(e.factor || !e.factor_bias, "embedding.factor_bias", "there is no factor");
    check_norm(rules_, "embedding.norm", e.norm, false);
  }

  void blocks() {
    rules_.require(!a_.blocks.empty(), "blocks", "is empty");
    rules_.require(std::ssize(a_.blocks) <= most_blocks, "blocks", "{} blocks are more than {}", a_.blocks.size(),
                   most_blocks);
    for (size_t n = 0; n < a_.blocks.size(); ++n) {
      const Block& block = a_.blocks[n];
      if (n > 0 && block == a_.blocks[n - 1]) {  // whatever is wrong with it was said
        continue;
      }
      const std::string path = n < paths_.size() ? paths_[n] : fmt::format("blocks[{}].", n);
      check_attention(rules_, path + "attention.", block, a_.width);
      if (block.mlp) {
        check_mlp(rules_, path + "mlp.", block);
      }
    }
  }

  void layers() {
    if (!a_.layers) {
      return;
    }
    const int64_t distinct = static_cast<int64_t>(a_.blocks.size());
    rules_.require(!a_.layers->empty() && a_.layers->size() <= most_layers, "layers",
                   "has {} entries, expected 1 to {}", a_.layers->size(), most_layers);
    std::set<int64_t> used;
    for (size_t i = 0; i < a_.layers->size(); ++i) {
      const int64_t n = (*a_.layers)[i];
      rules_.require(n >= 0 && n < distinct, fmt::format("layers[{}]", i),
                     "{} is no block: there are {}, counted from 0", n, distinct);
      used.insert(n);
    }
    for (int64_t n = 0; n < distinct; ++n) {
      rules_.require(used.contains(n), "layers", "block {} is stored but never run", n);
    }
  }

  void transform(const std::string& path, const std::optional<HeadTransform>& transform) {
    if (transform) {
      check_norm(rules_, path + ".norm", transform->norm, false);
      rules_.in_range(path + ".width", transform->width.value_or(1));
    }
  }

  void head() {
    const Head& h = a_.head;
    const bool language_model = is_language_model(a_);
    rules_.require(!h.tied || language_model, "head.tied", "only a language model has a head of the table's shape");
    rules_.require(language_model || !h.softcap, "head.softcap", "only a language model has one");
    rules_.require(h.classes.has_value() == has_classes(a_), "head.classes",
                   "a classifier needs a number, nothing else has one");
    if (h.classes) {
      rules_.in_range("head.classes", *h.classes);
    }
    const bool start_and_end = a_.task == Task::question_answering, yes_or_no = a_.task == Task::next_sentence;
    rules_.require(!start_and_end || h.classes == 2, "head.classes",
                   "question answering has 2: where it starts and ends");
    rules_.require(!yes_or_no || h.classes == 2, "head.classes", "a next sentence has 2: it follows or not");
    rules_.require(a_.task != Task::encoder || !h.bias, "head.bias", "an encoder has no head");
    rules_.require(language_model || h.scale == 1, "head.scale", "only a language model has one");
    rules_.require(h.scale != 0, "head.scale", "0 leaves nothing");
    rules_.require(!h.softcap || *h.softcap > 0, "head.softcap", "{} is not positive", h.softcap.value_or(0));
    transform("head.transform", h.transform);
    rules_.require(!h.tied || head_input_width(a_) == token_width(a_), "head.tied",
                   "the head reads width {} but the table has factor {}: a transform has to bring one to the other",
                   head_input_width(a_), token_width(a_));
    rules_.require(h.pool != Pool::last || answers_sequences(a_) || has_pooler(a_) || h.sequence, "head.pool",
                   "last is for what answers for a whole sequence: a classifier, a pooler, a second head");
    rules_.require(h.pool != Pool::mean || answers_sequences(a_) || has_pooler(a_) || h.sequence, "head.pool",
                   "mean is for what answers for a whole sequence");
    rules_.require(h.pool == Pool::token || !h.pool_token, "head.pool_token",
                   "is the id of pool = token, and of nothing else");
    if (h.pool_token) {
      rules_.in_range("head.pool_token", *h.pool_token, 0, std::max<int64_t>(a_.vocab - 1, 0));
    }
    rules_.require(!h.pool_norm || answers_sequences(a_) || has_pooler(a_), "head.pool_norm",
                   "is for what answers for a whole sequence");
    check_norm(rules_, "head.pool_norm", h.pool_norm, false);
    attention_pool();
    rules_.require(h.pool != Pool::none || (a_.task == Task::encoder && h.transform), "head.pool",
                   "none is for an encoder that ends in a transform of each token");
    rules_.require(!h.sequence || language_model, "head.sequence", "is a second head, beside that of a language model");
    if (h.sequence) {
      rules_.in_range("head.sequence.classes", h.sequence->classes);
      transform("head.sequence.transform", h.sequence->transform);
    }
  }

  void attention_pool() {
    const Head& h = a_.head;
    const std::string path = "head.attention_pool";
    rules_.require((h.pool == Pool::attention) == h.attention_pool.has_value(), path,
                   "is for pool = attention, and for nothing else");
    if (!h.attention_pool) {
      return;
    }
    const AttentionPool& pool = *h.attention_pool;
    rules_.in_range(path + ".heads", pool.heads);
    rules_.in_range(path + ".mlp_width", pool.mlp_width);
    rules_.require(pool.heads > 0 && a_.width % pool.heads == 0, path + ".heads", "{} does not divide the width {}",
                   pool.heads, a_.width);
    rules_.require(pool.activation != Activation::xielu, path + ".activation", "xielu is for blocks");
    check_norm(rules_, path + ".norm", pool.norm, false);
    rules_.require(!h.pool_norm && !h.sequence && (answers_sequences(a_) || has_pooler(a_)), path,
                   "is for what answers for a whole sequence, without a norm of its own");
  }

  void first_layer_table() {
    const std::vector<int64_t> layers = layer_blocks(a_);
    const Block& block = a_.blocks[layers[0]];
    const Attention& t = block.attention;
    const std::string path = "first_layer";
    rules_.require(a_.embedding.position == Position::none && a_.embedding.types == 0 && !a_.embedding.patch, path,
                   "a table per token needs the first projections to see nothing but the token");
    rules_.require(std::ranges::count(layers, layers[0]) == 1, path, "the first block is run again later");
    rules_.require(block.wiring == Wiring::serial && !t.gate, path,
                   "a parallel MLP or a gate reads the same input as the projections");
    rules_.require(has_plain_keys_and_values(t), path,
                   "needs factored scores and values, full pairs and a kv cache in the first block");
  }

  // Every count of a valid model fits in 56 bits, so nobody after this has to think of overflow.
  void sizes() {
    double total = 0;
    for (const TensorSpec& spec : tensor_table(a_)) {
      double elements = 1;
      for (int64_t size : spec.shape) {
        elements *= static_cast<double>(size);
      }
      total += elements;
    }
    rules_.require(total < 0x1p56, "width", "the model would have more than 2^56 parameters");
  }

  const Architecture& a_;
  const std::vector<std::string>& paths_;
  Rules rules_;
};

}  // namespace

void validate(const Architecture& architecture, Problems& problems, const std::vector<std::string>& block_paths) {
  // Rules that only make sense once others hold look at what this architecture has so far.
  Validator validator(architecture, block_paths);
  validator.run();
  for (const std::string& problem : validator.problems()) {
    problems.add(problem);
  }
}

}  // namespace pare
