#include "pare/proof/ports.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/head.h"
#include "pare/model/rope.h"

namespace pare {

namespace {

using Load = std::function<Rounded(const ModelView& side)>;

Rounded as_row(const Rounded& vector) {
  return {vector.value.reshape({1, -1}), vector.rounding.reshape({1, -1})};
}

Rounded shifted(const Rounded& own, const Rounded& shift) {
  return shift.value.defined() ? sum(own, shift) : own;
}

bool is_of_heads(const ModuleId& module) {
  const Slot s = module.slot;
  return module.sublayer == Sublayer::attention &&
         (s == Slot::query || s == Slot::key || s == Slot::value || s == Slot::output || s == Slot::query_key ||
          s == Slot::value_output);
}

bool is_bias(const TensorId& id) {
  return id.kind == TensorKind::bias;
}

constexpr Rigour folded_if(bool folded) {
  return folded ? Rigour::folded : Rigour::stored;
}

class PortList {
 public:
  PortList(const ModelView& reference, const ModelView& candidate) : a_(reference), b_(candidate) {}

  std::vector<ProofPort> take() {
    embedding();
    for (int64_t n = 0; n < std::ssize(a_.architecture().blocks); ++n) {
      block(n);
    }
    head();
    norms();
    return std::move(ports_);
  }

 private:
  bool either(const TensorId& id) const { return a_.stores(id) || b_.stores(id); }
  const Shape& shape_of(const TensorId& id) const { return (a_.stores(id) ? a_ : b_).table().at(id).shape; }

  // The stream that an axis of a tensor lies on.
  std::optional<size_t> stream_of(const TensorId& id, Role role) const {
    const std::vector<Stream>& streams = (a_.stores(id) ? a_ : b_).streams().all;
    for (size_t i = 0; i < streams.size(); ++i) {
      for (const Port& port : streams[i].ports) {
        if (port.tensor == id && port.role == role) {
          return i;
        }
      }
    }
    return std::nullopt;
  }

  std::vector<TensorId> with_folds(std::vector<TensorId> parts, std::optional<size_t> stream) const {
    const Folds& folded = a_.folded();
    if (stream && folded.gains.contains(*stream)) {
      parts.push_back(weight_of(folded.gains.at(*stream)));
    }
    if (stream && folded.biases.contains(*stream)) {
      parts.push_back(bias_of(folded.biases.at(*stream)));
    }
    if (stream && folded.constants.contains(*stream)) {
      const std::vector<TensorId> more = bias_parts(folded.constants.at(*stream));
      parts.insert(parts.end(), more.begin(), more.end());
    }
    return parts;
  }

  void add(ProofPort port, Load whole) {
    port.load = [whole = std::move(whole)](const ModelView& side, int64_t begin, int64_t count) {
      return narrowed(whole(side), 0, begin, count);
    };
    ports_.push_back(std::move(port));
  }

  // Numbers that are the same or are not, flattened: [1, n].
  void plain(const TensorId& id) {
    if (either(id)) {
      const Shape shape = shape_of(id);
      add({.name = name_of(id), .parts = {id}, .how = How::same_up_to_rounding, .samples = 1},
          [=](const ModelView& side) { return as_row(side.load_or_zeros(id, shape)); });
    }
  }

  void table(const TensorId& id, size_t stream, RowsOf rows, int64_t samples) {
    const int64_t width = a_.streams().all[stream].width;
    ports_.push_back({.name = name_of(id),
                      .parts = {id},
                      .stream = stream,
                      .rows = rows,
                      .samples = samples,
                      .sliced = true,
                      .load = [=](const ModelView& side, int64_t begin, int64_t count) {
                        return narrowed(side.load_rows(id, begin, count), 1, 0, width);
                      }});
  }

  // A vector that is added to a stream.
  void added(const TensorId& id, size_t stream) {
    const int64_t width = a_.streams().all[stream].width;
    if (either(id)) {
      add({.name = name_of(id), .parts = {id}, .stream = stream, .samples = 1},
          [=](const ModelView& side) { return as_row(side.load_or_zeros(id, {width})); });
    }
  }

