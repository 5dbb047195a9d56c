#include "pare/proof/ports.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/head.h"
#include "pare/model/rope.h"
#include "pare/support/error.h"

namespace pare {

namespace {

using Load = std::function<Effective(const ProofSide& side)>;

Effective as_row(const Effective& vector) {
  return {vector.value.reshape({1, -1}), vector.rounding.reshape({1, -1})};
}

Effective columns(const Effective& matrix, int64_t begin, int64_t count) {
  return narrowed(matrix, 1, begin, count);
}

constexpr Rigour folded_if(bool folded) {
  return folded ? Rigour::folded : Rigour::stored;
}

class PortList {
 public:
  PortList(const ProofSide& reference, const ProofSide& candidate) : a_(reference), b_(candidate) {}

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
    if (stream) {
      if (const auto found = a_.folded().gains.find(*stream); found != a_.folded().gains.end()) {
        parts.push_back(weight_of(found->second));
      }
      if (const auto found = a_.folded().biases.find(*stream); found != a_.folded().biases.end()) {
        parts.push_back(bias_of(found->second));
      }
      if (const auto found = a_.folded().constants.find(*stream); found != a_.folded().constants.end()) {
        const std::vector<TensorId> more = bias_parts(found->second);
        parts.insert(parts.end(), more.begin(), more.end());
      }
    }
    return parts;
  }

  void add(ProofPort port, Load whole) {
    port.load = [whole = std::move(whole)](const ProofSide& side, int64_t begin, int64_t count) {
      return narrowed(whole(side), 0, begin, count);
    };
    ports_.push_back(std::move(port));
  }

  // Numbers that are the same or are not, flattened: [1, n].
  void plain(const TensorId& id, How how = How::same_up_to_rounding) {
    if (either(id)) {
      const Shape shape = shape_of(id);
      add({.name = name_of(id), .parts = {id}, .how = how, .samples = 1},
          [=](const ProofSide& side) { return as_row(side.load_or_zeros(id, shape)); });
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
                      .load = [=](const ProofSide& side, int64_t begin, int64_t count) {
                        return columns(side.load_rows(id, begin, count), 0, width);
                      }});
  }

  // A vector that is added to a stream.
  void added(const TensorId& id, size_t stream) {
    const int64_t width = a_.streams().all[stream].width;
    if (either(id)) {
      add({.name = name_of(id), .parts = {id}, .stream = stream, .samples = 1},
          [=](const ProofSide& side) { return as_row(side.load_or_zeros(id, {width})); });
    }
  }

  // A matrix [out, in] whose output is a stream.
  void writer(const TensorId& id, std::optional<size_t> reads = std::nullopt) {
    const int64_t samples = element_count(shape_of(id)) / shape_of(id)[0];
    add({.name = name_of(id),
         .parts = with_folds({id}, reads),
         .stream = stream_of(id, Role::writer),
         .samples_on = reads,
         .rigour = folded_if(reads && a_.folded().gains.contains(*reads)),
         .samples = samples},
        [=](const ProofSide& side) {
          const Effective stored = side.load(id);
          Effective matrix{stored.value.flatten(1), stored.rounding.flatten(1)};
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
                      .load = [=](const ProofSide& side, int64_t begin, int64_t count) {
                        return side.with_gain(columns(side.load_rows(id, begin, count), 0, width), stream);
                      }});
    const TensorId bias = bias_of(module);
    const bool shifted = a_.folded().shifts(stream);
    if (!either(bias) && !column && !shifted) {
      return;
    }
    add({.name = column ? name_of(id) : name_of(bias),
         .parts = shifted ? with_folds({column ? id : bias, id}, stream) : std::vector{column ? id : bias},
         .how = shifted ? How::shift_folded : How::same_up_to_rounding,
         .rigour = folded_if(shifted),
         .samples = 1},
        [=](const ProofSide& side) {
          Effective own = side.load_or_zeros(bias, {rows});
          if (column) {
            const Effective last = columns(side.load(id), width, 1);
            own = {last.value.squeeze(1), last.rounding.squeeze(1)};
          }
          const Effective shift = side.shift(id, stream);
          return as_row(shift.value.defined() ? sum(own, shift) : own);
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
          [=](const ProofSide& side) {
            const Effective own = side.load_or_zeros(bias, {width}), shift = side.shift(projection, reads);
            return as_row(shift.value.defined() ? sum(own, shift) : own);
          });
    }
  }

