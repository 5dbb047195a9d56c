#pragma once
// Products and roundings of matrices whose rows are the entries of heads, one head after another: [heads * k, n]. A
// projection with its bias is [W | b], whose last column lies on no stream.

#include "pare/proof/stream_map.h"

namespace pare {

Rounded beside(const Rounded& matrix, const Rounded& column);
// [heads * k, n]: along the k entries of each head.
at::Tensor usual_in_heads(const at::Tensor& rounding, int64_t k);
// [W | b] on the candidate's side of the stream: the bias is no stream's.
Rounded projected(const Rounded& both, const StreamMap& in);
// The same for what a residual of [W | b] is in the reference's coordinates.
at::Tensor projected_back(const at::Tensor& residual, const StreamMap& in);
at::Tensor before_projection(const at::Tensor& both, const at::Tensor& projected, const StreamMap& in);
at::Tensor solving_error_of(const at::Tensor& both, const StreamMap& in);
// The rounding of [W | b] where the stream's basis, and the head's, were found by samples: as of usual entries.
at::Tensor usual_rounding(const at::Tensor& both, const StreamMap& in, int64_t head_width, bool gauged);
// One unit for all entries that a stream's basis, or a head's, mixes; a bias lies on no stream. One number stays one.
at::Tensor unit_in_heads(const at::Tensor& unit, const StreamMap& in, int64_t head_width, bool gauged);
// off_elsewhere (stream_map.h) for what a gauge turns back: the same number for all entries of a head in a column.
at::Tensor off_in_heads(const at::Tensor& residual, const at::Tensor& lost, const at::Tensor& own,
                        const at::Tensor& gauge);
// One matrix on the rows of each head: [heads * k, n].
at::Tensor on_heads(const at::Tensor& matrices, const at::Tensor& rows);
// The same by their inverses; infinite where there is none.
at::Tensor on_heads_back(const at::Tensor& matrices, const at::Tensor& rows);
// The rows of one group's heads, as samples of its k entries: [heads of the group * n, k].
at::Tensor samples_of_group(const at::Tensor& rows, int64_t groups, int64_t k, int64_t g);
// What float64 loses where somebody solved with a gauge, perhaps with several one after another; it is known as well as
// the stream before it.
at::Tensor gauge_error(const at::Tensor& gauge, const at::Tensor& rows, const StreamMap& in);

}  // namespace pare