  // A matrix [out, in] whose output is a stream.
  void writer(const TensorId& id, std::optional<size_t> reads = std::nullopt) {
    add({.name = name_of(id),
         .parts = with_folds({id}, reads),
         .stream = stream_of(id, Role::writer),
         .samples_on = reads,
         .rigour = folded_if(reads && a_.folded().gains.contains(*reads)),
         .samples = element_count(shape_of(id)) / shape_of(id)[0]},
        [=](const ModelView& side) {
          const Rounded stored = side.load(id);
          Rounded matrix{stored.value.flatten(1), stored.rounding.flatten(1)};
          return transposed(reads ? side.with_gain(matrix, *reads) : matrix);
        });
  }

  // A matrix [out, in] that reads a stream, and the bias behind it, with what a norm before it folds into both.
  void reader(const ModuleId& module) {
    const TensorId id = weight_of(module);
    if (!either(id)) {
      return;
    }
    const size_t stream = stream_of(id, Role::reader).value();
    const int64_t width = a_.streams().all[stream].width, rows = shape_of(id)[0];
    const bool column = shape_of(id).back() == width + 1;  // neuron heads keep their bias in the matrix
    const bool folds = a_.folded().gains.contains(stream);
    ports_.push_back({.name = name_of(id),
                      .parts = with_folds({id}, stream),
                      .stream = stream,
                      .role = Role::reader,
                      .how = folds ? How::gain_folded : How::basis,
                      .rigour = folded_if(folds),
                      .samples = rows,
                      .sliced = true,
                      .load = [=](const ModelView& side, int64_t begin, int64_t count) {
                        return side.with_gain(narrowed(side.load_rows(id, begin, count), 1, 0, width), stream);
                      }});
    const TensorId bias = bias_of(module);
    const bool shifts = a_.folded().shifts(stream);
    if (!either(bias) && !column && !shifts) {
      return;
    }
    add({.name = column ? name_of(id) : name_of(bias),
         .parts = shifts ? with_folds({column ? id : bias, id}, stream) : std::vector{column ? id : bias},
         .how = shifts ? How::shift_folded : How::same_up_to_rounding,
         .rigour = folded_if(shifts),
         .samples = 1},
        [=](const ModelView& side) {
          Rounded own = side.load_or_zeros(bias, {rows});
          if (column) {
            const Rounded last = narrowed(side.load(id), 1, width, 1);
            own = {last.value.squeeze(1), last.rounding.squeeze(1)};
          }
          return as_row(shifted(own, side.shift(id, stream)));
        });
  }

  void embedding() {
    const Architecture& architecture = a_.architecture();
    const Embedding& e = architecture.embedding;
    if (architecture.first_layer == FirstLayer::table) {
      const TensorId rows = weight_of(in_embedding(Slot::table));
      table(rows, a_.streams().embedding, RowsOf::tokens, architecture.vocab);  // its other columns are of heads
      return;
    }
    if (const TensorId tokens = weight_of(token_table); either(tokens)) {
      table(tokens, stream_of(tokens, Role::writer).value(), RowsOf::tokens, architecture.vocab);
    }
    if (e.patch) {
      writer(weight_of(in_embedding(Slot::patch)));
      added(bias_of(in_embedding(Slot::patch)), embedded());
      if (e.class_token) {
        added({in_embedding(Slot::class_token), TensorKind::whole}, embedded());
      }
      if (e.registers > 0) {
        table({in_embedding(Slot::registers), TensorKind::whole}, embedded(), RowsOf::tensor, e.registers);
      }
    }
    positions();
    if (e.types > 0) {
      table(weight_of(in_embedding(Slot::type)), embedded(), RowsOf::types, e.types);
    }
    if (e.factor) {
      const TensorId projection = weight_of(in_embedding(Slot::projection));
      const size_t reads = stream_of(projection, Role::reader).value();
      writer(projection, reads);
      const TensorId bias = bias_of(in_embedding(Slot::projection));
      const size_t written = stream_of(projection, Role::writer).value();
      const int64_t width = architecture.width;
      add({.name = name_of(bias),
           .parts = with_folds({bias, projection}, reads),
           .stream = written,
           .how = How::shift_folded,
           .rigour = folded_if(a_.folded().shifts(reads)),
           .samples = 1},
          [=](const ModelView& side) {
            return as_row(shifted(side.load_or_zeros(bias, {width}), side.shift(projection, reads)));
          });
    }
  }

