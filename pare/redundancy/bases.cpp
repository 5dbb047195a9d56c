// Bases: which linear maps of a stream its matrices can take, and nothing else would notice.

#include "pare/redundancy/tally.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "pare/arch/norms.h"
#include "pare/arch/streams.h"

namespace pare {

namespace {

// A norm between two streams: what it reads and what it writes.
struct NormEdge {
  Norm norm;
  size_t input = 0, output = 0;
};

// The projections without a matrix on a stream: what is left is a gauge of heads, one block for each group of heads.
struct HeadBlocks {
  int64_t groups = 0, heads = 0, width = 0, turned = 0;
  bool operator==(const HeadBlocks&) const = default;
};

int64_t linear_maps(const HeadBlocks& b) {
  const int64_t rest = b.width - b.turned;
  return b.groups * (b.turned + rest * rest);
}

int64_t rotations_of(const HeadBlocks& b) {
  return b.groups * (b.turned / 2 + rotations(b.width - b.turned));
}

class BasisCount {
 public:
  BasisCount(Tally& tally, const Architecture& a)
      : tally_(tally), a_(a), streams_(find_streams(a)), table_(tensor_table(a)) {
    const size_t count = streams_.all.size();
    fixed_.assign(count, false);
    parents_.resize(count);
    std::iota(parents_.begin(), parents_.end(), size_t{0});
  }

  void run() {
    find_edges();
    find_ends();
    for (size_t s = 0; s < streams_.all.size(); ++s) {
      look_at_touches(s);
    }
    settle_norms();
    tie();
    settle_norms();
    look_at_gains_before_norms();
    count_rotations();
    count_gains();
  }

 private:
  size_t root(size_t stream) const {
    while (parents_[stream] != stream) {
      stream = parents_[stream];
    }
    return stream;
  }
  void unite(size_t a, size_t b) { parents_[root(a)] = root(b); }
  bool fix(size_t stream) {
    const bool news = !fixed_[stream];
    fixed_[stream] = true;
    return news;
  }

  void find_edges() {
    Architecture copy = a_;
    for (const PlacedNorm& placed : norms_of(copy)) {
      NormEdge edge{.norm = *placed.norm};
      bool reads = false, writes = false;
      for (size_t s = 0; s < streams_.all.size(); ++s) {
        for (const Touch& touch : streams_.all[s].touches) {
          if (touch.module == placed.module && touch.kind == TouchKind::norm_reads) {
            edge.input = s;
            reads = true;
          } else if (touch.module == placed.module && touch.kind == TouchKind::norm_writes) {
            edge.output = s;
            writes = true;
          }
        }
      }
      if (reads && writes) {
        edges_.push_back(edge);
      }
    }
  }

  // The streams that a tied table lies on.
  void find_ends() {
    for (size_t s = 0; s < streams_.all.size(); ++s) {
      for (const Port& port : streams_.all[s].ports) {
        if (a_.head.tied && port.tensor == weight_of(token_table)) {
          (port.role == Role::writer ? token_ : tied_head_) = s;
        }
      }
    }
  }

  Activation activation_of(const ModuleId& module) const {
    return module.slot == Slot::transform ? a_.head.transform->activation : a_.head.sequence->transform->activation;
  }

  void look_at_touches(size_t s) {
    const Stream& stream = streams_.all[s];
    std::vector<HeadBlocks> blocks;
    for (const Touch& touch : stream.touches) {
      switch (touch.kind) {
        case TouchKind::hidden:
        case TouchKind::pooled:
        case TouchKind::elsewhere:
          fix(s);
          break;
        case TouchKind::activation:
          if (activation_of(touch.module) == Activation::relu ||
              activation_of(touch.module) == Activation::relu_squared) {
            tally_.cannot("a ReLU before the head");
          }
          if (activation_of(touch.module) != Activation::identity) {
            fix(s);
          }
          break;
        case TouchKind::sinusoidal:
          if (a_.context < stream.width) {
            tally_.cannot(
                fmt::format("{} computed positions leave some bases of width {} alone", a_.context, stream.width));
          }
          fix(s);
          break;
        case TouchKind::identity:
          blocks.push_back(blocks_of(s, touch.module));
          break;
        case TouchKind::shrunk: {
          const Attention& t = a_.blocks[*touch.module.block].attention;
          const bool partner = touch.module.slot == Slot::value ? is<Dense>(t.output) : is<Dense>(t.query);
          if (!partner) {
            tally_.cannot("a shrunk matrix whose partner is not dense");
          }
          break;
        }
        case TouchKind::norm_reads:
        case TouchKind::norm_writes:
          break;
      }
    }
    if (!blocks.empty()) {
      heads_[s] = meet(s, blocks);
    }
  }

