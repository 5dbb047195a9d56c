#include "pare/redundancy/places.h"

#include <algorithm>
#include <map>
#include <utility>

#include "pare/arch/head.h"
#include "pare/arch/slots.h"

namespace pare {

bool drops_key_constants(const Attention& t) {
  return !t.rope && !t.qk_norm && !t.softcap && !is<SameAsKey>(t.query);
}

bool passes_value_constants(const Attention& t) {  // shaped ones times one number for each head
  return !t.gate;
}

bool value_bias_reaches_all(const Attention& t, int64_t width) {
  return t.bias.value && passes_value_constants(t) && t.values == Form::factored && t.kv_heads * t.head_width >= width;
}

std::optional<Norm> Places::layer_norm_of(size_t place) const {
  const Sum* found = nullptr;
  for (const Sum& sum : sums) {
    if (sum.target != place) {
      continue;
    }
    if (found || !sum.norm || sum.norm->norm.kind == NormKind::dyt || sum.norm->norm.kind == NormKind::scale) {
      return std::nullopt;
    }
    found = &sum;
  }
  if (!found) {
    return std::nullopt;
  }
  Norm norm = found->norm->norm;
  if (norm.kind == NormKind::layer) {
    return norm;
  }
  for (size_t p = 0; p < all.size(); ++p) {
    const bool reads =
        std::ranges::any_of(all[p].norms, [&](const PlaceNorm& n) { return n.module == found->norm->module; });
    const std::optional<Norm> before = reads ? layer_norm_of(p) : std::nullopt;
    if (before && !before->bias) {
      norm.kind = NormKind::layer;
      norm.gain = norm.gain || before->gain;
      return norm;
    }
  }
  return std::nullopt;
}

namespace {

class PlaceFinder {
 public:
  explicit PlaceFinder(const Architecture& a) : a_(a), table_(tensor_table(a)) {}

  Places find() {
    size_t at = embedding();
    for (int64_t n = 0; n < std::ssize(a_.blocks); ++n) {
      add_block(n);
    }
    for (int64_t n : layer_blocks(a_)) {
      unite(at, inputs_[n]);
      at = outputs_[n];
    }
    head(a_.layers ? end_of_shared(at) : at);
    collect();
    find_unseen_means();
    return std::move(found_);
  }

 private:
  size_t add(int64_t width, Zone zone = Zone::stream) {
    found_.all.push_back({.zone = zone, .width = width});
    parents_.push_back(parents_.size());
    return parents_.size() - 1;
  }
  size_t root(size_t place) const {
    while (parents_[place] != place) {
      place = parents_[place];
    }
    return place;
  }
  void unite(size_t a, size_t b) { parents_[root(a)] = root(b); }

  bool stores(const TensorId& id) const { return table_.contains(id); }
  int64_t rows_of(const ModuleId& module) const { return table_.at(weight_of(module)).shape[0]; }

  // The place after a norm: the same one where there is none.
  size_t after(size_t place, const std::optional<Norm>& norm, bool here, const ModuleId& module) {
    if (!norm || !here) {
      return place;
    }
    found_.all[place].norms.push_back({module, *norm});
    const size_t output = add(found_.all[place].width, found_.all[place].zone);
    found_.sums.push_back({.target = output, .constant = norm->bias, .norm = PlaceNorm{module, *norm}});
    return output;
  }

  void read(size_t place, const ModuleId& module, int64_t rows, bool absorbs) {
    found_.all[place].readers.push_back({module, rows, absorbs, absorbs, rows, 0});
  }
  void read(size_t place, const ModuleId& module) { read(place, module, rows_of(module), stores(bias_of(module))); }
  void write(size_t place, const ModuleId& module, int64_t vectors) {
    found_.all[place].writers.push_back({module, vectors});
  }
  // A matrix of so many columns, and its bias.
  void write_layer(size_t place, const ModuleId& module, int64_t columns) {
    write(place, module, columns + (stores(bias_of(module)) ? 1 : 0));
  }

  // What the last layer gives, apart from what the same block reads when it is run again: nobody but the head reads it.
  size_t end_of_shared(size_t at) {
    const size_t end = add(a_.width);
    Sum sum{.target = end, .added = {at}};
    for (const Sum& other : found_.sums) {
      if (other.target == at && other.norm) {
        sum.norm = other.norm;
      }
    }
    found_.sums.push_back(sum);
    return end;
  }

