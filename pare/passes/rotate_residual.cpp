// Theorem: RMSNorm(x Θ) = RMSNorm(x) Θ for every orthogonal Θ, so a stream between RMSNorms may be turned:
//   W → W Θ, b → b Θ for every writer, R → Θᵀ R for every reader, before and behind the norms alike.
// Before: any matrix M of the stream.   After: M is triangular, with a positive diagonal. Θ = Q of the QR decomposition
// M = Q R for a reader, [in, out], so that Θᵀ M = R; of Mᵀ = Q R for a writer, so that M Θ = Rᵀ.
//
// Proof: |x Θ| = |x|, and a norm without a gain of its own only divides by a length. Everything else that touches the
// stream is a matrix, and Θ Θᵀ = I between each two of them. A tied table becomes E Θ at both ends: (E Θ)ᵀ = Θᵀ Eᵀ.
//
// Preconditions: P1 the norms on the stream are RMSNorms; P2 without gains (a tied head's last norm may have one that
// is the same for all coordinates; a bias is turned along); P3 else only matrices touch it: no identity, no activation,
// not the model's answer (computed positions become a table); P4 the chosen matrix is a plain one that lies on it.
// Exactness: products with an orthogonal matrix, condition number 1. What is below the diagonal is written as zero.
// Order: last of what changes bases, since the zeros are for good only if nothing mixes the stream again.
// Reference: docs/theorems/rotate_residual.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "pare/algebra/basis.h"
#include "pare/algebra/normed_streams.h"
#include "pare/arch/count.h"
#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

constexpr const char* first_word = "first";

// Streams that one Θ turns: those that norms join, and the two ends of a tied table.
struct Turning {
  std::set<size_t> streams;
  std::vector<NormBetween> norms;
  std::vector<Precondition> obstacles;
};

// A matrix that could be triangular.
struct Chosen {
  Port port;
  size_t stream = 0;
  int64_t rows = 0;  // as it lies along the stream: [rows, width]
};

bool holds_table(const Stream& stream) {
  return std::ranges::any_of(stream.ports, [](const Port& port) { return port.tensor == weight_of(token_table); });
}

std::optional<Precondition> obstacle_of(const Model& model, const Streams& streams, const NormBetween& norm) {
  if (norm.norm.kind == NormKind::layer) {
    return in_the_way(norm.module, "an RMSNorm", "it is a LayerNorm", "center_layer_norm, where it applies");
  }
  if (norm.norm.kind == NormKind::dyt) {
    return in_the_way(norm.module, "an RMSNorm", "it is a DyT", "none: it sees each coordinate");
  }
  const bool tied = is_table_of_both_ends(model.architecture) && holds_table(streams.all[norm.writes]);
  if (norm.norm.gain && !tied) {
    return in_the_way(norm.module, "a norm without gain", "it has a gain", "fold_norm_gain, where it applies");
  }
  if (!has_uniform_gain(model, norm)) {
    return in_the_way(norm.module, "a uniform gain before a tied head", "it is not uniform",
                      "untie the head, which costs more, and fold_norm_gain");
  }
  return std::nullopt;
}

std::optional<Precondition> obstacle_of(const Touch& touch) {
  const char* expected = "a stream that only matrices and RMSNorms touch";
  switch (touch.kind) {
    case TouchKind::norm_reads:
    case TouchKind::norm_writes:
    case TouchKind::sinusoidal:
      return std::nullopt;
    case TouchKind::identity:
    case TouchKind::shrunk:
      return in_the_way(touch.module, expected, text_of(touch), "rotate before the matrix is removed");
    case TouchKind::activation:
      return in_the_way(touch.module, expected, text_of(touch), "none: it sees each coordinate");
    case TouchKind::hidden:
    case TouchKind::pooled:
    case TouchKind::elsewhere:
      return in_the_way(touch.module, expected, text_of(touch), "none: its basis is part of the answer");
  }
  PARE_UNREACHABLE("a touch that is no kind");
}

Turning turning_of(const Model& model, const Streams& streams, const std::vector<NormBetween>& norms, size_t start) {
  Turning turning{.streams = {start}};
  for (size_t before = 0; before != turning.streams.size();) {
    before = turning.streams.size();
    for (const NormBetween& norm : norms) {
      if (turning.streams.contains(norm.reads) || turning.streams.contains(norm.writes)) {
        turning.streams.insert({norm.reads, norm.writes});
      }
    }
    const bool both = is_table_of_both_ends(model.architecture) &&
                      std::ranges::any_of(turning.streams, [&](size_t i) { return holds_table(streams.all[i]); });
    for (size_t i = 0; both && i < streams.all.size(); ++i) {
      if (holds_table(streams.all[i])) {
        turning.streams.insert(i);
      }
    }
  }
  for (const NormBetween& norm : norms) {
    if (turning.streams.contains(norm.reads)) {
      turning.norms.push_back(norm);
      if (std::optional<Precondition> failed = obstacle_of(model, streams, norm)) {
        turning.obstacles.push_back(*std::move(failed));
      }
    }
  }
  for (const size_t i : turning.streams) {
    for (const Touch& touch : streams.all[i].touches) {
      if (std::optional<Precondition> failed = obstacle_of(touch)) {
        turning.obstacles.push_back(*std::move(failed));
      }
    }
  }
  return turning;
}

