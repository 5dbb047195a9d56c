#include "pare/probes/probe_results.h"

#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/probes/collapses.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

template <class Number>
Json number_or_null(const std::optional<Number>& number) {
  return number ? Json(*number) : Json(nullptr);
}

// What is not defined is null and says why: there is no NaN in JSON, and none to be taken for a number.
Json json_of(const Spread& spread) {
  Json json = {{"mean", number_or_null(spread.average())},
               {"std", number_or_null(spread.deviation())},
               {"min", spread.count > 0 ? Json(spread.least) : Json(nullptr)},
               {"max", spread.count > 0 ? Json(spread.most) : Json(nullptr)},
               {"count", spread.count}};
  if (spread.undefined > 0) {
    json["undefined"] = spread.undefined;
    json["reason"] = spread.reason;
  }
  return json;
}

Json json_of(const RankMeasures& ranks) {
  Json spectrum = mapped(ranks.spectrum, [](const Spread& value) { return number_or_null(value.average()); });
  return {{"rank", json_of(ranks.rank)},
          {"effective_rank", json_of(ranks.effective_rank)},
          {"stable_rank", json_of(ranks.stable_rank)},
          {"distance_to_rank_one", json_of(ranks.distance_to_rank_one)},
          {"affine_rank", json_of(ranks.affine_rank)},
          {"spectrum", std::move(spectrum)}};
}

Json json_of(const Hypothesis& hypothesis) {
  if (!hypothesis.inapplicable.empty()) {
    return {{"holds", nullptr}, {"checked", 0}, {"number", nullptr}, {"reason", hypothesis.inapplicable}};
  }
  return {{"holds", hypothesis.holds}, {"checked", hypothesis.checked}, {"number", json_of(hypothesis.number)}};
}

const char* sublayer_word(Sublayer sublayer) {
  return sublayer == Sublayer::attention ? "attention" : sublayer == Sublayer::mlp ? "mlp" : "end";
}

Json json_of(const NormMeasures& norm, const std::vector<PointMeasures>& points) {
  return {{"name", norm.name},
          {"layer", norm.layer},
          {"kind", word(norm.kind)},
          {"place", norm.place == NormPlace::pre ? "pre" : "post"},
          {"before", points[norm.before].name},
          {"after", points[norm.after].name},
          {"rank_change", json_of(norm.rank_change)},
          {"affine_rank_change", json_of(norm.affine_rank_change)},
          {"H1", json_of(norm.no_constant_row)},
          {"H2", json_of(norm.ones_outside)},
          {"H3", json_of(norm.gains_nonzero)},
          {"H4", json_of(norm.scales_outside)}};
}

Json json_of(const HeadMeasures& head) {
  Json contexts = Json::array();
  for (const ContextGap& context : head.by_context) {
    contexts.push_back({{"tokens", context.tokens}, {"gap", json_of(context.gap)}});
  }
  Json json = {{"entropy", json_of(head.entropy)},
               {"distance_to_uniform", json_of(head.distance_to_uniform)},
               {"relative_entropy", json_of(head.relative_entropy)},
               {"gap", json_of(head.gap)},
               {"inverse_gap", json_of(head.inverse_gap)},
               {"gap_by_context", std::move(contexts)},
               {"asymmetry", number_or_null(head.asymmetry)}};
  if (!head.asymmetry) {
    json["no_asymmetry"] = head.no_asymmetry;
  }
  json["output_dimension"] = json_of(head.output_dimension);
  return json;
}

Json json_of(const LayerMeasures& layer) {
  Json heads = Json::array(), pairs = Json::array();
  for (const HeadMeasures& head : layer.heads) {
    heads.push_back(json_of(head));
  }
  for (const HeadPair& pair : layer.pairs) {
    pairs.push_back({{"heads", {pair.first, pair.second}},
                     {"smallest_angle", json_of(pair.smallest)},
                     {"mean_angle", json_of(pair.mean)},
                     {"alignment", json_of(pair.alignment)}});
  }
  return {{"layer", layer.layer},
          {"block", layer.block},
          {"heads", std::move(heads)},
          {"pairs", std::move(pairs)},
          {"multi_head_rank", json_of(layer.multi_head_rank)},
          {"corpus_rank", number_or_null(layer.corpus_rank)},
          {"width_bound", number_or_null(layer.width_bound)},
          {"mlp_width", number_or_null(layer.mlp_width)},
          {"recovery_ambiguity", json_of(layer.recovery_ambiguity)},
          {"recovery_ambiguity_of_a_token", layer.ambiguity_of_a_token},
          {"value_output_gauge", layer.value_output_gauge}};
}

Json json_of(const CollapseFinding& finding) {
  Json json = {{"collapse", word(finding.collapse)},
               {"verdict", word(finding.verdict)},
               {"number", number_or_null(finding.number)},
               {"measure", finding.measure},
               {"rule", finding.rule},
               {"worst", finding.place}};
  if (!finding.undecided.empty()) {
    json["undecided"] = finding.undecided;
  }
  return json;
}

}  // namespace

nlohmann::ordered_json to_json(const ProbeResults& results) {
  Json points = Json::array(), norms = Json::array(), layers = Json::array(), findings = Json::array();
  for (const PointMeasures& point : results.points) {
    Json json = {{"name", point.name},
                 {"kind", word(point.kind)},
                 {"layer", point.layer},
                 {"sublayer", sublayer_word(point.sublayer)}};
    json.update(json_of(point.ranks));
    points.push_back(std::move(json));
  }
  for (const NormMeasures& norm : results.norms) {
    norms.push_back(json_of(norm, results.points));
  }
  for (const LayerMeasures& layer : results.layers) {
    layers.push_back(json_of(layer));
  }
  for (const CollapseFinding& finding : results.findings) {
    findings.push_back(json_of(finding));
  }
  Json gauge = {{"dimension", number_or_null(results.gauge.dimension)}};
  if (!results.gauge.dimension) {
    gauge["undetermined"] = results.gauge.undetermined;
  }
  return {{"threshold", results.threshold},
          {"compute_dtype", results.dtype},
          {"width", results.width},
          {"sequences", results.sequences},
          {"asked_sequences", results.asked_sequences},
          {"tokens", results.tokens},
          {"shortest", results.shortest},
          {"longest", results.longest},
          {"partial", results.partial},
          {"interventions", results.interventions},
          {"effect", results.interventions.empty() ? Json(nullptr) : json_of(results.effect)},
          {"collapses", std::move(findings)},
          {"points", std::move(points)},
          {"norms", std::move(norms)},
          {"layers", std::move(layers)},
          {"gauge", std::move(gauge)},
          {"warnings", results.warnings}};
}

}  // namespace pare
