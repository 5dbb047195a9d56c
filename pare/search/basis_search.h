#pragma once
// Finds the bases of all streams and the gauges of all heads from the tensors themselves, and sets them in the
// relations, which judge every trial. Where nothing was changed they are the identity, and nothing is computed.

#include <map>

#include "pare/proof/relations.h"
#include "pare/search/gauge_search.h"

namespace pare {

class BasisSearch {
 public:
  BasisSearch(Relations& relations, at::Device device);
  BasisSearch(const BasisSearch&) = delete;  // heads refer to what is in here

  void find();

 private:
  // Which samples are rows of a table, and how far rounding moves those.
  struct TableSamples {
    size_t index;
    double roundoff;
  };

  const BlockStreams& streams_of(size_t block) const { return relations_.streams_of(block); }
  int64_t width_of(size_t stream) const { return a_.streams().all[stream].width; }
  bool is_pinned(size_t stream) const;
  void find_identities();
  bool is_determined(size_t stream) const;  // by what is known of it before any gauge is
  bool fit_jointly(const std::vector<size_t>& changed);
  int64_t fit_in_turn(const std::vector<size_t>& changed);
  void fit_heads(size_t block);
  void fit_stream(size_t stream);
  std::vector<size_t> turning_with(size_t stream) const;  // and itself
  std::vector<MapSamples> samples_for(const std::vector<size_t>& streams, std::vector<TableSamples>& tables) const;
  void add_samples(size_t stream, int64_t step, std::vector<MapSamples>& samples,
                   std::vector<TableSamples>& tables) const;
  void set_map(size_t stream, StreamBasis found, const std::vector<MapSamples>& samples);
  StreamBasis fit_once(size_t stream, const std::vector<MapSamples>& samples) const;
  int64_t samples_on(size_t stream) const;  // at most, and about
  MapSamples samples_of(const ProofPort& port) const;
  int64_t enough_samples(const ProofPort& port) const { return 4 * width_of(*port.stream) + 64; }
  // In all, of a stream: more of them make a map hardly better, and each costs a product.
  int64_t most_samples(size_t stream) const { return std::max<int64_t>(4096, 16 * width_of(stream)); }
  void add_head_samples(size_t block, size_t stream, int64_t step, std::vector<MapSamples>& samples) const;
  void add_samples_behind(size_t block, std::vector<MapSamples>& samples) const;
  at::Tensor known_values(size_t block) const;
  double roundoff_of(const ProofPort& port) const;
  static bool weigh_down_strange_rows(const at::Tensor& map, const std::vector<TableSamples>& tables,
                                      std::vector<MapSamples>& samples);

  Relations& relations_;
  const ModelView a_, b_;  // of its own: what is asked for here is not explained by it
  at::TensorOptions options_;
  std::vector<GaugeSearch> heads_;                  // by block
  std::map<size_t, std::vector<size_t>> together_;  // by stream: those that turn with it, where norms join some
  std::vector<bool> known_;                         // by stream: the map is more than a guess
};

}  // namespace pare
