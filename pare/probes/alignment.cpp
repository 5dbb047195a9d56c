#include "pare/probes/alignment.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "pare/arch/norms.h"
#include "pare/arch/slots.h"
#include "pare/arch/streams.h"
#include "pare/linear/assignment.h"
#include "pare/linear/map_fit.h"
#include "pare/probes/folded.h"

namespace pare {

namespace {

const char* group_of(const TensorId& id) {
  switch (id.module.sublayer) {
    case Sublayer::embedding:
      return "embedding";
    case Sublayer::attention:
      return "attention";
    case Sublayer::mlp:
      return "mlp";
    default:
      return "head";
  }
}

class Aligner {
 public:
  Aligner(const Model& reference, const Model& candidate, at::Device device)
      : architecture_(reference.architecture),
        streams_(find_streams(reference.architecture)),
        a_(folded_numbers(reference, device)),
        b_(folded_numbers(candidate, device)) {
    for (Numbers* numbers : {&a_, &b_}) {  // what is not there adds nothing
      for (const auto& [id, tensor] : numbers == &a_ ? b_ : a_) {
        if (!numbers->contains(id) && id.kind == TensorKind::bias) {
          (*numbers)[id] = at::zeros_like(tensor);
        }
      }
    }
    for (const auto& [id, tensor] : a_) {
      const auto other = b_.find(id);
      comparable_ = comparable_ && other != b_.end() && other->second.sizes() == tensor.sizes();
    }
    comparable_ = comparable_ && a_.size() == b_.size();
  }

  Alignment run() {
    if (!comparable_) {
      result_.note = "stored in different forms: tensors have no counterparts to be aligned with";
      return std::move(result_);
    }
    const std::map<std::string, double> before = group_differences();
    result_.before = std::sqrt(difference() / size());
    initial_ = difference();
    step("residual basis", [this] { turn_stream(/*whole=*/false); });
    step("head order", [this] { each_block(&Aligner::order_heads); });
    step("head gauge", [this] { each_block(&Aligner::gauge_heads); });
    step("neuron order", [this] { each_block(&Aligner::order_neurons); });
    step("neuron scale", [this] { each_block(&Aligner::scale_neurons); });
    step("residual basis", [this] { turn_stream(/*whole=*/true); });
    together_where_worse("head order", "head gauge", "head order and gauge");
    together_where_worse("neuron order", "neuron scale", "neuron order and scale");
    result_.after = std::sqrt(difference() / size());
    for (const auto& [group, value] : group_differences()) {
      result_.groups.push_back({group, before.at(group), value});
    }
    return std::move(result_);
  }

 private:
  // ---- how far they are

  static double squared(const at::Tensor& x) { return x.square().sum().item<double>(); }
  double difference() const {
    double sum = 0;
    for (const auto& [id, tensor] : a_) {
      sum += squared(tensor - b_.at(id));
    }
    return sum;
  }
  double size() const {
    double sum = 1e-300;
    for (const auto& [id, tensor] : a_) {
      sum += squared(tensor);
    }
    return sum;
  }
  std::map<std::string, double> group_differences() const {
    std::map<std::string, double> sizes, found;
    for (const auto& [id, tensor] : a_) {
      const std::string group = group_of(id);
      sizes[group] += squared(tensor);
      found[group] += squared(tensor - b_.at(id));
    }
    for (auto& [group, value] : found) {
      value = std::sqrt(value / std::max(sizes.at(group), 1e-300));
    }
    return found;
  }

  void step(const std::string& symmetry, const std::function<void()>& change) {
    const double before = difference();
    change();
    const double explained = initial_ > 0 ? (before - difference()) / initial_ : 0;
    const auto same = std::ranges::find(result_.steps, symmetry, &AlignmentStep::symmetry);
    if (same != result_.steps.end()) {
      same->explained += explained;
    } else {
      result_.steps.push_back({symmetry, explained});
    }
  }