  size_t embedded() const {
    for (const ModuleId& module : {in_embedding(Slot::type), position_table, in_embedding(Slot::patch)}) {
      if (either(weight_of(module))) {
        return stream_of(weight_of(module), Role::writer).value();
      }
    }
    return touched_by([](const Touch& touch) { return touch.kind == TouchKind::sinusoidal; }).value();
  }

  // Positions that are computed are a table that nobody stored.
  void positions() {
    const Architecture& architecture = a_.architecture();
    if (architecture.embedding.position == Position::none) {
      return;
    }
    const TensorId id = weight_of(position_table);
    const int64_t rows = position_rows(architecture), width = embedding_width(architecture);
    ports_.push_back({.name = name_of(id),
                      .parts = {id},
                      .stream = embedded(),
                      .rigour = folded_if(!a_.stores(id) || !b_.stores(id)),
                      .rows = RowsOf::positions,
                      // A slow sine is small for long, beside a cosine near one: it is the pair that has a size.
                      .usual = a_.stores(id) ? std::nullopt : std::optional(1.0),
                      .samples = rows,
                      .sliced = true,
                      .load = [=](const ModelView& side, int64_t begin, int64_t count) {
                        if (side.stores(id)) {
                          return side.load_rows(id, begin, count);
                        }
                        const at::Tensor at = at::arange(begin, begin + count, at::kLong);
                        const at::Tensor angles = (at.to(at::kDouble) + 1).unsqueeze(1);  // at most, and what they lose
                        const Position kind = side.architecture().embedding.position;
                        Rounded made =
                            side.made(sinusoidal_positions(at.unsqueeze(0), width, at::kDouble, kind).squeeze(0));
                        made.rounding =
                            (angles * unit_roundoff(Dtype::f64)).to(made.value.device()).expand_as(made.value);
                        return made;
                      }});
  }

  void block(int64_t n) {
    sublayer(n, Sublayer::attention);
    collapsed(n);
    attention_bias_of(n);
    sublayer(n, Sublayer::mlp);
  }

  // All that it stores, of whatever kind it is, but for what norms() and the relations of heads compare.
  void sublayer(int64_t n, Sublayer sublayer) {
    for (const ModelView* side : {&a_, &b_}) {
      for (const TensorSpec& spec : side->table()) {
        const bool here = spec.id.module.block == n && spec.id.module.sublayer == sublayer;
        if (here && spec.part != Part::norm && !is_of_heads(spec.id.module) && (side == &a_ || !a_.stores(spec.id))) {
          stored(spec);
        }
      }
    }
  }

  // By how it lies on streams. What lies there in another way is compared with nothing, and so reported as unexplained.
  void stored(const TensorSpec& spec) {
    const auto is_matrix = [&](Role role, int64_t axis) {
      return spec.shape.size() == 2 && spec.axes.size() == 1 && spec.axes[0].role == role && spec.axes[0].axis == axis;
    };
    if (is_bias(spec.id) && either(weight_of(spec.id.module))) {
      return;  // it goes with its matrix
    }
    if (spec.axes.empty()) {
      plain(spec.id);
    } else if (is_matrix(Role::reader, 1)) {
      reader(spec.id.module);
    } else if (is_matrix(Role::writer, 0)) {
      writer(spec.id);
      added(bias_of(spec.id.module), stream_of(spec.id, Role::writer).value());
    }
  }

