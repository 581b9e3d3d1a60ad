// A world whose ranks are threads of this process, through the C interface: for tests.
#ifndef TFCOLLECTIVE_TESTING_WORLD_H_
#define TFCOLLECTIVE_TESTING_WORLD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tfcollective/tfcollective.h"

namespace tfc::testing {

struct WorldOptions {
  int size = 2;
  std::vector<std::string> nodes;  // node id of each rank; empty: all on one
  int32_t transport = TFC_TRANSPORT_AUTO;
  double op_timeout_s = 20;
  double connect_timeout_s = 20;
  double stall_warning_s = 0;
  int32_t spin_us = -1;
  std::vector<int32_t> skip_link_probe;          // of each rank; empty: none does
  std::function<void(int rank)> before_connect;  // on the thread of each rank
  tfc_log_fn log = nullptr;
  void* log_user = nullptr;
  // Called with the addresses of the ranks' listeners before any rank connects.
  std::function<void(const std::vector<std::string>&)> on_listening;
};

// Connects the world, runs `body` once a rank on a thread of its own when all ranks have tried to, shuts down and
// releases.
// Returns the error code of each rank's connection attempt.
std::vector<int> RunWorld(const WorldOptions& options, const std::function<void(int rank, tfc_communicator*)>& body);

// A request with the fields that every one needs.
tfc_request MakeRequest(int32_t collective, int32_t dtype, int32_t op, const char* name = "");

struct CallResult {
  int code = TFC_OK;
  int peer = -1;
  std::string message;
};

// tfc_run and tfc_submit-and-wait.
CallResult RunNow(tfc_communicator* communicator, const tfc_request& request);
CallResult SubmitAndWait(tfc_communicator* communicator, const tfc_request& request);

// The all-reduce of `values` (replaced by the result).
CallResult AllReduce(tfc_communicator* communicator, std::vector<float>* values, int32_t op = TFC_SUM,
                     const char* name = "");

}  // namespace tfc::testing

#endif  // TFCOLLECTIVE_TESTING_WORLD_H_
