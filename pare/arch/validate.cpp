#include "pare/arch/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "pare/arch/head.h"
#include "pare/arch/tensors.h"

namespace pare {

namespace {

// Bounds on numbers that come from files: far above any model, far below what overflows.
constexpr int64_t kMostOfAnything = int64_t{1} << 31;
constexpr int64_t kMostBlocks = 10'000;
constexpr size_t kMostLayers = 100'000;

class Validator {
 public:
  Validator(const Architecture& architecture, Problems& problems) : a_(architecture), problems_(problems) {}

  void run() {
    in_range("width", a_.width);
    in_range("context", a_.context);
    embedding();
    blocks();
    if (problems_.empty()) {
      layers();
    }
    norm("final_norm", a_.final_norm, false);
    head();
    if (problems_.empty() && a_.first_layer == FirstLayer::table) {
      first_layer_table();
    }
    if (problems_.empty()) {
      sizes();
    }
  }

 private:
  template <class... Args>
  void require(bool holds, const std::string& path, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds) {
      problems_.add(path + ": " + fmt::format(text, std::forward<Args>(args)...));
    }
  }
  void in_range(const std::string& path, int64_t value, int64_t least = 1, int64_t most = kMostOfAnything) {
    require(value >= least && value <= most, path, "{} is not between {} and {}", value, least, most);
  }

  void norm(const std::string& path, const std::optional<Norm>& norm, bool may_be_post) {
    if (!norm) {
      return;
    }
    require(norm->epsilon >= 0, path + ".epsilon", "{} is negative", norm->epsilon);
    require(norm->gain || norm->offset == 0, path + ".offset", "{} is added to a gain, and there is none",
            norm->offset);
    require(may_be_post || norm->place == NormPlace::pre, path + ".place", "post is for serial sublayers only");
  }

  void embedding() {
    const Embedding& e = a_.embedding;
    if (e.patch) {
      const std::string path = "embedding.patch.";
      require(a_.vocab == 0, "vocab", "{} with patches: an image model has no tokens", a_.vocab);
      in_range(path + "size", e.patch->size);
      in_range(path + "channels", e.patch->channels);
      in_range(path + "image", e.patch->image);
      if (!problems_.empty()) {
        return;
      }
      require(e.patch->image % e.patch->size == 0, path + "size", "{} does not divide image {}", e.patch->size,
              e.patch->image);
      require(a_.context == patch_positions(a_), "context", "{} is not the {} positions of the patches{}", a_.context,
              patch_positions(a_), e.class_token ? " and the class token" : "");
      require(!e.factor, "embedding.factor", "a factorised table needs tokens, not patches");
      require(a_.task == Task::encoder || a_.task == Task::classifier || a_.task == Task::token_classifier, "task",
              "patches have no tokens to predict");
    } else {
      in_range("vocab", a_.vocab);
      require(!e.class_token, "embedding.class_token", "is for patches; a text model puts it into the vocabulary");
    }
    in_range("embedding.position_offset", e.position_offset, 0);
    require(e.position_offset == 0 || e.position == Position::learned, "embedding.position_offset",
            "{} without learned positions", e.position_offset);
    if (e.position_pad) {
      in_range("embedding.position_pad", *e.position_pad, 0, std::max<int64_t>(a_.vocab - 1, 0));
      require(e.position_offset > 0, "embedding.position_pad", "needs a row before the first: position_offset is 0");
    }
    in_range("embedding.types", e.types, 0);
    if (e.factor) {
      in_range("embedding.factor", *e.factor);
    }
    require(e.factor || !e.factor_bias, "embedding.factor_bias", "there is no factor");
    norm("embedding.norm", e.norm, false);
  }

  void blocks() {
    require(!a_.blocks.empty(), "blocks", "is empty");
    int64_t total = 0;
    for (size_t i = 0; i < a_.blocks.size(); ++i) {
      const std::string path = fmt::format("blocks[{}].", i);
      const Block& block = a_.blocks[i];
      in_range(path + "repeat", block.repeat, 1, kMostBlocks);
      total += std::min(block.repeat, kMostBlocks);
      attention(path + "attention.", block);
      if (block.mlp) {
        mlp(path + "mlp.", block);
      }
    }
    require(total <= kMostBlocks, "blocks", "{} blocks are more than {}", total, kMostBlocks);
  }

