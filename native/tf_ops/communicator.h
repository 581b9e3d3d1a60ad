// The communicator that an op runs on.
#ifndef TFCOLLECTIVE_TF_OPS_COMMUNICATOR_H_
#define TFCOLLECTIVE_TF_OPS_COMMUNICATOR_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "tf_ops/tf_status.h"
#include "tfcollective/tfcollective.h"

namespace tfc_ops {

struct CommunicatorDeleter {
  void operator()(tfc_communicator* communicator) const { tfc_communicator_release(communicator); }
};
using Communicator = std::unique_ptr<tfc_communicator, CommunicatorDeleter>;

// Looked up whenever an op runs, so that a graph that was traced once finds the communicator that is there now.
inline OpError AcquireCommunicator(int32_t process_set_id, Communicator* communicator) {
  tfc_error error = EmptyError();
  tfc_communicator* raw = nullptr;
  if (tfc_process_set_acquire(process_set_id, &raw, &error) != TFC_OK) return OpError::From(error);
  communicator->reset(raw);
  return OpError();
}

inline OpError GetInfo(const Communicator& communicator, tfc_communicator_info* info) {
  tfc_error error = EmptyError();
  *info = tfc_communicator_info();
  info->struct_size = sizeof(*info);
  if (tfc_communicator_get_info(communicator.get(), info, &error) != TFC_OK) return OpError::From(error);
  return OpError();
}

// On the clock of the timeline.
inline int64_t NowNanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Shows in the timeline, if one is recorded, how long TensorFlow had nothing to do but wait.
inline void RecordWait(int32_t process_set_id, const std::string& name, int64_t began_ns) {
  Communicator communicator;
  if (!AcquireCommunicator(process_set_id, &communicator).ok()) return;
  tfc_timeline_event event{};
  event.struct_size = sizeof(event);
  event.name = name.c_str();
  event.began_ns = began_ns;
  event.ended_ns = NowNanoseconds();
  tfc_timeline_add(communicator.get(), &event, nullptr);
}

}  // namespace tfc_ops

#endif  // TFCOLLECTIVE_TF_OPS_COMMUNICATOR_H_
