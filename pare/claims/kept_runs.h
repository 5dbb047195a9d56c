#pragma once
// runs.json: what was trained for a claim, in whatever plan it stood.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "pare/claims/trained.h"

namespace pare {

// One run, as it is kept, and back. InputError where it contradicts itself.
nlohmann::ordered_json to_json(const TrainedRun& run, const PlannedRun& planned);
TrainedRun run_from_json(const PlannedRun& planned, const nlohmann::ordered_json& json);

class KeptRuns {
 public:
  // What the folder has of them. InputError where that is of another claim or scale, or is nothing of the kind.
  KeptRuns(const std::filesystem::path& folder, std::string claim, ClaimScale scale);

  // Nothing where it was trained under another configuration, or from another start: that was another run. InputError
  // where it contradicts itself.
  std::optional<TrainedRun> find(const PlannedRun& planned) const;
  bool has(const std::string& name) const { return runs_.contains(name); }  // whatever it was

  // The first result stands. One that was trained again, since others start from it, says what a repetition differs by.
  void keep(const TrainedRun& run, const PlannedRun& planned);
  void begin() const;  // before the first run has ended: a folder with such a file is continued

 private:
  void store() const;

  std::filesystem::path path_;
  std::string claim_, scale_;
  std::map<std::string, nlohmann::ordered_json> runs_;  // by name
};

// Runs that are configured to see the same data have to have seen it.
class SeenData {
 public:
  void add(const PlannedRun& planned, const TrainedRun& run);  // InputError where one before saw other data

 private:
  struct First {
    std::string run, data;
  };
  std::map<std::string, First> firsts_;  // by what decides on the data and its order
};

}  // namespace pare