  size_t embedding() {
    const Embedding& e = a_.embedding;
    if (a_.first_layer == FirstLayer::table) {
      const size_t first = add(a_.width);
      write(first, in_embedding(Slot::table), a_.vocab);
      found_.sums.push_back({.target = first, .constant = true});
      return found_.embedded = first;
    }
    const bool sum_scope = e.factor && e.factor_scope == FactorScope::sum;
    const size_t embedded = add(embedding_width(a_), sum_scope ? Zone::embedding : Zone::stream);
    found_.embedded = embedded;
    const bool of_token = e.factor && !sum_scope;
    bool constant = e.position == Position::learned || e.types > 0;
    if (e.patch) {
      write_layer(embedded, in_embedding(Slot::patch), e.patch->channels * e.patch->size * e.patch->size);
      constant = constant || e.patch->bias;
    } else if (of_token) {
      write_layer(embedded, in_embedding(Slot::projection), *e.factor);
      constant = constant || e.factor_bias;
    } else {
      write(embedded, token_table, a_.vocab);
      constant = constant || (!a_.head.tied && !e.masked);
    }
    if (e.class_token) {
      write(embedded, in_embedding(Slot::class_token), 1);
    }
    if (e.registers > 0) {
      write(embedded, in_embedding(Slot::registers), e.registers);
    }
    if (e.position == Position::learned) {
      write(embedded, position_table, position_rows(a_) - e.position_offset + (e.position_pad ? 1 : 0));
    }
    if (e.types > 0) {
      write(embedded, in_embedding(Slot::type), e.types);
    }
    found_.sums.push_back({.target = embedded, .constant = constant});
    const size_t normed = after(embedded, e.norm, true, in_embedding(Slot::norm));
    if (!sum_scope) {
      return normed;
    }
    const size_t first = add(a_.width);
    const ModuleId projection = in_embedding(Slot::projection);
    read(normed, projection);
    write_layer(first, projection, *e.factor);
    found_.sums.push_back({.target = first, .constant = e.factor_bias});
    return first;
  }

  void add_attention_readers(const Attention& t, int64_t n, size_t place) {
    const auto at = [n](Slot slot) { return in_attention(n, slot); };
    const int64_t rows = t.heads * t.head_width, kv_rows = t.kv_heads * t.head_width;
    const bool drops = drops_key_constants(t), passes = passes_value_constants(t);
    // Without biases the constant comes out of the head as it went in, through both matrices.
    const bool value_absorbs = t.bias.value || passes;
    const bool value_settles = t.bias.value || (passes && t.bias.output);
    const bool key_absorbs = t.bias.key || drops;
    if (t.scores == Form::collapsed) {
      // x A y' + y b', x and y with a constant each: A e, e' A and b e are hidden where e is.
      const int64_t both = t.heads * (2 * a_.width - 1 + (t.bias.query ? 1 : 0));
      const int64_t one = t.heads * a_.width;
      const bool absorbs = t.bias.query && !t.softcap;
      found_.all[place].readers.push_back({at(Slot::query_key), t.heads * 2 * a_.width, absorbs, absorbs, both,
                                           t.softcap ? 0 : one, t.softcap ? 0 : one});
    } else {
      // A LayerNorm sees no mean of a head, or of all; where they are turned before it, it sees all there is.
      const bool centred = t.qk_norm && t.qk_norm->kind == NormKind::layer && !norms_turned(t);
      const bool together = t.qk_norm_over == QkNormOver::layer;
      const int64_t query_means = !centred ? 0 : together ? 1 : t.heads;
      const int64_t key_means = !centred ? 0 : together ? 1 : t.kv_heads;
      if (is<Dense>(t.query)) {
        found_.all[place].readers.push_back(
            {at(Slot::query), rows, t.bias.query, t.bias.query, rows - query_means, 0, query_means});
      } else if (!is<SameAsKey>(t.query)) {
        pin_unless(place, t.bias.query);
      }
      if (is<Nonlinear>(t.query)) {
        read(place, at(Slot::query_up), rows_of(at(Slot::query_up)), false);
      }
      const bool also_values = is<FromKey>(t.value);
      // Under partial RoPE, a constant of what does not turn drops out of the softmax all the same.
      const bool partly = t.rope && !t.qk_norm && !t.softcap && !is<SameAsKey>(t.query) && !also_values;
      const int64_t unturned = partly ? t.kv_heads * (t.head_width - t.rope->width) : 0;
      if (is<Dense>(t.key) || is<Shrunk>(t.key)) {
        found_.all[place].readers.push_back({at(Slot::key), kv_rows, key_absorbs && (!also_values || value_absorbs),
                                             key_absorbs && (!also_values || value_settles), kv_rows - key_means,
                                             unturned, centred && !also_values ? key_means : unturned});
      } else if (is<Identity>(t.key)) {
        pin_unless(place, key_absorbs && (!also_values || value_absorbs));
      }
    }
    if (t.values == Form::collapsed) {
      const int64_t columns = t.heads * a_.width;
      found_.all[place].readers.push_back({at(Slot::value_output), columns, value_absorbs, value_settles, columns, 0});
    } else if (is<Dense>(t.value) || is<Shrunk>(t.value)) {
      const bool key_too = !is<FromValue>(t.key) || key_absorbs;
      found_.all[place].readers.push_back(
          {at(Slot::value), kv_rows, value_absorbs && key_too, value_settles && key_too, kv_rows, 0});
    } else if (is<Identity>(t.value)) {
      pin_unless(place, value_absorbs);
    }
    if (t.gate) {
      read(place, at(Slot::gate), t.heads, true);
    }
  }
  void pin_unless(size_t place, bool absorbs) {
    found_.all[place].identity = true;
    found_.all[place].pinned = found_.all[place].pinned || !absorbs;
  }

