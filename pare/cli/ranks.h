#pragma once
// A command that several processes run together, each started with the same words by a launcher.

#include <exception>
#include <functional>
#include <string>

#include "pare/cli/commands.h"
#include "pare/ranks/communicator.h"

namespace pare {

// `work` of this process, alone or as one of several, which then share the cores of their host. Of several only the
// first says what all would say: the others print no notes, and their results are for `work` to hold back.
void as_ranks(const Settings& settings, const std::function<void(const Communicator&)>& work);

// The same where all of them come to the same end, as with results that each of them has whole: only the first prints
// anything, and all have its exit code. What `work` hands back is thrown once all are done; nothing: all is well.
void as_one(const Settings& settings, const std::function<std::exception_ptr(const Communicator&)>& work);

// The commands that take ranks. InputError, said by one of them, where several processes were started for another one.
void check_takes_ranks(const std::string& command);

}  // namespace pare