  void collapsed(int64_t n) {
    const size_t input = a_.streams().blocks[n].attention_input;
    const TensorId scores = weight_of(in_attention(n, Slot::query_key)), bias = bias_of(scores.module);
    const bool shifts = a_.folded().shifts(input);
    if (either(bias) || (either(scores) && shifts)) {
      const Shape shape = {shape_of(scores)[0], shape_of(scores)[2]};
      add({.name = name_of(bias),
           .parts = with_folds(shifts ? std::vector{bias, scores} : std::vector{bias}, input),
           .stream = input,
           .role = Role::reader,
           .how = shifts ? How::shift_folded : How::basis,
           .rigour = folded_if(shifts || a_.folded().gains.contains(input)),
           .samples = shape[0]},
          [=](const ModelView& side) {
            return side.with_gain(shifted(side.load_or_zeros(bias, shape), collapsed_shift(side, scores, input)),
                                  input);
          });
    }
    if (const TensorId both = weight_of(in_attention(n, Slot::value_output)); either(both)) {
      add({.name = name_of(both),
           .parts = with_folds({both}, input),
           .stream = stream_of(both, Role::writer),
           .samples_on = input,
           .rigour = folded_if(a_.folded().gains.contains(input)),
           .samples = shape_of(both)[0] * shape_of(both)[1]},
          [=](const ModelView& side) {
            const Rounded scaled = transposed(side.with_gain(transposed(side.load(both)), input));
            return Rounded{scaled.value.flatten(0, 1), scaled.rounding.flatten(0, 1)};
          });
    }
  }

  void attention_bias_of(int64_t n) {
    const size_t written = a_.streams().blocks[n].attention_output;
    if (a_.folded().constants.contains(written)) {
      return;
    }
    const std::vector<TensorId> parts = bias_parts(n);
    if (std::ranges::none_of(parts, is_bias)) {
      return;
    }
    const int64_t width = a_.architecture().width;
    const TensorId own = bias_of(in_attention(n, Slot::output)), value = bias_of(in_attention(n, Slot::value));
    const bool folds = folds_values(a_, n);
    add({.name = name_of(either(own) || !either(value) ? own : value),
         .parts = parts,
         .stream = written,
         .how = folds ? How::value_bias_folded : How::basis,
         .rigour = folded_if(folds),
         .samples = 1},
        [=](const ModelView& side) {
          const Rounded bias = attention_bias(side, n);
          return as_row(bias.value.defined() ? bias : side.made(at::zeros({width}, at::kDouble)));
        });
  }

  // What of it either side stores.
  std::vector<TensorId> bias_parts(int64_t n) const {
    const ModuleId output = in_attention(n, Slot::output), value = in_attention(n, Slot::value),
                   both = in_attention(n, Slot::value_output);
    std::vector<TensorId> parts = {bias_of(output)};
    if (folds_values(a_, n)) {
      const size_t input = a_.streams().blocks[n].attention_input;
      parts = with_folds({bias_of(output), bias_of(value)}, input);
    }
    std::erase_if(parts, [&](const TensorId& id) { return !either(id); });
    if (std::ranges::any_of(parts, is_bias)) {
      const TensorId first = weight_of(in_embedding(Slot::table));
      for (const TensorId& id : {weight_of(output), weight_of(value), weight_of(both), first}) {
        if (either(id) && (id != first || is_tabled(a_.architecture(), n))) {
          parts.push_back(id);
        }
      }
    }
    return parts;
  }

  // What reads the stream before the head is the table itself, where the head is tied to it.
  void head() {
    for (const Slot slot : {Slot::transform, Slot::sequence_transform, Slot::sequence}) {
      reader(in_head(slot));
    }
    const Architecture& architecture = a_.architecture();
    if (head_size(architecture) == 0) {
      return;
    }
    const auto id_of = [](const ModelView& side) {
      return weight_of(side.architecture().head.tied ? token_table : head_matrix);
    };
    const TensorId own = id_of(a_), other = id_of(b_);
    const size_t stream = stream_of(own, Role::reader).value();
    const TensorId bias = bias_of(head_matrix);
    const int64_t rows = head_size(architecture);
    ports_.push_back({.name = name_of(own),
                      .parts = with_folds({own, other}, stream),
                      .stream = stream,
                      .role = Role::reader,
                      .how = own == other ? How::basis : How::head_untied,
                      .rigour = folded_if(a_.folded().gains.contains(stream)),
                      .samples = rows,
                      .sliced = true,
                      .load = [=](const ModelView& side, int64_t begin, int64_t count) {
                        const Rounded rows = side.with_gain(side.load_rows(id_of(side), begin, count), stream);
                        return side.folded().blind.contains(stream) ? without_mean(rows) : rows;
                      }});
    const bool shifts = a_.folded().shifts(stream);
    if (!either(bias) && !shifts) {
      return;
    }
    add({.name = name_of(bias),
         .parts = shifts ? with_folds({bias, own, other}, stream) : std::vector{bias},
         .how = shifts ? How::shift_folded : How::same_up_to_rounding,
         .rigour = folded_if(shifts),
         .samples = 1},
        [=](const ModelView& side) {
          return as_row(shifted(side.load_or_zeros(bias, {rows}), side.shift(id_of(side), stream)));
        });
  }