  void attention(const std::string& path, const Block& block) {
    const Attention& t = block.attention;
    const size_t before = problems_.list().size();
    in_range(path + "heads", t.heads);
    in_range(path + "kv_heads", t.kv_heads);
    in_range(path + "head_width", t.head_width);
    if (problems_.list().size() != before) {
      return;
    }
    require(t.heads % t.kv_heads == 0, path + "kv_heads", "{} does not divide heads {}", t.kv_heads, t.heads);
    if (t.window) {
      in_range(path + "window", *t.window);
    }
    if (t.softcap) {
      require(*t.softcap > 0, path + "softcap", "{} is not positive", *t.softcap);
    }
    if (t.rope) {
      rope(path + "rope.", *t.rope, t.head_width);
    }
    projections(path, t);
    scores(path, t);
    values(path, t);
    cache(path, t);
    const bool serial = block.wiring == Wiring::serial;
    norm(path + "norm", t.norm, serial);
    norm(path + "output_norm", t.output_norm, false);
    norm(path + "qk_norm", t.qk_norm, false);
    require(!t.qk_norm || t.qk_norm->kind != NormKind::dyt, path + "qk_norm.kind", "dyt is not a norm of heads");
  }

  void projections(const std::string& path, const Attention& t) {
    identity(path, "query", t.query, "heads", t.heads, t.head_width);
    identity(path, "key", t.key, "kv_heads", t.kv_heads, t.head_width);
    identity(path, "value", t.value, "kv_heads", t.kv_heads, t.head_width);
    identity(path, "output", t.output, "heads", t.heads, t.head_width);
    for (const auto& [name, projection] : {std::pair{"key", &t.key}, {"value", &t.value}, {"output", &t.output}}) {
      const bool plain = projection->kind == ProjectionKind::dense || projection->kind == ProjectionKind::identity;
      require(plain, path + name, "must be dense or identity; only a query may be 'key' or nonlinear");
    }
    if (t.query.kind == ProjectionKind::key) {
      require(t.kv_heads == t.heads, path + "query", "'key' needs kv_heads = heads, found {} and {}", t.kv_heads,
              t.heads);
      require(!t.bias.query, path + "bias.query", "a query that is the key has the key's bias");
    }
    if (t.query.kind == ProjectionKind::nonlinear) {
      in_range(path + "query.nonlinear.width", t.query.nonlinear.width);
    }
  }

  void identity(const std::string& path, const char* name, const Projection& projection, const char* heads_name,
                int64_t heads, int64_t head_width) {
    const bool keeps_width =
        projection.kind == ProjectionKind::identity || projection.kind == ProjectionKind::nonlinear;
    require(!keeps_width || heads * head_width == a_.width, path + name,
            "identity needs {} * head_width = width, found {} * {} and {}", heads_name, heads, head_width, a_.width);
  }

  void scores(const std::string& path, const Attention& t) {
    if (t.scores == Form::collapsed) {
      require(!t.rope && !t.qk_norm, path + "scores",
              "collapsed scores allow neither rope nor qk_norm between the factors");
      require(t.query.kind == ProjectionKind::dense && t.key.kind == ProjectionKind::dense, path + "scores",
              "collapsed scores replace query and key: leave both dense");
      require(!t.bias.key, path + "bias.key", "collapsed scores have no key bias: softmax ignores it");
    }
    if (t.pairs.query_key == PairForm::shrunk) {
      require(t.scores == Form::factored && t.key.kind == ProjectionKind::dense && !t.rope && !t.qk_norm &&
                  t.query.kind != ProjectionKind::key && t.cache != CacheKind::v,
              path + "pairs.query_key", "shrunk needs a stored dense key of its own, and neither rope nor qk_norm");
      require(t.head_width < a_.width, path + "pairs.query_key", "shrunk needs head_width {} < width {}", t.head_width,
              a_.width);
    }
  }