  void add_block(int64_t n) {
    const Block& block = a_.blocks[n];
    const Attention& t = block.attention;
    const auto at = [n](Slot slot) { return in_attention(n, slot); };
    const bool tabled = is_tabled(a_, n);
    const size_t input = add(a_.width);
    const bool pre = t.norm && t.norm->place == NormPlace::pre;
    const size_t attention_input = tabled ? add(a_.width) : after(input, t.norm, pre, at(Slot::norm));
    const size_t attention_output = add(a_.width);
    found_.blocks.push_back({attention_input, attention_output});
    if (tabled) {
      found_.sums.push_back({.target = attention_input});
    } else {
      add_attention_readers(t, n, attention_input);
    }
    const int64_t columns = t.values == Form::collapsed ? t.heads * a_.width
                            : is<Dense>(t.output)       ? t.heads * t.head_width
                                                        : 0;
    write_layer(attention_output, at(Slot::output), columns);
    Sum written{.target = attention_output, .constant = t.bias.output || value_bias_reaches_all(t, a_.width)};
    if (passes_value_constants(t) && !t.bias.value && !tabled) {
      written.mapped.push_back(attention_input);
    }
    found_.sums.push_back(written);
    const size_t attended = after(attention_output, t.output_norm, true, at(Slot::output_norm));
    const size_t sum = add(a_.width);
    found_.sums.push_back({.target = sum, .added = {attended}});
    if (t.skip) {
      found_.sums.back().added.push_back(input);
    }
    const size_t middle = after(sum, t.norm, !pre, at(Slot::norm));
    inputs_.push_back(input);
    outputs_.push_back(block.mlp ? add_mlp(n, input, attention_input, middle) : middle);
  }

  size_t add_mlp(int64_t n, size_t input, size_t attention_input, size_t middle) {
    const Block& block = a_.blocks[n];
    const Mlp& m = *block.mlp;
    const auto at = [n](Slot slot) { return in_mlp(n, slot); };
    const bool parallel = block.wiring == Wiring::parallel, pre = m.norm && m.norm->place == NormPlace::pre;
    const size_t read_from =
        parallel && !m.norm ? attention_input : after(parallel ? input : middle, m.norm, pre, at(Slot::norm));
    const size_t written = add(a_.width);
    const auto [readers, writer] = mlp_matrices(a_, n);
    for (const TensorSpec& matrix : readers) {
      const bool has_column = matrix.shape[1] > a_.width;  // for a one beside the input
      read(read_from, matrix.id.module, matrix.shape[0], has_column || stores(bias_of(matrix.id.module)));
    }
    write_layer(written, writer.id.module, writer.shape[1]);
    const bool constant = stores(bias_of(writer.id.module));
    found_.sums.push_back({.target = written, .constant = constant});
    const size_t normed = after(written, m.output_norm, true, at(Slot::output_norm));
    const size_t sum = add(a_.width);
    found_.sums.push_back({.target = sum, .added = {normed}});
    if (parallel || m.skip) {
      found_.sums.back().added.push_back(middle);
    }
    return after(sum, m.norm, m.norm && !pre, at(Slot::norm));
  }

