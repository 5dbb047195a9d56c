#include "pare/probes/twin.h"

#include <algorithm>
#include <map>

#include "pare/arch/norms.h"

namespace pare {

namespace {

constexpr double twin_epsilon = 0.1;

// As `size` is to `width` in the original: less, as many, or more.
int64_t related(int64_t size, int64_t width, int64_t twin_width, int64_t more) {
  return size == width ? twin_width : size > width ? twin_width + more : std::max<int64_t>(twin_width - 2, 1);
}

struct HeadShape {
  int64_t heads = 0, kv_heads = 0, width = 0, turned = 0;
};

bool any_block(const Architecture& a, bool (*holds)(const Attention&)) {
  return std::ranges::any_of(a.blocks, [&](const Block& b) { return holds(b.attention); });
}

// A projection without a matrix: so many heads together are as wide as the stream.
bool keeps_query(const Attention& t) {
  return is<Identity>(t.query) || is<Nonlinear>(t.query) || is<Identity>(t.output);
}
bool keeps_key(const Attention& t) {
  return is<Identity>(t.key) || is<Identity>(t.value);
}

// Few heads, narrow ones; what turns and what does not, one or several query heads for a key head.
HeadShape small_heads(const Attention& t) {
  HeadShape shape;
  shape.kv_heads = std::min<int64_t>(t.kv_heads, 2);
  shape.heads = shape.kv_heads * (t.heads > t.kv_heads ? 2 : 1);
  const bool partly = t.rope && t.rope->width < t.head_width;
  // Four heads make a wide twin: of narrow heads then, where one plane turns, or nothing. So does a gate, whose
  // computed positions turn the more slowly the wider the stream is.
  const int64_t wide = shape.heads == 4 || t.gate ? (t.rope && !partly ? 2 : t.gate || partly ? 3 : 2) : t.rope ? 4 : 3;
  shape.width = std::min<int64_t>(t.head_width, wide);
  shape.turned = !t.rope ? 0 : partly ? std::min<int64_t>(t.rope->width, 2) : shape.width / 2 * 2;
  return shape;
}

// The block whose heads say how wide the stream is: one without a matrix somewhere, or the first.
const Attention& leading_block(const Architecture& a) {
  for (const Block& block : a.blocks) {
    if (keeps_query(block.attention) || keeps_key(block.attention)) {
      return block.attention;
    }
  }
  return a.blocks.front().attention;
}

// The stream as wide as the heads of that block together, where it was.
int64_t small_width(const Architecture& a) {
  const Attention& t = leading_block(a);
  const HeadShape shape = small_heads(t);
  const bool by_keys = keeps_key(t);
  const int64_t together = (by_keys ? shape.kv_heads : shape.heads) * shape.width;
  const int64_t before = (by_keys ? t.kv_heads : t.heads) * t.head_width;
  const int64_t width = before == a.width ? together : before > a.width ? together - 1 : together + 2;
  // A head narrower than the stream stays so.
  return t.head_width < a.width && before != a.width ? std::max(width, shape.width + 2) : width;
}

class TwinMaker {
 public:
  explicit TwinMaker(const Architecture& a) : a_(a), width_(small_width(a)), twin_(a) {}

  Architecture make() {
    twin_.width = width_;
    keep_blocks();
    for (Block& block : twin_.blocks) {
      shrink(block);
    }
    shrink_ends();
    set_epsilons();
    return twin_;
  }

 private:
  // Two of each kind of block, or one where there are many kinds, and the layers that run them.
  void keep_blocks() {
    std::map<int64_t, int64_t> place;  // where each block that is kept goes
    std::vector<Block> kept;
    size_t kinds = 0;
    for (const Block& block : a_.blocks) {
      kinds += std::count(a_.blocks.data(), &block, block) == 0 ? 1 : 0;
    }
    for (int64_t n = 0; n < std::ssize(a_.blocks); ++n) {
      const Block& block = a_.blocks[n];
      if (std::ranges::count(kept, block) < (kinds > 2 ? 1 : 2)) {
        place[n] = std::ssize(kept);
        kept.push_back(block);
      }
    }
    twin_.blocks = kept;
    if (!a_.layers) {
      return;
    }
    std::map<int64_t, int> runs;
    std::vector<int64_t> layers;
    for (int64_t n : *a_.layers) {
      if (place.contains(n) && runs[n]++ < 2) {
        layers.push_back(place.at(n));
      }
    }
    twin_.layers = layers;
  }

  int64_t inner_width(int64_t width) const { return related(width, a_.width, width_, 3); }

  // Without a matrix the heads together are the stream, whatever other blocks have.
  HeadShape fitted(const Attention& t, HeadShape shape) const {
    if (!keeps_query(t) && !keeps_key(t)) {
      return shape;
    }
    const Attention& leading = leading_block(a_);
    shape.width = small_heads(leading).width;
    shape.turned = std::min(shape.turned, shape.width / 2 * 2);
    const int64_t count = width_ / shape.width, group = t.heads / t.kv_heads > 1 ? 2 : 1;
    shape.kv_heads = keeps_key(t) ? count : count % group == 0 ? count / group : count;
    shape.heads = keeps_query(t) ? count : shape.kv_heads * group;
    return shape;
  }