  HeadBlocks blocks_of(size_t s, const ModuleId& module) {
    const Attention& t = a_.blocks[*module.block].attention;
    const bool of_scores = module.slot == Slot::query || module.slot == Slot::key;
    const bool key_side = is<Identity>(t.key) || is<FromValue>(t.key) || is<Shrunk>(t.key);
    const bool query_side = !is<Dense>(t.query);
    if (of_scores && (t.qk_norm || (key_side && query_side) || is<SameAsKey>(t.query))) {
      tally_.cannot("a query and a key that both, or under a norm, have no matrix");
      fix(s);
    }
    if (!of_scores && (!is<Dense>(t.value) || !is<Dense>(t.output)) && !(is<Dense>(t.value) || is<Dense>(t.output))) {
      tally_.cannot("a value and an output that both have no matrix");
      fix(s);
    }
    if (!of_scores && (is<FromKey>(t.value) || is<FromValue>(t.key) || is<Shrunk>(t.value))) {
      tally_.cannot("an output without a matrix after a value that is computed");
      fix(s);
    }
    return {t.kv_heads, t.heads, t.head_width, of_scores && t.rope ? t.rope->width : 0};
  }

  HeadBlocks meet(size_t s, const std::vector<HeadBlocks>& blocks) {
    HeadBlocks least = blocks.front();
    for (const HeadBlocks& other : blocks) {
      HeadBlocks unturned = other, mine = least;
      unturned.turned = mine.turned = 0;
      if (unturned != mine || (other.turned != 0 && least.turned != 0 && other.turned != least.turned)) {
        tally_.cannot("projections without a matrix in heads of different shapes");
        fix(s);
      }
      least.turned = std::max(least.turned, other.turned);
    }
    return least;
  }

  std::vector<const NormEdge*> into(size_t s) const { return select(s, &NormEdge::output); }
  std::vector<const NormEdge*> out_of(size_t s) const { return select(s, &NormEdge::input); }
  std::vector<const NormEdge*> select(size_t s, size_t NormEdge::*end) const {
    std::vector<const NormEdge*> found;
    for (const NormEdge& edge : edges_) {
      if (edge.*end == s) {
        found.push_back(&edge);
      }
    }
    return found;
  }

  static bool all_dyt(const std::vector<const NormEdge*>& edges) {
    return std::ranges::all_of(edges, [](const NormEdge* e) { return e->norm.kind == NormKind::dyt; });
  }
  static bool all_gained(const std::vector<const NormEdge*>& edges) {
    return std::ranges::all_of(edges, [](const NormEdge* e) { return e->norm.gain; });
  }

  // A stream whose only norm is the one that writes it, with a gain: any diagonal passes on to the readers.
  bool takes_gain(size_t s) const {
    const std::vector<const NormEdge*> writing = into(s);
    return !writing.empty() && out_of(s).empty() && all_gained(writing) && !heads_.contains(s) && !fixed_[s];
  }

