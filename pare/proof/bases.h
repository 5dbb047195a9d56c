#pragma once
// The maps of all streams and the gauges of all heads: found from the tensors themselves, and then checked on each of
// them. Where nothing was changed they are the identity, and nothing is computed.

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "pare/proof/attention.h"
#include "pare/proof/ports.h"

namespace pare {

class ProofBases {
 public:
  // `same`: the tensors that both store with the same numbers.
  ProofBases(const ProofSide& reference, const ProofSide& candidate, const std::set<TensorId>& same,
             const at::TensorOptions& options);

  void find();

  const std::vector<ProofPort>& ports() const { return ports_; }
  const Finding& finding(size_t port) const { return *findings_[port]; }
  const std::vector<AttentionProof>& attentions() const { return attentions_; }
  const std::vector<AttentionProof::Named>& check_heads(size_t block);
  const std::vector<StreamMap>& maps() const { return maps_; }
  const std::vector<HeadMaps>& heads() const { return heads_; }

  // A basis stands between the two sides.
  bool is_fitted(const ProofPort& port) const { return !is_identity(port.stream) || !is_identity(port.samples_on); }
  // Nothing that is in it was changed.
  bool is_untouched(const ProofPort& port) const;
  bool is_untouched(size_t block) const;
  How how(const ProofPort& port) const;
  // Most rows of a table obey, though some may be strange.
  static bool mostly_holds(const Finding& finding, int64_t rows);

 private:
  // Which samples are rows of a table, and how far rounding moves those.
  struct TableSamples {
    size_t index;
    double roundoff;
  };
  using HeadFindings = std::vector<std::optional<std::vector<AttentionProof::Named>>>;
  using Found = std::tuple<std::vector<bool>, std::vector<StreamMap>, std::vector<HeadMaps>,
                           std::vector<std::optional<Finding>>, HeadFindings>;

  bool are_same(const std::vector<TensorId>& parts) const;
  bool is_identity(const std::optional<size_t>& stream) const { return !stream || maps_[*stream].is_identity(); }
  const BlockStreams& streams_of(size_t block) const { return a_.streams().blocks[block]; }
  bool is_pinned(size_t stream) const;
  bool is_absorbed(size_t stream) const;

  static Effective loaded(const ProofPort& port, const ProofSide& side, int64_t begin, int64_t count);
  bool is_centred(const std::optional<size_t>& stream) const;
  bool is_scaled(const ProofPort& port) const;
  bool is_made(const ProofPort& port) const;  // of one side's form, or of what writes it without its mean
  Finding check(const ProofPort& port) const;
  Finding check_rows(const ProofPort& port, int64_t begin, int64_t count) const;
  // What the candidate's roundings come to where they are compared.
  at::Tensor carried(const ProofPort& port, const Effective& rows) const;
  at::Tensor unit(const ProofPort& port, int64_t begin, int64_t count, const at::Tensor& rounding) const;
  Effective through_samples(const ProofPort& port, const Effective& rows) const;
  at::Tensor through_samples_back(const ProofPort& port, const at::Tensor& rows) const;
  Effective with_usual_samples(const ProofPort& port, const Effective& rows) const;

  void find_identities();
  bool is_determined(size_t stream) const;  // by what is known of it before any gauge is
  bool fit_jointly(const std::vector<size_t>& changed);
  int64_t fit_in_turn(const std::vector<size_t>& changed);
  int64_t count_wrong();
  void fit_heads(size_t block);
  void fit_stream(size_t stream);
  std::vector<size_t> turning_with(size_t stream) const;  // and itself
  std::vector<MapSamples> samples_for(const std::vector<size_t>& streams, std::vector<TableSamples>& tables) const;
  void add_samples(size_t stream, int64_t step, std::vector<MapSamples>& samples,
                   std::vector<TableSamples>& tables) const;
  void set_map(size_t stream, const PinnedMap& found, const std::vector<MapSamples>& samples);
  PinnedMap fit_once(size_t stream, const std::vector<MapSamples>& samples) const;
  int64_t samples_on(size_t stream) const;  // at most, and about
  MapSamples samples_of(const ProofPort& port) const;
  int64_t enough_samples(const ProofPort& port) const;
  // In all, of a stream: more of them make a map hardly better, and each costs a product.
  int64_t most_samples(size_t stream) const { return std::max<int64_t>(4096, 16 * a_.streams().all[stream].width); }
  void add_head_samples(size_t block, size_t stream, int64_t step, std::vector<MapSamples>& samples) const;
  void add_samples_behind(size_t block, std::vector<MapSamples>& samples) const;
  at::Tensor known_values(size_t block) const;
  double roundoff_of(const ProofPort& port) const;
  static bool weigh_down_strange_rows(const at::Tensor& map, const std::vector<TableSamples>& tables,
                                      std::vector<MapSamples>& samples);

  const ProofSide &a_, &b_;
  const ProofSide wide_;  // the candidate, as if it were stored in float64
  const std::set<TensorId>& same_;
  at::TensorOptions options_;
  bool same_offsets_ = false;
  std::vector<MapGroup> groups_;  // by stream
  std::vector<ProofPort> ports_;
  std::vector<std::optional<Finding>> findings_;  // by port, of the maps as they are
  std::vector<AttentionProof> attentions_;
  std::vector<HeadMaps> heads_;                     // by block
  HeadFindings head_findings_;                      // by block, of the maps as they are
  std::vector<StreamMap> maps_;                     // by stream
  std::map<size_t, std::vector<size_t>> together_;  // by stream: those that turn with it, where norms join some
  std::vector<bool> known_;                         // by stream: the map is more than a guess
};

}  // namespace pare