  void values(const std::string& path, const Attention& t) {
    if (t.values == Form::collapsed) {
      require(t.value.kind == ProjectionKind::dense && t.output.kind == ProjectionKind::dense, path + "values",
              "collapsed values replace value and output: leave both dense");
      require(!t.bias.value, path + "bias.value", "collapsed values have only an output bias");
    }
    if (t.pairs.value_output == PairForm::shrunk) {
      require(t.values == Form::factored && t.value.kind == ProjectionKind::dense && t.cache != CacheKind::k,
              path + "pairs.value_output", "shrunk needs a stored dense value");
      require(t.head_width < a_.width, path + "pairs.value_output", "shrunk needs head_width {} < width {}",
              t.head_width, a_.width);
    }
  }

  void cache(const std::string& path, const Attention& t) {
    if (t.cache == CacheKind::kv) {
      return;
    }
    require(t.mask == Mask::causal, path + "cache", "only causal attention is cached");
    require(t.scores == Form::factored && t.values == Form::factored, path + "cache",
            "needs factored scores and values");
    require(t.cache != CacheKind::k || t.value.kind == ProjectionKind::dense, path + "cache",
            "k replaces the value matrix: leave value dense");
    require(t.cache != CacheKind::v || (t.key.kind == ProjectionKind::dense && t.query.kind != ProjectionKind::key),
            path + "cache", "v replaces the key matrix: leave key dense, and query not 'key'");
  }

  void rope(const std::string& path, const Rope& r, int64_t head_width) {
    require(r.theta > 0, path + "theta", "{} is not positive", r.theta);
    in_range(path + "width", r.width, 2, head_width);
    require(r.width % 2 == 0, path + "width", "{} is odd: dimensions turn in pairs", r.width);
    if (!r.scaling) {
      return;
    }
    const RopeScaling& s = *r.scaling;
    const std::string at = path + "scaling.";
    require(s.factor > 0, at + "factor", "{} is not positive", s.factor);
    require(s.kind == RopeScalingKind::linear || s.original_context >= 1, at + "original_context", "{} is below 1",
            s.original_context);
    require(s.attention_factor > 0, at + "attention_factor", "{} is not positive", s.attention_factor);
    require(s.kind != RopeScalingKind::yarn || (s.beta_fast > 0 && s.beta_slow > 0), at + "beta_fast",
            "{} and beta_slow {} must be positive", s.beta_fast, s.beta_slow);
    require(s.kind != RopeScalingKind::yarn || r.theta > 1, path + "theta", "yarn needs theta above 1, found {}",
            r.theta);
    require(s.kind != RopeScalingKind::llama3 || s.low_frequency < s.high_frequency, at + "low_frequency",
            "{} is not below high_frequency {}", s.low_frequency, s.high_frequency);
    require(s.kind != RopeScalingKind::llama3 || s.low_frequency > 0, at + "low_frequency", "{} is not positive",
            s.low_frequency);
    require(s.kind != RopeScalingKind::dynamic || r.width > 2, path + "width",
            "dynamic scaling needs more than one plane");
    if (s.kind == RopeScalingKind::longrope) {
      for (const auto& [name, factors] :
           {std::pair{"short_factor", &s.short_factor}, {"long_factor", &s.long_factor}}) {
        require(static_cast<int64_t>(factors->size()) == r.width / 2, at + name,
                "has {} entries, expected width / 2 = {}", factors->size(), r.width / 2);
        for (double factor : *factors) {
          require(factor > 0, at + name, "{} is not positive", factor);
        }
      }
    }
  }

  void mlp(const std::string& path, const Block& block) {
    const Mlp& m = *block.mlp;
    in_range(path + "width", m.width);
    require(m.gated || !m.bias.gate, path + "bias.gate", "there is no gate");
    require(m.kind == MlpKind::dense || !m.bias.up, path + "bias.up",
            "a neuron head has its bias in the last column of query");
    norm(path + "norm", m.norm, block.wiring == Wiring::serial);
    norm(path + "output_norm", m.output_norm, false);
  }

