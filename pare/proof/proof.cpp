#include "pare/proof/proof.h"

#include "pare/support/error.h"

namespace pare {

const char* word(How how) {
  switch (how) {
    case How::same_numbers:
      return "same numbers";
    case How::same_up_to_rounding:
      return "same up to rounding";
    case How::gain_folded:
      return "gain folded";
    case How::shift_folded:
      return "shift folded";
    case How::value_bias_folded:
      return "value bias folded";
    case How::head_untied:
      return "tied and untied head";
    case How::basis:
      return "basis of the stream";
    case How::gauge:
      return "gauge of each head";
    case How::reordered:
      return "in another order";
    case How::scaled:
      return "scale of each neuron";
    case How::written_out:
      return "in another form";
  }
  PARE_UNREACHABLE("a relation");
}

}  // namespace pare