  size_t embedded() const {
    for (const ModuleId& module : {in_embedding(Slot::type), position_table, in_embedding(Slot::patch)}) {
      if (either(weight_of(module))) {
        return stream_of(weight_of(module), Role::writer).value();
      }
    }
    for (size_t i = 0; i < a_.streams().all.size(); ++i) {
      for (const Touch& touch : a_.streams().all[i].touches) {
        if (touch.kind == TouchKind::sinusoidal) {
          return i;
        }
      }
    }
    PARE_UNREACHABLE("nothing is added to the embeddings");
  }

  // Positions that are computed are a table that nobody stored.
  void positions() {
    const Architecture& architecture = a_.architecture();
    if (architecture.embedding.position == Position::none) {
      return;
    }
    const TensorId id = weight_of(position_table);
    const int64_t rows = architecture.context + architecture.embedding.position_offset;
    const int64_t width = embedding_width(architecture);
    ports_.push_back({.name = name_of(id),
                      .parts = {id},
                      .stream = embedded(),
                      .rigour = folded_if(!a_.stores(id) || !b_.stores(id)),
                      .rows = RowsOf::positions,
                      // A slow sine is small for long, beside a cosine near one: it is the pair that has a size.
                      .usual = a_.stores(id) ? std::nullopt : std::optional(1.0),
                      .samples = rows,
                      .sliced = true,
                      .load = [=](const ProofSide& side, int64_t begin, int64_t count) {
                        if (side.stores(id)) {
                          return side.load_rows(id, begin, count);
                        }
                        const at::Tensor at = at::arange(begin, begin + count, at::kLong);
                        const at::Tensor angles = (at.to(at::kDouble) + 1).unsqueeze(1);  // at most, and what they lose
                        Effective made =
                            side.made(sinusoidal_positions(at.unsqueeze(0), width, at::kDouble).squeeze(0));
                        made.rounding =
                            (angles * unit_roundoff(Dtype::f64)).to(made.value.device()).expand_as(made.value);
                        return made;
                      }});
  }

  void block(int64_t n) {
    const Block& spec = a_.architecture().blocks[static_cast<size_t>(n)];
    const auto attention = [n](Slot slot) { return in_attention(n, slot); };
    for (const Slot slot : {Slot::query_up, Slot::gate}) {
      reader(attention(slot));
    }
    plain({attention(Slot::gate), TensorKind::position});
    plain(weight_of(attention(Slot::shape)));
    plain(weight_of(attention(Slot::query_down)));
    plain(weight_of(attention(Slot::key_from_value)));
    plain(weight_of(attention(Slot::value_from_key)));
    collapsed(n);
    attention_bias_of(n);
    if (spec.mlp) {
      mlp(n);
    }
  }

