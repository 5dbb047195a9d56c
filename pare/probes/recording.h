#pragma once
// From the activations of a few sequences to the running means of a probe, one kind of number at a time.

#include <ATen/core/Tensor.h>

#include "pare/arch/architecture.h"
#include "pare/probes/probe_results.h"
#include "pare/probes/stacks.h"
#include "pare/probes/subspaces.h"

namespace pare {

void record_ranks(RankMeasures& to, const StackRanks& found);

// Entropies and gaps of attention [rows, heads, n, n], in float64.
void record_attention(LayerMeasures& to, const Attention& attention, const at::Tensor& probabilities, double epsilon);
// The gaps of a prefix alone.
void record_prefix(LayerMeasures& to, const at::Tensor& probabilities, double epsilon);

// What the heads of a layer wrote, [rows, n, heads, k]. Hands back what W_O [d, heads * k] makes of it, [tokens, d],
// with zeros for sequences that are not finite.
at::Tensor record_heads(LayerMeasures& to, const at::Tensor& written, const OutputBases& bases,
                        const at::Tensor& output, const Tolerance& tolerance);
// How many directions the rows have that were added to a Gram matrix.
int64_t rank_of_gram(const at::Tensor& gram, double threshold);

// H3 of a norm with these gains (undefined: none), and which of the others say nothing about its kind.
void record_gains(NormMeasures& to, const at::Tensor& gains);
// H1, H2 and H4 of what a norm reads.
void record_hypotheses(NormMeasures& to, const at::Tensor& x, const Tolerance& tolerance);
// Which sequences [rows] have a finite token whose squares, as RMSNorm adds them up, are infinite: it becomes zero.
// (LayerNorm makes NaN of such a token, which nobody overlooks.)
at::Tensor overflowing_rows(const at::Tensor& x);
void record_change(NormMeasures& to, const StackRanks& before, const StackRanks& after);

}  // namespace pare
