#include "pare/arch/norm.h"

#include "pare/arch/sublayer.h"
#include "pare/arch/words.h"

namespace pare {

template <class Io>
static void fields(Io& io, Norm& n) {
  io.required("kind", n.kind);
  io.optional("place", n.place, NormPlace::pre);
  io.optional("epsilon", n.epsilon, 1e-5);
  io.optional("gain", n.gain, true);
  io.optional("bias", n.bias, false);
  io.optional("offset", n.offset, 0.0);
  io.optional("factor", n.factor, 1.0);
}

void describe(JsonReader& io, Norm& norm) {
  fields(io, norm);
}
void describe(JsonWriter& io, Norm& norm) {
  fields(io, norm);
}

void check_norm(Rules& rules, const std::string& path, const std::optional<Norm>& norm, bool may_be_post) {
  if (!norm) {
    return;
  }
  rules.require(norm->epsilon >= 0, path + ".epsilon", "{} is negative", norm->epsilon);
  rules.require(norm->gain || norm->offset == 0, path + ".offset", "{} is added to a gain, and there is none",
                norm->offset);
  rules.require(norm->factor == 1 || norm->kind == NormKind::scale, path + ".factor", "{} is for a scale",
                norm->factor);
  rules.require(norm->factor != 0, path + ".factor", "0 leaves nothing");
  rules.require(may_be_post || norm->place == NormPlace::pre, path + ".place", "post is for serial sublayers only");
}

}  // namespace pare
