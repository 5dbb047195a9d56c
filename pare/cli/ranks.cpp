#include "pare/cli/ranks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>

#include "pare/cli/output.h"
#include "pare/support/log.h"
#include "pare/support/progress.h"

namespace pare {

void as_ranks(const Settings& settings, const std::function<void(const Communicator&)>& work) {
  const std::optional<Launch> launch = launch_of_this_process();
  if (!launch || launch->size == 1) {
    work(Communicator());
    return;
  }
  if (settings.threads == 0) {
    at::set_num_threads(std::max(1, at::get_num_threads() / launch->local_size));
  }
  const Communicator ranks(*launch, [](const std::string& why) {
    print_warnings({why});
    std::_Exit(1);
  });
  if (!ranks.is_first()) {
    set_quiet(true);
    show_progress(false);
  }
  ranks.guarded([&] {
    refuse_if(settings.device != "cpu", "{} ranks cannot share their work on --device {} yet: leave it out",
              ranks.size(), settings.device);
    work(ranks);
    ranks.finish();
  });
}

}  // namespace pare