// Plain matrices and tables: those that read in the order of the tensors, then those that write, then tables.
std::vector<Chosen> candidates(const Architecture& architecture, const Streams& streams) {
  std::map<std::pair<TensorId, Role>, std::vector<std::pair<Port, size_t>>> places;
  for (size_t i = 0; i < streams.all.size(); ++i) {
    for (const Port& port : streams.all[i].ports) {
      places[{port.tensor, port.role}].emplace_back(port, i);
    }
  }
  std::vector<Chosen> found;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    if (spec.shape.size() != 2 || spec.id.kind != TensorKind::weight) {
      continue;
    }
    for (const Role role : {Role::reader, Role::writer}) {
      for (const auto& [port, stream] : places[{spec.id, role}]) {
        if (port.axis < 2 && spec.shape[port.axis] == streams.all[stream].width) {
          found.push_back({port, stream, spec.shape[1 - port.axis]});
        }
      }
    }
  }
  const auto rank = [](const Chosen& one) {
    return std::pair(one.port.tensor.module.sublayer == Sublayer::embedding, one.port.role == Role::writer);
  };
  std::ranges::stable_sort(found, [&](const Chosen& a, const Chosen& b) { return rank(a) < rank(b); });
  return found;
}

// Why a name is none of them: it lies on no stream, or is not there. An earlier pass may have removed it, so that it is
// not there is a reason, not a mistake of whoever asks.
Precondition not_a_candidate(const Architecture& architecture, const std::string& name) {
  Precondition failed{.where = escaped(name), .expected = "a plain matrix on a stream"};
  std::vector<std::string> known;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    known.push_back(name_of(spec.id.module));
    if (name == known.back() || name == spec.name) {
      failed.found = spec.shape.size() == 2 ? "no axis of it is a whole stream" : "it is not a matrix";
      failed.remedy = "choose another matrix";
      return failed;
    }
  }
  failed.found = "the model stores none of this name" + did_you_mean(name, known);
  failed.remedy = "choose a matrix that is there, such as blocks.0.mlp.up, or rotate before it is removed";
  return failed;
}

bool is_table(const ModuleId& module) {  // written as it is stored, a row for each of its entries
  return module.sublayer == Sublayer::embedding && module.slot != Slot::projection;
}

// Θ for the matrix, held: Q of a complete QR, signed so that R's diagonal is positive. Of more rows than columns only
// the first decide.
Weight rotation(const Model& model, const Chosen& chosen, int64_t width, const std::shared_ptr<Shelf>& shelf) {
  const Weight source = model.weights.at(name_of(chosen.port.tensor));
  const bool as_written = chosen.port.role == Role::reader && !is_table(chosen.port.tensor.module);
  const Formula argument = as_written ? source.formula() : source.formula().transposed();
  const Formula theta = Formula::symbol("Θ", chosen.port.tensor.module.block.value_or(0),
                                        Formula::enclosed("orthogonal(", argument, ")"));
  const int64_t axis = chosen.port.axis, rows = std::min(chosen.rows, width);
  return held(computed({width, width}, theta, {source},
                       [=](const std::vector<at::Tensor>& in) {
                         const at::Tensor columns = in[0].movedim(axis, 0).narrow(1, 0, rows);
                         const auto [q, r] = at::linalg_qr(columns, "complete");
                         at::Tensor signs = at::ones({width}, at::kDouble);
                         const at::Tensor diagonal = r.diagonal();
                         signs.narrow(0, 0, diagonal.size(0)).copy_(at::where(diagonal < 0, -1.0, 1.0));
                         return at::mul(q, signs).contiguous();
                       }),
              shelf);
}

Basis turned_by(const Weight& theta) {
  const RowMap map{theta.formula(), {theta}, [](const at::Tensor& rows, const auto& in) {
                     return at::matmul(rows, in[0]);  // Θ⁻ᵀ = Θ: readers and writers alike
                   }};
  return {.write = map, .read = map};
}

// What the rotation makes zero is zero in the file, not a rounding of it.
void write_zeros(Model& after, const Chosen& chosen) {
  Weight& weight = after.weights.at(name_of(chosen.port.tensor));
  const bool lower = chosen.port.axis == 1;
  weight = computed(weight.shape(), weight.formula(), {weight},
                    [lower](const std::vector<at::Tensor>& in) { return lower ? at::tril(in[0]) : at::triu(in[0]); });
}