  // What the head's matrix reads, behind a layer of its own or not.
  size_t head_input(size_t last, const std::optional<HeadTransform>& transform, int64_t width, Zone zone, Slot slot,
                    Slot norm) {
    if (!transform) {
      return last;
    }
    const ModuleId module = in_head(slot);
    read(last, module);
    const size_t written = add(width, zone);
    found_.sums.push_back({.target = written, .constant = transform->bias});
    if (transform->activation == Activation::identity) {
      write_layer(written, module, a_.width);
      return after(written, transform->norm, true, in_head(norm));
    }
    found_.all[written].pinned = true;
    const size_t activated = add(width, zone);
    found_.sums.push_back({.target = activated});
    return after(activated, transform->norm, true, in_head(norm));
  }

  void head(size_t at) {
    const size_t answered = after(at, a_.final_norm, true, final_norm);
    const size_t last = after(answered, a_.head.pool_norm, true, in_head(Slot::pool_norm));
    const size_t input = head_input(last, a_.head.transform, head_input_width(a_), Zone::transform, Slot::transform,
                                    Slot::transform_norm);
    found_.head_input = input;
    if (head_size(a_) > 0) {
      // A tied table takes no part in what hides from a head alone.
      found_.all[input].readers.push_back(
          {head_matrix, head_size(a_), a_.head.bias, a_.head.bias, a_.head.tied ? 0 : head_size(a_), 0});
    } else {
      found_.all[input].pinned = true;
      found_.all[a_.head.pool == Pool::none ? input : answered].pinned = true;
    }
    if (a_.head.sequence) {
      const size_t second = head_input(last, a_.head.sequence->transform, sequence_head_input_width(a_), Zone::sequence,
                                       Slot::sequence_transform, Slot::sequence_transform_norm);
      read(second, in_head(Slot::sequence));
    }
  }

  void collect() {
    std::map<size_t, size_t> index;
    std::vector<Place> united;
    for (size_t place = 0; place < parents_.size(); ++place) {
      const auto [entry, first] = index.emplace(root(place), united.size());
      const Place& from = found_.all[place];
      if (first) {
        united.push_back({.zone = from.zone, .width = from.width});
      }
      Place& into = united[entry->second];
      into.pinned = into.pinned || from.pinned;
      into.identity = into.identity || from.identity;
      into.readers.insert(into.readers.end(), from.readers.begin(), from.readers.end());
      into.writers.insert(into.writers.end(), from.writers.begin(), from.writers.end());
      into.norms.insert(into.norms.end(), from.norms.begin(), from.norms.end());
    }
    const auto moved = [&](size_t& place) { place = index.at(root(place)); };
    for (Sum& sum : found_.sums) {
      moved(sum.target);
      for (std::vector<size_t>* list : {&sum.added, &sum.mapped}) {
        for (size_t& place : *list) {
          moved(place);
        }
      }
    }
    for (BlockPlaces& block : found_.blocks) {
      moved(block.attention_input);
      moved(block.attention_output);
    }
    moved(found_.embedded);
    moved(found_.head_input);
    found_.all = std::move(united);
  }

  void find_unseen_means() {
    for (Place& place : found_.all) {
      place.mean_unseen = !place.pinned && !place.identity && place.readers.empty();
      for (const PlaceNorm& norm : place.norms) {
        place.mean_unseen = place.mean_unseen && norm.norm.kind == NormKind::layer;
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (const Sum& sum : found_.sums) {
        for (size_t place : sum.added) {
          if (found_.all[place].mean_unseen && !found_.all[sum.target].mean_unseen) {
            found_.all[place].mean_unseen = false;
            changed = true;
          }
        }
      }
    }
  }

  const Architecture& a_;
  TensorTable table_;
  Places found_;
  std::vector<size_t> parents_, inputs_, outputs_;
};

}  // namespace

Places find_places(const Architecture& architecture) {
  return PlaceFinder(architecture).find();
}

}  // namespace pare
