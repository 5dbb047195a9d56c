#include "pare/algebra/basis.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <limits>

#include "pare/model/rope.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// Computed positions are added to a stream whose basis changes: from now on they are rows of a table.
void store_positions(Model& model) {
  const int64_t rows = position_rows(model.architecture), width = embedding_width(model.architecture);
  const Position kind = model.architecture.embedding.position;
  model.architecture.embedding.position = Position::learned;
  if (model.has_weights()) {
    const char* function = kind == Position::sinusoidal ? "sinusoidal" : "sinusoidal_halves";
    model.weights[name_of(weight_of(position_table))] =
        computed({rows, width}, fmt::format("{}({}, {})", function, rows, width), {}, [=](const auto&) {
          return sinusoidal_positions(at::arange(rows, at::kLong).unsqueeze(0), width, at::kDouble, kind).squeeze(0);
        });
  }
}

// With a first-layer table the token table is the head's alone.
bool serves_both_ends(const Architecture& a) {
  return a.head.tied && a.first_layer == FirstLayer::dense;
}

}  // namespace

Basis basis_of(const Weight& matrix, const Shelves& shelves) {
  const Weight theta = held(matrix, shelves.matrices), factors = held(factored(theta), shelves.factors);
  return {.write = {theta.formula(),
                    {theta},
                    [](const at::Tensor& rows, const auto& in) { return at::matmul(rows, in[0]); }},
          .read = {theta.formula().inverse().transposed(), {factors}, [](const at::Tensor& rows, const auto& in) {
                     return solved(rows, in[0], /*transposed=*/true);  // X Θᵀ = M
                   }}};
}

Basis inverse_basis_of(const Weight& matrix, const Shelves& shelves) {
  const Weight a = held(matrix, shelves.matrices), factors = held(factored(a), shelves.factors);
  return {.write = {a.formula().inverse(),
                    {factors},
                    [](const at::Tensor& rows, const auto& in) {
                      return solved(rows, in[0], /*transposed=*/false);  // X A = M
                    }},
          .read = {a.formula().transposed(), {a}, [](const at::Tensor& rows, const auto& in) {
                     return at::matmul(rows, in[0].t());
                   }}};
}

Basis dual(const Basis& basis) {
  return {.write = basis.read, .read = basis.write};
}

Model change_basis(const Model& model, const Streams& streams, const std::map<size_t, Basis>& bases) {
  Model after = model;
  for (const auto& [index, basis] : bases) {
    Stream stream = streams.all[index];
    for (const Touch& touch : stream.touches) {
      PARE_CHECK(touch.kind == TouchKind::sinusoidal, "a basis changes only where nothing else touches the stream");
      store_positions(after);
      stream.ports.push_back({weight_of(position_table), Role::writer, 1});
    }
    for (const Port& port : stream.ports) {
      if (serves_both_ends(model.architecture) && port.tensor == weight_of(token_table) && port.role == Role::reader) {
        continue;  // the writer's side of the same table brings it here
      }
      if (model.has_weights()) {
        Weight& weight = after.weights.at(name_of(port.tensor));
        weight = mapped_along(weight, port, stream.width, port.role == Role::writer ? basis.write : basis.read);
      }
    }
  }
  return after;
}

Model untied(const Model& model) {
  Model after = model;
  after.architecture.head.tied = false;
  if (model.has_weights()) {
    after.weights[name_of(weight_of(head_matrix))] = as_head(model.weights.at(name_of(weight_of(token_table))));
  }
  return after;
}

at::Tensor singular_values(const at::Tensor& matrix) {
  return at::linalg_svdvals(matrix);
}

double condition_of(const at::Tensor& values) {
  const double largest = values[0].item<double>(), smallest = values[-1].item<double>();
  return smallest > 0 ? largest / smallest : std::numeric_limits<double>::infinity();
}

double usual_condition_of(const at::Tensor& values) {
  return (values.norm() * values.reciprocal().norm()).item<double>() / static_cast<double>(values.size(0));
}

double condition_number(const at::Tensor& matrix) {
  return condition_of(singular_values(matrix));
}

}  // namespace pare