  void layers() {
    if (!a_.layers) {
      return;
    }
    const int64_t distinct = static_cast<int64_t>(expanded_blocks(a_).size());
    require(!a_.layers->empty() && a_.layers->size() <= kMostLayers, "layers", "has {} entries, expected 1 to {}",
            a_.layers->size(), kMostLayers);
    std::set<int64_t> used;
    for (size_t i = 0; i < a_.layers->size(); ++i) {
      const int64_t n = (*a_.layers)[i];
      require(n >= 0 && n < distinct, fmt::format("layers[{}]", i), "{} is no block: there are {}, counted from 0", n,
              distinct);
      used.insert(n);
    }
    for (int64_t n = 0; n < distinct; ++n) {
      require(used.contains(n), "layers", "block {} is stored but never run", n);
    }
  }

  void transform(const std::string& path, const std::optional<HeadTransform>& transform) {
    if (transform) {
      norm(path + ".norm", transform->norm, false);
      in_range(path + ".width", transform->width.value_or(1));
    }
  }

  void head() {
    const Head& h = a_.head;
    const bool language_model = is_language_model(a_);
    require(!h.tied || language_model, "head.tied", "only a language model has a head of the table's shape");
    require(language_model || !h.softcap, "head.softcap", "only a language model has one");
    require(h.classes.has_value() == has_classes(a_), "head.classes",
            "a classifier needs a number, nothing else has one");
    if (h.classes) {
      in_range("head.classes", *h.classes);
    }
    const bool start_and_end = a_.task == Task::question_answering, yes_or_no = a_.task == Task::next_sentence;
    require(!start_and_end || h.classes == 2, "head.classes", "question answering has 2: where it starts and ends");
    require(!yes_or_no || h.classes == 2, "head.classes", "a next sentence has 2: it follows or not");
    require(a_.task != Task::encoder || !h.bias, "head.bias", "an encoder has no head");
    require(!h.softcap || *h.softcap > 0, "head.softcap", "{} is not positive", h.softcap.value_or(0));
    transform("head.transform", h.transform);
    require(!h.tied || head_input_width(a_) == token_width(a_), "head.tied",
            "the head reads width {} but the table has factor {}: a transform has to bring one to the other",
            head_input_width(a_), token_width(a_));
    require(h.pool != Pool::last || answers_sequences(a_) || has_pooler(a_) || h.sequence, "head.pool",
            "last is for what answers for a whole sequence: a classifier, a pooler, a second head");
    require(h.pool != Pool::none || (a_.task == Task::encoder && h.transform), "head.pool",
            "none is for an encoder that ends in a transform of each token");
    require(!h.sequence || language_model, "head.sequence", "is a second head, beside that of a language model");
    if (h.sequence) {
      in_range("head.sequence.classes", h.sequence->classes);
      transform("head.sequence.transform", h.sequence->transform);
    }
  }

  void first_layer_table() {
    const std::vector<int64_t> layers = layer_blocks(a_);
    const Block block = expanded_blocks(a_)[static_cast<size_t>(layers[0])];
    const Attention& t = block.attention;
    const std::string path = "first_layer";
    require(a_.embedding.position == Position::none && a_.embedding.types == 0 && !a_.embedding.patch, path,
            "a table per token needs the first projections to see nothing but the token");
    require(std::count(layers.begin(), layers.end(), layers[0]) == 1, path, "the first block is run again later");
    require(block.wiring == Wiring::serial && !t.gate, path,
            "a parallel MLP or a gate reads the same input as the projections");
    require(t.scores == Form::factored && t.values == Form::factored && t.pairs == Pairs{} && t.cache == CacheKind::kv,
            path, "needs factored scores and values, full pairs and a kv cache in the first block");
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
    require(total < 0x1p56, "width", "the model would have more than 2^56 parameters");
  }

  const Architecture& a_;
  Problems& problems_;
};

}  // namespace

void validate(const Architecture& architecture, Problems& problems) {
  Problems own;  // rules that only make sense once others hold look at what this architecture has so far
  Validator(architecture, own).run();
  for (const std::string& problem : own.list()) {
    problems.add(problem);
  }
}

}  // namespace pare