  // An order is found by what heads do, whatever their gauge: alone it may bring the stored numbers further apart, and
  // what it explains is only seen with the gauge.
  void together_where_worse(const std::string& order, const std::string& gauge, const std::string& both) {
    const auto find = [this](const std::string& name) {
      return std::ranges::find(result_.steps, name, &AlignmentStep::symmetry);
    };
    if (find(order)->explained < 0) {
      *find(gauge) = {both, find(order)->explained + find(gauge)->explained};
      result_.steps.erase(find(order));
    }
  }

  // Kept only where it brings the two nearer.
  template <class Change>
  void if_nearer(const std::vector<TensorId>& parts, const Change& change) {
    std::vector<std::pair<TensorId, at::Tensor>> kept;
    double before = 0, after = 0;
    for (const TensorId& id : parts) {
      if (b_.contains(id)) {
        kept.emplace_back(id, b_.at(id).clone());
        before += squared(a_.at(id) - b_.at(id));
      }
    }
    change();
    for (const auto& [id, tensor] : kept) {
      after += squared(a_.at(id) - b_.at(id));
    }
    if (!(after < before)) {
      for (const auto& [id, tensor] : kept) {
        b_[id] = tensor;
      }
    }
  }

  // ---- the residual stream

  // Streams of the model's width that only RMSNorms and matrices touch: one rotation for them all.
  bool may_turn() {
    Architecture copy = architecture_;
    for (const PlacedNorm& placed : norms_of(copy)) {
      if (placed.norm->kind != NormKind::rms || a_.contains(weight_of(placed.module)) ||
          a_.contains(bias_of(placed.module))) {
        result_.note = "the stream has norms whose coordinates matter: its basis was left alone";
        return false;
      }
    }
    for (const Stream& stream : streams_.all) {
      for (const Touch& touch : stream.touches) {
        if (touch.kind != TouchKind::norm_reads && touch.kind != TouchKind::norm_writes) {
          result_.note = "something else than norms and matrices touches the stream: its basis was left alone";
          return false;
        }
      }
    }
    return true;
  }

  static at::Tensor rows_along(const at::Tensor& tensor, int64_t axis) {
    return tensor.movedim(axis, -1).reshape({-1, tensor.size(axis)});
  }

  void turn_stream(bool whole) {
    if (!may_turn()) {
      return;
    }
    std::vector<at::Tensor> reference, candidate;
    std::vector<TensorId> parts;
    const auto on_stream = [&](const auto& visit) {
      for (const Stream& stream : streams_.all) {
        for (const Port& port : stream.ports) {
          if (stream.width == architecture_.width && a_.contains(port.tensor) &&
              a_.at(port.tensor).size(port.axis) == stream.width) {
            visit(port);
          }
        }
      }
    };
    on_stream([&](const Port& port) {
      parts.push_back(port.tensor);
      const bool rows_stay = !port.tensor.module.block;  // tokens, positions, classes: nobody changes their order
      if (whole || rows_stay) {
        reference.push_back(rows_along(a_.at(port.tensor), port.axis));
        candidate.push_back(rows_along(b_.at(port.tensor), port.axis));
      }
    });
    if (reference.empty()) {
      return;
    }
    const at::Tensor eye = at::eye(architecture_.width, reference[0].options());
    const at::Tensor turn = procrustes(at::cat(reference), at::cat(candidate), eye);
    if_nearer(parts, [&] {
      std::vector<std::pair<TensorId, int64_t>> done;
      on_stream([&](const Port& port) {
        if (std::ranges::find(done, std::pair(port.tensor, port.axis)) != done.end()) {
          return;  // a tied table both writes and reads
        }
        done.emplace_back(port.tensor, port.axis);
        at::Tensor& tensor = b_.at(port.tensor);
        tensor = at::matmul(tensor.movedim(port.axis, -1), turn.t()).movedim(-1, port.axis);
      });
    });
  }

  // ---- heads