  // Gains and biases that are in no reader: ones and zeros where they are not stored.
  void norms() {
    std::set<ModuleId> seen;
    for (const ModelView* side : {&a_, &b_}) {
      for (const TensorSpec& spec : side->table()) {
        if (spec.part == Part::norm) {
          seen.insert(spec.id.module);
        }
      }
    }
    const auto is_folded = [](const std::map<size_t, ModuleId>& folded, const ModuleId& module) {
      return std::ranges::any_of(folded, [&](const auto& entry) { return entry.second == module; });
    };
    for (const ModuleId& module : seen) {
      plain({module, TensorKind::alpha});
      const TensorId gain = weight_of(module);
      const bool gain_folds = is_folded(a_.folded().gains, module);
      if (!is_folded(a_.folded().biases, module)) {
        norm_bias(module, gain_folds);
      }
      if (either(gain) && !gain_folds) {
        const Shape shape = shape_of(gain);
        const bool alike = a_.stores(gain) && b_.stores(gain) && a_.offset(module) == b_.offset(module);
        add({.name = name_of(gain),
             .parts = {gain},
             .how = How::same_up_to_rounding,
             .rigour = folded_if(!alike),
             .samples = 1},
            [=](const ModelView& side) { return as_row(alike ? side.load(gain) : side.gain(module, shape)); });
      }
    }
  }

  // W (g n + c) = W g (n + c / g): beside W g, it is c / g that counts. Where a gain is zero and a bias is not, W c
  // says more than W g does, and there is no such relation.
  void norm_bias(const ModuleId& module, bool gain_folds) {
    const TensorId bias = bias_of(module);
    if (!either(bias)) {
      return;
    }
    const Shape shape = shape_of(bias);
    add({.name = name_of(bias),
         .parts = gain_folds ? std::vector{bias, weight_of(module)} : std::vector{bias},
         .stream = written_by(module),
         .how = gain_folds ? How::gain_folded : How::basis,
         .rigour = folded_if(gain_folds),
         .samples = 1},
        [=](const ModelView& side) {
          const Rounded stored = side.load_or_zeros(bias, shape);
          if (!gain_folds) {
            return as_row(stored);
          }
          const at::Tensor gain = side.gain(module, shape).value, none = at::zeros_like(gain);
          return as_row({at::where(stored.value == 0, none, stored.value / gain),
                         at::where(gain == 0, none, stored.rounding / gain.abs())});
        });
  }

  std::optional<size_t> written_by(const ModuleId& norm) const {  // none where it is one of heads
    return touched_by([&](const Touch& touch) { return touch.kind == TouchKind::norm_writes && touch.module == norm; });
  }

  template <class Is>
  std::optional<size_t> touched_by(const Is& is) const {
    const std::vector<Stream>& all = a_.streams().all;
    const auto found =
        std::ranges::find_if(all, [&](const Stream& stream) { return std::ranges::any_of(stream.touches, is); });
    return found == all.end() ? std::nullopt : std::optional(static_cast<size_t>(found - all.begin()));
  }

  const ModelView &a_, &b_;
  std::vector<ProofPort> ports_;
};

}  // namespace

std::vector<ProofPort> ports_of(const ModelView& reference, const ModelView& candidate) {
  return PortList(reference, candidate).take();
}

}  // namespace pare