  void collapsed(int64_t n) {
    const size_t input = a_.streams().blocks[static_cast<size_t>(n)].attention_input;
    const TensorId scores = weight_of(in_attention(n, Slot::query_key)), bias = bias_of(scores.module);
    const bool shifted = a_.folded().shifts(input);
    if (either(bias) || (either(scores) && shifted)) {
      const Shape shape = {shape_of(scores)[0], shape_of(scores)[2]};
      add({.name = name_of(bias),
           .parts = with_folds(shifted ? std::vector{bias, scores} : std::vector{bias}, input),
           .stream = input,
           .role = Role::reader,
           .how = shifted ? How::shift_folded : How::basis,
           .rigour = folded_if(shifted || a_.folded().gains.contains(input)),
           .samples = shape[0]},
          [=](const ProofSide& side) {
            const Effective own = side.load_or_zeros(bias, shape), shift = collapsed_shift(side, scores, input);
            return side.with_gain(shift.value.defined() ? sum(own, shift) : own, input);
          });
    }
    if (const TensorId both = weight_of(in_attention(n, Slot::value_output)); either(both)) {
      add({.name = name_of(both),
           .parts = with_folds({both}, input),
           .stream = stream_of(both, Role::writer),
           .samples_on = input,
           .rigour = folded_if(a_.folded().gains.contains(input)),
           .samples = shape_of(both)[0] * shape_of(both)[1]},
          [=](const ProofSide& side) {
            const Effective scaled = transposed(side.with_gain(transposed(side.load(both)), input));
            return Effective{scaled.value.flatten(0, 1), scaled.rounding.flatten(0, 1)};
          });
    }
  }

  void attention_bias_of(int64_t n) {
    const size_t written = a_.streams().blocks[static_cast<size_t>(n)].attention_output;
    if (a_.folded().constants.contains(written)) {
      return;
    }
    const std::vector<TensorId> parts = bias_parts(n);
    const bool any =
        std::any_of(parts.begin(), parts.end(), [](const TensorId& id) { return id.kind == TensorKind::bias; });
    if (!any) {
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
        [=](const ProofSide& side) {
          const Effective bias = attention_bias(side, n);
          return as_row(bias.value.defined() ? bias : side.made(at::zeros({width}, at::kDouble)));
        });
  }

  // What of it either side stores.
  std::vector<TensorId> bias_parts(int64_t n) const {
    const ModuleId output = in_attention(n, Slot::output), value = in_attention(n, Slot::value),
                   both = in_attention(n, Slot::value_output);
    std::vector<TensorId> parts = {bias_of(output)};
    if (folds_values(a_, n)) {
      const size_t input = a_.streams().blocks[static_cast<size_t>(n)].attention_input;
      parts = with_folds({bias_of(output), bias_of(value)}, input);
    }
    std::erase_if(parts, [&](const TensorId& id) { return !either(id); });
    if (std::any_of(parts.begin(), parts.end(), [](const TensorId& id) { return id.kind == TensorKind::bias; })) {
      const TensorId first = weight_of(in_embedding(Slot::table));
      for (const TensorId& id : {weight_of(output), weight_of(value), weight_of(both), first}) {
        if (either(id) && (id != first || is_tabled(a_.architecture(), n))) {
          parts.push_back(id);
        }
      }
    }
    return parts;
  }

  void mlp(int64_t n) {
    for (const Slot slot : {Slot::up, Slot::gate, Slot::query, Slot::value}) {
      reader(in_mlp(n, slot));
    }
    for (const Slot slot : {Slot::down, Slot::output}) {
      if (const TensorId id = weight_of(in_mlp(n, slot)); either(id)) {
        writer(id);
        added(bias_of(in_mlp(n, slot)), stream_of(id, Role::writer).value());
      }
    }
  }