  void each_block(void (Aligner::*change)(int64_t)) {
    for (int64_t n = 0; n < std::ssize(architecture_.blocks); ++n) {
      (this->*change)(n);
    }
  }
  const Attention& attention(int64_t n) const { return architecture_.blocks[n].attention; }
  bool has_plain_heads(int64_t n) const {
    const Attention& t = attention(n);
    return has_dense_projections(t) && is<Dense>(t.output) && !is_tabled(architecture_, n);
  }
  // [heads, k, width], a group's keys and values for each of its queries.
  at::Tensor heads_of(const Numbers& numbers, int64_t n, Slot slot) const {
    const Attention& t = attention(n);
    const at::Tensor& stored = numbers.at(weight_of(in_attention(n, slot)));
    const int64_t own = slot == Slot::key || slot == Slot::value ? t.kv_heads : t.heads;
    return (slot == Slot::output ? stored.t() : stored)
        .reshape({own, t.head_width, -1})
        .repeat_interleave(t.heads / own, 0);
  }
  // <X_a' Y_a, X_b' Y_b> for all pairs of heads: [heads, heads].
  static at::Tensor inner(const at::Tensor& xa, const at::Tensor& ya, const at::Tensor& xb, const at::Tensor& yb) {
    const auto pairs = [](const at::Tensor& a, const at::Tensor& b) { return at::einsum("hkd,gld->hgkl", {a, b}); };
    return (pairs(xa, xb) * pairs(ya, yb)).sum({2, 3});
  }
  at::Tensor likeness(int64_t n) const {
    at::Tensor all;
    for (const auto& [x, y] : {std::pair(Slot::query, Slot::key), {Slot::value, Slot::output}}) {
      const at::Tensor xa = heads_of(a_, n, x), ya = heads_of(a_, n, y), xb = heads_of(b_, n, x),
                       yb = heads_of(b_, n, y);
      const at::Tensor size_a = inner(xa, ya, xa, ya).diagonal().clamp_min(1e-300).sqrt();
      const at::Tensor size_b = inner(xb, yb, xb, yb).diagonal().clamp_min(1e-300).sqrt();
      const at::Tensor one = inner(xa, ya, xb, yb) / size_a.unsqueeze(1) / size_b.unsqueeze(0);
      all = all.defined() ? all + one : one;
    }
    return all;
  }

