#include "pare/ranks/launch.h"

#include <doctest/doctest.h>

#include <map>

#include "pare/support/error.h"

namespace {

using namespace pare;

std::optional<Launch> launched(const std::map<std::string, std::string>& variables) {
  return launch_of([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST_CASE("a process that nobody launched is alone") {
  CHECK_FALSE(launched({}));
  // A batch script of Slurm, outside of srun, is one process of a job of many.
  CHECK_FALSE(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}}));
}

TEST_CASE("torchrun") {
  const auto launch = launched({{"RANK", "5"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"MASTER_ADDR", "a"},
                                {"MASTER_PORT", "1234"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  REQUIRE(launch);
  CHECK(launch->launcher == "torchrun");
  CHECK(launch->rank == 5);
  CHECK(launch->size == 8);
  CHECK(launch->local_rank == 1);
  CHECK(launch->local_size == 4);
  CHECK(launch->address == "a");
  CHECK(launch->port == 1234);
  CHECK(launch->store_is_there);
  CHECK_FALSE(launch->one_host());
}

TEST_CASE("mpirun on one host needs nothing else, and jobs have ports of their own") {
  std::map<std::string, std::string> variables = {{"OMPI_COMM_WORLD_RANK", "3"},
                                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                  {"PMIX_NAMESPACE", "77"}};
  const auto launch = launched(variables);
  REQUIRE(launch);
  CHECK(launch->rank == 3);
  CHECK(launch->address == "127.0.0.1");
  CHECK(launch->one_host());
  CHECK_FALSE(launch->store_is_there);
  CHECK(launch->port >= 20'000);
  CHECK(launch->port < 32'000);
  variables["PMIX_NAMESPACE"] = "78";
  CHECK(launched(variables)->port != launch->port);
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  CHECK_THROWS_WITH_AS(launched(variables), doctest::Contains("set MASTER_ADDR"), InputError);
  variables["MASTER_ADDR"] = "node1";
  CHECK(launched(variables)->address == "node1");
}

TEST_CASE("srun: rank 0 is on the first host of the step") {
  for (const auto& [list, first] : std::map<std::string, std::string>{
           {"node[03-07,9],other", "node03"}, {"a,b", "a"}, {"n[1,4]-ib,x", "n1-ib"}, {"alone", "alone"}}) {
    const auto launch = launched({{"SLURM_PROCID", "2"},
                                  {"SLURM_STEP_NUM_TASKS", "4"},
                                  {"SLURM_LOCALID", "0"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                  {"SLURM_STEP_NODELIST", list},
                                  {"SLURM_JOB_ID", "12"},
                                  {"SLURM_STEP_ID", "0"}});
    REQUIRE(launch);
    CHECK(launch->address == first);
    CHECK(launch->local_size == 2);
  }
}

TEST_CASE("half an environment, and numbers that are none, are refused by name") {
  CHECK_THROWS_WITH_AS(launched({{"WORLD_SIZE", "2"}}), doctest::Contains("no RANK"), InputError);
  CHECK_THROWS_WITH_AS(launched({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), doctest::Contains("from 0 to 1"), InputError);
  CHECK_THROWS_WITH_AS(launched({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), doctest::Contains("RANK='x'"), InputError);
  CHECK_THROWS_WITH_AS(launched({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
                       doctest::Contains("MASTER_PORT"), InputError);
}

}  // namespace