  // What one norm forbids another: until nothing changes.
  void settle_norms() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t s = 0; s < streams_.all.size(); ++s) {
        const std::vector<const NormEdge*> reading = out_of(s), writing = into(s);
        const bool any_dyt =
            std::ranges::any_of(reading, [](const NormEdge* e) { return e->norm.kind == NormKind::dyt; });
        if (any_dyt && !(all_dyt(reading) && all_gained(writing))) {
          changed = fix(s) || changed;
        }
        if (!reading.empty() && !any_dyt && !writing.empty() && std::ranges::any_of(writing, [](const NormEdge* e) {
              return e->norm.gain || e->norm.kind == NormKind::dyt;
            })) {
          changed = fix(s) || changed;
        }
        if (heads_.contains(s) && (!reading.empty() || !writing.empty())) {
          const bool plain = !any_dyt && std::ranges::none_of(edges_, [s](const NormEdge& e) {
            return (e.input == s || e.output == s) && (e.norm.gain || e.norm.kind != NormKind::rms);
          });
          if (!plain) {
            tally_.cannot("a projection without a matrix on a stream with norms");
            changed = fix(s) || changed;
          }
        }
      }
      for (const NormEdge& edge : edges_) {
        const bool scale = edge.norm.kind == NormKind::scale;  // that no matrix takes: see redundancy()
        if (scale || edge.norm.kind == NormKind::dyt) {
          changed = (scale && fix(edge.input)) || changed;
          changed = ((scale || !edge.norm.gain) && fix(edge.output)) || changed;
          continue;
        }
        const bool carries = edge.norm.gain ? takes_gain(edge.output) && into(edge.output).size() == 1 : true;
        if (!carries || fixed_[edge.output]) {
          changed = fix(edge.input) || changed;
        }
        if (!edge.norm.gain) {
          const std::vector<const NormEdge*> writing = into(edge.output);
          if (writing.size() > 1 && std::ranges::any_of(writing, [](const NormEdge* e) {
                return e->norm.gain || e->norm.kind == NormKind::dyt;
              })) {
            changed = fix(edge.output) || changed;
          }
          if (fixed_[edge.input]) {
            changed = fix(edge.output) || changed;
          }
        }
        if (carries && root(edge.input) != root(edge.output)) {
          unite(edge.input, edge.output);
        }
      }
    }
  }

  // Gains that a norm reads are seen only as the form that they make of its input, which other bases make too.
  void look_at_gains_before_norms() {
    const auto all_layer = [](const std::vector<const NormEdge*>& edges) {
      return std::ranges::all_of(edges, [](const NormEdge* e) { return e->norm.kind == NormKind::layer; });
    };
    std::vector<const NormEdge*> between;  // LayerNorms
    for (const NormEdge& edge : edges_) {
      const std::vector<const NormEdge*> reading = out_of(edge.output);
      if (!edge.norm.gain || edge.norm.kind == NormKind::dyt || reading.empty() || all_dyt(reading)) {
        continue;
      }
      if (streams_.all[edge.output].ports.empty()) {
        tally_.cannot("two norms in a row, the first with gains");
      }
      if (all_layer(reading) && all_layer(out_of(edge.input))) {
        between.push_back(&edge);
      }
    }
    // One rotation has to suit the gains of all norms that it passes: of two it is none.
    for (const NormEdge* edge : between) {
      const bool alone = std::ranges::none_of(between, [&](const NormEdge* other) {
        return other != edge && (other->input == edge->input || other->output == edge->output ||
                                 other->input == edge->output || other->output == edge->input);
      });
      if (alone) {
        tally_.cannot("one LayerNorm with gains between streams that LayerNorms read");
      }
    }
  }

  // ---- a tied table: what it writes in one basis it reads in the inverse of the other

  bool has_norms(size_t s) const { return !into(s).empty() || !out_of(s).empty(); }
  bool in_component_with_norms(size_t s) const {
    return std::ranges::any_of(edges_, [&](const NormEdge& e) {
      return e.norm.kind != NormKind::dyt && (root(e.input) == root(s) || root(e.output) == root(s));
    });
  }
  void fix_component(size_t s) {
    for (size_t other = 0; other < streams_.all.size(); ++other) {
      // Behind a gain the component's readers still take any diagonal.
      if (root(other) == root(s) && (other == s || !takes_gain(other))) {
        fix(other);
      }
    }
  }

  void tie() {
    if (!token_ || !tied_head_) {
      return;
    }
    const size_t t = *token_, h = *tied_head_;
    if (heads_.contains(t) || heads_.contains(h)) {
      if (t == h) {
        tally_.cannot("a tied head, and a projection without a matrix on the same stream");
      }
    }
    const bool gained = takes_gain(h);
    const std::vector<const NormEdge*> at_table = out_of(t), at_head = into(h);
    if (gained && !at_table.empty() && at_head.front()->norm.kind == NormKind::rms &&
        std::ranges::all_of(at_table, [](const NormEdge* e) { return e->norm.kind == NormKind::layer; })) {
      tally_.cannot("a tied head behind an RMSNorm with gains, where LayerNorms read the table");
    }
    if (t == h) {
      tied_to_itself_ = true;
      if (all_dyt(out_of(t)) && !out_of(t).empty()) {
        fix(t);
      }
      return;
    }
    if (fixed_[h] || fixed_[t]) {
      fix_component(fixed_[h] ? t : h);
      fix(t);
      fix(h);
      return;
    }
    if (root(t) == root(h)) {
      if (gained) {
        fix(h);
        fix_component(t);
        fix(t);
      }
      return;
    }
    const bool token_free = !has_norms(t), head_free = !has_norms(h);
    const bool token_heads = heads_.contains(t), head_heads = heads_.contains(h);
    if ((token_heads && (head_heads || !head_free)) || (head_heads && !token_free)) {
      tally_.cannot("a tied head, and projections without a matrix or norms at both of its ends");
      fix_component(t);
      fix_component(h);
      fix(t);
      fix(h);
    } else if (token_heads) {
      determined_ = h;  // by the token table's
    } else if (token_free) {
      determined_ = t;  // by the head's, but for what the LayerNorm before the head hides of the table
      const Norm* last = at_head.size() == 1 ? &at_head.front()->norm : nullptr;
      if (last && last->kind == NormKind::layer && (!last->bias || a_.head.bias)) {
        tally_.add(Symmetry::stream_basis, streams_.all[t].width);
      }
    } else if (head_free) {
      determined_ = h;
    } else if (gained && all_dyt(out_of(t)) && !out_of(t).empty() && into(t).empty()) {
      determined_ = h;
    } else {
      const bool rotating = in_component_with_norms(t) && in_component_with_norms(h);
      if (gained || !rotating) {
        fix_component(t);
        fix_component(h);
        fix(t);
        fix(h);
      } else {
        unite(t, h);
      }
    }
  }

  // ---- counting

  int64_t vectors(const Port& port) const {
    return element_count(table_.at(port.tensor).shape) / table_.at(port.tensor).shape[port.axis];
  }

  // Maps that move no writer and no reader: of vectors that nobody writes into vectors that nobody reads.
  int64_t idle_maps(const Stream& stream) const {
    int64_t written = 0, read = 0;
    for (const Port& port : stream.ports) {
      (port.role == Role::writer ? written : read) += vectors(port);
    }
    for (const Touch& touch : stream.touches) {
      if (touch.kind == TouchKind::shrunk) {
        const Attention& t = a_.blocks[*touch.module.block].attention;
        read += t.kv_heads * t.head_width;
      }
      if (touch.kind == TouchKind::identity) {
        written += stream.width;
        read += stream.width;
      }
    }
    return std::max<int64_t>(stream.width - written, 0) * std::max<int64_t>(stream.width - read, 0);
  }

  void count_component(size_t component) {
    std::vector<size_t> members;
    bool rms = false, layer = false, dyt = false;
    for (size_t s = 0; s < streams_.all.size(); ++s) {
      if (root(s) == component) {
        members.push_back(s);
        for (const NormEdge* edge : out_of(s)) {
          (edge->norm.kind == NormKind::rms ? rms : edge->norm.kind == NormKind::layer ? layer : dyt) = true;
        }
      }
    }
    const size_t first = members.front();
    const int64_t width = streams_.all[first].width;
    if (std::ranges::any_of(members, [&](size_t s) { return fixed_[s] && !takes_gain(s); })) {
      return;
    }
    if (std::ranges::find(members, determined_) != members.end()) {
      return;
    }
    const auto found = std::ranges::find_if(members, [&](size_t s) { return heads_.contains(s); });
    if (dyt) {
      if (!rms && !layer) {
        tally_.add(Symmetry::norm_scale, 1);
      }
    } else if (layer) {
      tally_.add(Symmetry::stream_rotation, rotations(width - 1));  // the ones beside it are counted as means
    } else if (rms) {
      int64_t vectors_there = 0;
      for (size_t s : members) {
        for (const Port& port : streams_.all[s].ports) {
          vectors_there += vectors(port);
        }
      }
      const int64_t idle = rotations(width - std::min(width, vectors_there));
      tally_.add(Symmetry::stream_rotation,
                 (found == members.end() ? rotations(width) : rotations_of(heads_.at(*found))) - idle);
    } else if (members.size() > 1 || !into(first).empty()) {
      return;  // only what a norm with a gain writes: its gain is counted
    } else if (tied_to_itself_ && *token_ == first) {
      tally_.add(Symmetry::stream_rotation, rotations(width));
    } else if (found != members.end()) {
      tally_.add(Symmetry::stream_basis, linear_maps(heads_.at(*found)));
    } else {
      tally_.add(Symmetry::stream_basis, width * width - idle_maps(streams_.all[first]));
    }
  }

  void count_rotations() {
    for (size_t s = 0; s < streams_.all.size(); ++s) {
      if (root(s) == s) {
        count_component(s);
      }
    }
  }

  void count_gains() {
    for (size_t s = 0; s < streams_.all.size(); ++s) {
      const bool taken = takes_gain(s) && !(tied_head_ == s && determined_ == s);
      if (taken) {
        tally_.add(Symmetry::norm_gain, streams_.all[s].width);
      }
    }
  }

  Tally& tally_;
  const Architecture& a_;
  Streams streams_;
  TensorTable table_;
  std::vector<NormEdge> edges_;
  std::vector<bool> fixed_;
  std::vector<size_t> parents_;  // streams whose bases are one, or follow from one another
  std::map<size_t, HeadBlocks> heads_;
  std::optional<size_t> token_, tied_head_, determined_;
  bool tied_to_itself_ = false;
};

}  // namespace

void count_bases(Tally& tally, const Architecture& a) {
  BasisCount(tally, a).run();
}

}  // namespace pare