  void order_heads(int64_t n) {
    const Attention& t = attention(n);
    if (!has_plain_heads(n) || t.alibi || t.heads == 1) {
      return;
    }
    const int64_t groups = t.kv_heads, share = t.heads / groups;
    const at::Tensor alike =
        likeness(n).to(at::kCPU).reshape({groups, share, groups, share}).transpose(1, 2).contiguous();
    at::Tensor costs = at::zeros({groups, groups}, at::kDouble);
    std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> inside;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t h = 0; h < groups; ++h) {
        const std::vector<int64_t>& order = inside[{g, h}] = assign(-alike[g][h]);
        for (int64_t i = 0; i < share; ++i) {
          costs[g][h] -= alike[g][h][i][order[i]];
        }
      }
    }
    const std::vector<int64_t> order = assign(costs);
    std::vector<int64_t> heads;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t other = order[g];
      for (int64_t i : inside.at({g, other})) {
        heads.push_back(other * share + i);
      }
    }
    const auto move = [&](const TensorId& id, int64_t axis, const std::vector<int64_t>& units, int64_t entries) {
      if (const auto found = b_.find(id); found != b_.end()) {
        const at::Tensor index = at::tensor(units, at::kLong).unsqueeze(1) * entries + at::arange(entries, at::kLong);
        found->second = found->second.index_select(axis, index.flatten().to(found->second.device()));
      }
    };
    for (const Slot slot : {Slot::query, Slot::key, Slot::value, Slot::output}) {
      const ModuleId module = in_attention(n, slot);
      const std::vector<int64_t>& units = slot == Slot::query || slot == Slot::output ? heads : order;
      move(weight_of(module), slot == Slot::output ? 1 : 0, units, t.head_width);
      if (slot != Slot::output) {
        move(bias_of(module), 0, units, t.head_width);
      }
    }
    for (const TensorKind kind : {TensorKind::weight, TensorKind::bias, TensorKind::position}) {
      move({in_attention(n, Slot::gate), kind}, 0, heads, 1);
    }
    move(weight_of(in_attention(n, Slot::shape)), 0, heads, 1);
    if (t.qk_norm_over != QkNormOver::head) {  // gains go with their heads
      const int64_t entries = t.qk_norm_over == QkNormOver::layer ? t.head_width : 1;
      for (const TensorKind kind : {TensorKind::weight, TensorKind::bias}) {
        move({in_attention(n, Slot::query_norm), kind}, 0, heads, entries);
        move({in_attention(n, Slot::key_norm), kind}, 0, order, entries);
      }
    }
  }

  // The rows of a group, and the bias behind them as one column more.
  at::Tensor group_rows(const Numbers& numbers, int64_t n, Slot slot, int64_t g) const {
    const ModuleId module = in_attention(n, slot);
    const at::Tensor& weight = numbers.at(weight_of(module));
    const at::Tensor stored = slot == Slot::output ? weight.t() : weight;
    const int64_t share = stored.size(0) / attention(n).kv_heads, k = attention(n).head_width;
    at::Tensor rows = stored.narrow(0, g * share, share);
    if (const auto bias = numbers.find(bias_of(module)); bias != numbers.end() && slot != Slot::output) {
      rows = at::cat({rows, bias->second.narrow(0, g * share, share).unsqueeze(1)}, 1);
    }
    return rows.reshape({-1, k, rows.size(1)}).transpose(1, 2).reshape({-1, k});  // samples of the k entries
  }
  void put_gauge(int64_t n, Slot slot, int64_t g, const at::Tensor& matrix) {  // rows become matrix rows
    const ModuleId module = in_attention(n, slot);
    const int64_t k = attention(n).head_width;
    const auto apply = [&](at::Tensor rows) {
      const int64_t share = rows.size(0) / attention(n).kv_heads;
      at::Tensor own = rows.narrow(0, g * share, share);
      own.copy_(at::matmul(matrix, own.reshape({-1, k, own.size(1)})).reshape(own.sizes()));
    };
    at::Tensor& weight = b_.at(weight_of(module));
    weight = weight.clone();
    apply(slot == Slot::output ? weight.t() : weight);
    if (const auto bias = b_.find(bias_of(module)); bias != b_.end() && slot != Slot::output) {
      bias->second = bias->second.clone();
      apply(bias->second.unsqueeze(1));
    }
  }

  void gauge_pair(int64_t n, Slot writer, Slot reader, MapGroup group) {
    const Attention& t = attention(n);
    const at::Tensor eye = at::eye(t.head_width, a_.begin()->second.options());
    const std::vector<TensorId> parts = {weight_of(in_attention(n, writer)), bias_of(in_attention(n, writer)),
                                         weight_of(in_attention(n, reader)), bias_of(in_attention(n, reader))};
    for (int64_t g = 0; g < t.kv_heads; ++g) {
      const std::vector<MapSamples> samples = {
          {Role::writer, group_rows(a_, n, writer, g), group_rows(b_, n, writer, g)},
          {Role::reader, group_rows(a_, n, reader, g), group_rows(b_, n, reader, g)}};
      const at::Tensor gauge = fit_in_group(group, t.rope, samples, eye);
      const auto [inverse, info] = at::linalg_inv_ex(gauge);
      if (info.item<int64_t>() == 0 && inverse.isfinite().all().item<bool>()) {
        if_nearer(parts, [&, inverse = inverse] {
          put_gauge(n, writer, g, gauge);
          put_gauge(n, reader, g, inverse.t());
        });
      }
    }
  }

  void gauge_heads(int64_t n) {
    const Attention& t = attention(n);
    if (!has_plain_heads(n)) {
      return;
    }
    gauge_pair(n, Slot::value, Slot::output, MapGroup::general);
    if (!t.qk_norm) {
      gauge_pair(n, Slot::query, Slot::key, t.rope ? MapGroup::turning : MapGroup::general);
    }
  }

  // ---- neurons

  const std::optional<Mlp>& mlp(int64_t n) const { return architecture_.blocks[n].mlp; }

  // The matrix whose rows may be scaled against the columns that write, if there is one.
  std::optional<FreeFactor> scaled(int64_t n) const {
    for (const FreeFactor& factor : neurons_of(*mlp(n)).factors) {
      if (factor.power == 1) {
        return factor;
      }
    }
    return std::nullopt;
  }

  // What a neuron reads and writes, each with length one where its scale is free.
  at::Tensor neuron_rows(const Numbers& numbers, int64_t n) const {
    const std::optional<FreeFactor> free = scaled(n);
    const auto [readers, writer] = mlp_matrices(architecture_, n);
    std::vector<at::Tensor> parts;
    const auto add = [&](const at::Tensor& rows, bool unit) {
      const at::Tensor whole = rows.norm().clamp_min(1e-300) / std::sqrt(static_cast<double>(rows.size(0)));
      parts.push_back(rows / (unit ? rows.norm(2, {1}, true).clamp_min(1e-300) : whole));
    };
    for (const TensorSpec& matrix : readers) {
      add(numbers.at(matrix.id), free && free->slot == matrix.id.module.slot);
    }
    add(numbers.at(writer.id).t(), free.has_value());
    return at::cat(parts, 1).to(at::kFloat);
  }

  void order_neurons(int64_t n) {
    if (!mlp(n)) {
      return;
    }
    const std::vector<int64_t> order = assign_many(-at::matmul(neuron_rows(a_, n), neuron_rows(b_, n).t()));
    const auto reorder = [&](const TensorId& id, int64_t axis) {
      if (const auto found = b_.find(id); found != b_.end()) {
        found->second = found->second.index_select(axis, at::tensor(order, at::kLong).to(found->second.device()));
      }
    };
    const auto [readers, writer] = mlp_matrices(architecture_, n);
    for (const TensorSpec& matrix : readers) {
      reorder(matrix.id, 0);
      reorder(bias_of(matrix.id.module), 0);
    }
    reorder(writer.id, 1);
  }

  // Of 1, what the rows that it reads want and what the column that it writes wants, the best for each.
  void scale_neurons(int64_t n) {
    const std::optional<FreeFactor> free = mlp(n) ? scaled(n) : std::nullopt;
    if (!free) {
      return;
    }
    const ModuleId reader = in_mlp(n, free->slot);
    const TensorId up = weight_of(reader), bias = bias_of(reader), down = mlp_matrices(architecture_, n).writer.id;
    const auto read = [&](const Numbers& numbers) {
      const auto found = numbers.find(bias);
      return found == numbers.end() ? numbers.at(up) : at::cat({numbers.at(up), found->second.unsqueeze(1)}, 1);
    };
    const at::Tensor ra = read(a_), rb = read(b_), wa = a_.at(down).t(), wb = b_.at(down).t();
    const auto dot = [](const at::Tensor& x, const at::Tensor& y) { return (x * y).sum(1); };
    const at::Tensor one = at::ones({ra.size(0)}, ra.options());
    at::Tensor best = one, least = (ra - rb).square().sum(1) + (wa - wb).square().sum(1);
    for (const at::Tensor& wish : {dot(ra, rb) / dot(rb, rb), dot(wb, wb) / dot(wa, wb)}) {
      at::Tensor scale = at::where(wish.isfinite() & (wish != 0), wish, one);
      scale = free->any_sign ? scale : at::where(scale > 0, scale, one);
      const at::Tensor by = scale.unsqueeze(1);
      const at::Tensor left = (ra - rb * by).square().sum(1) + (wa - wb / by).square().sum(1);
      best = at::where(left < least, scale, best);
      least = at::minimum(left, least);
    }
    b_[up] = b_.at(up) * best.unsqueeze(1);
    b_[down] = b_.at(down) / best.unsqueeze(0);
    if (b_.contains(bias)) {
      b_[bias] = b_.at(bias) * best;
    }
  }

  Architecture architecture_;
  Streams streams_;
  Numbers a_, b_;
  bool comparable_ = true;
  double initial_ = 0;
  Alignment result_;
};

}  // namespace

Alignment align(const Model& reference, const Model& candidate, at::Device device) {
  const at::NoGradGuard no_grad;
  return Aligner(reference, candidate, device).run();
}

}  // namespace pare