  // What reads the stream before the head is the table itself, where the head is tied to it.
  void head() {
    for (const Slot slot : {Slot::transform, Slot::sequence_transform}) {
      reader(in_head(slot));
    }
    reader(in_head(Slot::sequence));
    const Architecture& architecture = a_.architecture();
    if (head_size(architecture) == 0) {
      return;
    }
    const auto id_of = [](const ProofSide& side) {
      return weight_of(side.architecture().head.tied ? token_table : head_matrix);
    };
    const TensorId own = id_of(a_), other = id_of(b_);
    const std::vector<TensorId> tensors = own == other ? std::vector{own} : std::vector{own, other};
    const size_t stream = stream_of(own, Role::reader).value();
    const TensorId bias = bias_of(head_matrix);
    const int64_t rows = head_size(architecture);
    ports_.push_back({.name = name_of(own),
                      .parts = with_folds(tensors, stream),
                      .stream = stream,
                      .role = Role::reader,
                      .how = own == other ? How::basis : How::head_untied,
                      .rigour = folded_if(a_.folded().gains.contains(stream)),
                      .samples = rows,
                      .sliced = true,
                      .load = [=](const ProofSide& side, int64_t begin, int64_t count) {
                        const Effective rows = side.with_gain(side.load_rows(id_of(side), begin, count), stream);
                        return side.folded().blind.contains(stream) ? without_mean(rows) : rows;
                      }});
    const bool shifted = a_.folded().shifts(stream);
    if (!either(bias) && !shifted) {
      return;
    }
    std::vector<TensorId> parts = {bias};
    if (shifted) {
      parts.insert(parts.end(), tensors.begin(), tensors.end());
      parts = with_folds(parts, stream);
    }
    add({.name = name_of(bias),
         .parts = parts,
         .how = shifted ? How::shift_folded : How::same_up_to_rounding,
         .rigour = folded_if(shifted),
         .samples = 1},
        [=](const ProofSide& side) {
          const Effective stored = side.load_or_zeros(bias, {rows}), shift = side.shift(id_of(side), stream);
          return as_row(shift.value.defined() ? sum(stored, shift) : stored);
        });
  }

  // Gains and biases that are in no reader: ones and zeros where they are not stored.
  void norms() {
    std::set<ModuleId> seen;
    for (const ProofSide* side : {&a_, &b_}) {
      for (const TensorSpec& spec : side->table()) {
        if (spec.part == Part::norm) {
          seen.insert(spec.id.module);
        }
      }
    }
    const auto is_folded = [](const std::map<size_t, ModuleId>& folded, const ModuleId& module) {
      return std::any_of(folded.begin(), folded.end(), [&](const auto& entry) { return entry.second == module; });
    };
    for (const ModuleId& module : seen) {
      plain({module, TensorKind::alpha});
      const TensorId gain = weight_of(module);
      const bool gain_folds = is_folded(a_.folded().gains, module);
      if (!is_folded(a_.folded().biases, module)) {
        norm_bias(module, gain_folds);
      }
      if (either(gain) && !gain_folds) {
        const int64_t size = shape_of(gain)[0];
        const bool alike = a_.stores(gain) && b_.stores(gain) && a_.offset(module) == b_.offset(module);
        add({.name = name_of(gain),
             .parts = {gain},
             .how = How::same_up_to_rounding,
             .rigour = folded_if(!alike),
             .samples = 1},
            [=](const ProofSide& side) { return as_row(alike ? side.load(gain) : side.gain(module, size)); });
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
        [=](const ProofSide& side) {
          const Effective stored = side.load_or_zeros(bias, shape);
          if (!gain_folds) {
            return as_row(stored);
          }
          const at::Tensor gain = side.gain(module, shape[0]).value, none = at::zeros_like(gain);
          return as_row({at::where(stored.value == 0, none, stored.value / gain),
                         at::where(gain == 0, none, stored.rounding / gain.abs())});
        });
  }

  std::optional<size_t> written_by(const ModuleId& norm) const {  // none where it is one of heads
    for (size_t i = 0; i < a_.streams().all.size(); ++i) {
      for (const Touch& touch : a_.streams().all[i].touches) {
        if (touch.kind == TouchKind::norm_writes && touch.module == norm) {
          return i;
        }
      }
    }
    return std::nullopt;
  }

  const ProofSide &a_, &b_;
  std::vector<ProofPort> ports_;
};

}  // namespace

std::vector<ProofPort> ports_of(const ProofSide& reference, const ProofSide& candidate) {
  return PortList(reference, candidate).take();
}

}  // namespace pare
