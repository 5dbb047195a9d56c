#pragma once
// A command that several processes run together, each started with the same words by a launcher.

#include <functional>

#include "pare/cli/commands.h"
#include "pare/ranks/communicator.h"

namespace pare {

// `work` of this process, alone or as one of several, which then share the cores of their host. Of several only the
// first says what all would say: the others print no notes, and their results are for `work` to hold back.
void as_ranks(const Settings& settings, const std::function<void(const Communicator&)>& work);

}  // namespace pare