// Norms divide by lengths, which do not change; their biases, and the streams of both sides, do.
Streams with_norms_turned(Streams streams, const Turning& turning) {
  for (const NormBetween& norm : turning.norms) {
    if (norm.norm.bias) {
      streams.all[norm.writes].ports.push_back({bias_of(norm.module), Role::writer, 0});
    }
  }
  for (const size_t i : turning.streams) {
    std::erase_if(streams.all[i].touches, [](const Touch& t) { return t.kind != TouchKind::sinusoidal; });
  }
  return streams;
}

Proposal refused(const Model& model, const std::vector<Precondition>& reasons) {
  Proposal proposal{.after = model};
  std::set<std::pair<std::string, std::string>> said;  // streams that are joined say the same
  for (const Precondition& reason : reasons) {
    if (said.emplace(reason.where, reason.found).second) {
      proposal.preconditions.push_back(reason);
    }
  }
  if (proposal.preconditions.empty()) {
    proposal.preconditions.push_back(
        {.where = "model", .expected = "a matrix on a stream", .found = "it has no ordinary matrix"});
  }
  return proposal;
}

Proposal turned_model(const Model& model, const Streams& streams, const Turning& turning, const Chosen& chosen) {
  const int64_t width = streams.all[chosen.stream].width, rows = std::min(chosen.rows, width);
  const std::string name = name_of(chosen.port.tensor.module);
  const Streams changing = with_norms_turned(streams, turning);
  Proposal proposal{.after = model, .applies = true};
  RoundingWalk walk;
  Basis basis;
  if (model.has_weights()) {
    basis = turned_by(rotation(model, chosen, width, make_shelf()));
  }
  std::map<size_t, Basis> bases;
  for (const size_t i : turning.streams) {
    bases.emplace(i, basis);
    step_along(walk, model, changing.all[i].ports);
  }
  proposal.after = change_basis(model, changing, bases);
  if (model.has_weights()) {
    write_zeros(proposal.after, chosen);
  }
  proposal.preconditions.push_back({.where = name,
                                    .block = chosen.port.tensor.module.block,
                                    .expected = "a stream that only matrices and RMSNorms touch",
                                    .found = fmt::format("{} such norms", turning.norms.size()),
                                    .holds = true});
  proposal.roundings = walk.roundings();
  proposal.notes.push_back(
      fmt::format("{} is triangular: {} of its numbers are zero, and stored like the others. A "
                  "rotation makes no file smaller; it shows what is redundant",
                  name, with_commas(rows * (2 * width - rows - 1) / 2)));
  if (const int64_t grown = count(proposal.after.architecture).total - count(model.architecture).total; grown > 0) {
    proposal.notes.push_back(
        fmt::format("computed positions have to be stored: {} parameters more", with_commas(grown)));
  }
  return proposal;
}

Proposal propose_rotation(const Model& model, const Options& options, const std::optional<Budget>&) {
  const Streams streams = find_streams(model.architecture);
  const std::vector<NormBetween> norms = norms_between(model.architecture, streams);
  const std::string& asked = options.at("triangular");
  std::vector<Chosen> possible = candidates(model.architecture, streams);
  if (asked != first_word) {
    std::erase_if(possible, [&](const Chosen& one) {
      return asked != name_of(one.port.tensor.module) && asked != name_of(one.port.tensor);
    });
    if (possible.empty()) {
      return refused(model, {not_a_candidate(model.architecture, asked)});
    }
  }
  std::vector<Precondition> reasons;
  std::set<size_t> looked_at;
  for (const Chosen& chosen : possible) {
    if (!looked_at.insert(chosen.stream).second) {
      continue;
    }
    const Turning turning = turning_of(model, streams, norms, chosen.stream);
    if (turning.obstacles.empty()) {
      return turned_model(model, streams, turning, chosen);
    }
    looked_at.insert(turning.streams.begin(), turning.streams.end());
    reasons.insert(reasons.end(), turning.obstacles.begin(), turning.obstacles.end());
  }
  return refused(model, reasons);
}

}  // namespace

const Pass& pass_rotate_residual() {
  static const Pass pass{
      .id = "rotate_residual",
      .theorem = "RMSNorm(xΘ) = RMSNorm(x)Θ for orthogonal Θ: W → WΘ, R → Θ'R, and one R is triangular",
      .saves = "no parameters: width (width - 1) / 2 zeros in a square matrix, stored like other numbers",
      .reference = "SliceGPT (Ashkboos et al. 2024), theorem 1",
      .preconditions = {"the norms on the stream are RMSNorms",
                        "without gains; a tied head's last norm may have a uniform one",
                        "else only matrices touch the stream: no identity, no activation, not the answer",
                        "the chosen matrix is a plain one on the stream"},
      .options = {{"triangular", "first|MATRIX", "first"}},
      .propose = propose_rotation,
  };
  return pass;
}

}  // namespace pare