  void shrink(Block& block) {
    Attention& t = block.attention;
    const HeadShape shape = fitted(t, small_heads(t));
    t.heads = shape.heads;
    t.kv_heads = shape.kv_heads;
    t.head_width = shape.width;
    if (t.rope) {
      *t.rope = {.theta = 100, .width = shape.turned, .layout = t.rope->layout};  // planes need only turn differently
    }
    t.window = t.window ? std::optional(std::min<int64_t>(*t.window, 3)) : std::nullopt;
    t.softcap = t.softcap ? std::optional(2.0) : std::nullopt;
    t.scale = t.scale ? std::optional(0.4) : std::nullopt;
    if (Nonlinear* query = std::get_if<Nonlinear>(&t.query)) {
      query->width = inner_width(query->width);
    }
    if (block.mlp) {
      std::visit([this](auto& kind) { kind.width = inner_width(kind.width); }, block.mlp->kind);
    }
  }

  // How many more tokens than the stream is wide. A parallel MLP of the first layer, with no position before it, sees
  // single tokens: so few would not tell its neurons apart. Nor would they always turn a neuron of ReLU on and off.
  int64_t more_tokens() const {
    const Block& first = twin_.blocks[layer_blocks(twin_)[0]];
    if (first.wiring == Wiring::parallel && twin_.embedding.position == Position::none) {
      return 4 * width_ + 9;
    }
    return has_switches(twin_) ? width_ + 4 : 3;
  }

  // Computed positions turn slowly: over a few tokens the slowest of them are no more than constants.
  int64_t turning_context() const {
    const bool gated = any_block(a_, [](const Attention& t) { return t.gate.has_value(); });
    const Position position = a_.embedding.position;
    const bool computed = position == Position::sinusoidal || position == Position::sinusoidal_halves;
    if (a_.context <= a_.width || (!computed && !gated)) {
      return 0;
    }
    return a_.embedding.position == Position::learned ? 40 : 64;
  }

  void shrink(std::optional<HeadTransform>& transform) {
    if (transform && transform->width) {
      transform->width = related(*transform->width, a_.width, width_, 2);
    }
  }

  void shrink_ends() {
    Embedding& e = twin_.embedding;
    twin_.vocab = a_.vocab == 0 ? 0 : related(a_.vocab, a_.width, width_, more_tokens());
    twin_.context = std::max(related(a_.context, a_.width, width_, 3), turning_context());
    e.scale = e.scale == 1 ? 1 : 1.5;
    e.types = std::min<int64_t>(e.types, 2);
    e.position_offset = std::min<int64_t>(e.position_offset, 2);
    e.position_pad = e.position_pad ? std::optional<int64_t>(1) : std::nullopt;
    e.registers = std::min<int64_t>(e.registers, 2);
    if (e.masked) {
      e.masked->id = 2 % twin_.vocab;
    }
    e.factor = e.factor ? std::optional(related(*e.factor, a_.width, width_, 2)) : std::nullopt;
    if (e.patch) {
      const int64_t pixels = related(e.patch->channels * e.patch->size * e.patch->size, a_.width, width_, 2);
      e.patch = Patch{.size = 1, .channels = pixels, .image = 2, .bias = e.patch->bias};
      twin_.context = patch_positions(twin_);
    }
    Head& h = twin_.head;
    h.softcap = h.softcap ? std::optional(3.0) : std::nullopt;
    h.scale = h.scale == 1 ? 1 : 1.5;
    h.pool_token = h.pool_token ? std::optional<int64_t>(0) : std::nullopt;
    h.classes = h.classes && *h.classes > 3 ? std::optional(related(*h.classes, a_.width, width_, 2)) : h.classes;
    shrink(h.transform);
    if (h.sequence) {
      shrink(h.sequence->transform);
    }
  }

  void set_epsilons() {
    for (const PlacedNorm& placed : norms_of(twin_)) {
      placed.norm->epsilon = twin_epsilon;
    }
    for (Block& block : twin_.blocks) {
      if (block.attention.qk_norm) {
        block.attention.qk_norm->epsilon = twin_epsilon;
      }
    }
  }

  const Architecture& a_;
  int64_t width_ = 0;
  Architecture twin_;
};

}  // namespace

Architecture small_twin(const Architecture& architecture) {
  return TwinMaker(architecture).make();
}

TwinProof prove_redundancy(const Architecture& architecture) {
  TwinProof proof;
  proof.twin = small_twin(architecture);
  proof.counted = redundancy(proof.twin);
  proof.measured = jacobian_rank(proof.twin, 1, proof.counted.total);
  return proof;
}

}  // namespace pare
