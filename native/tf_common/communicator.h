// The communicator that an op runs on.
#ifndef TFCOLLECTIVE_TF_COMMON_COMMUNICATOR_H_
#define TFCOLLECTIVE_TF_COMMON_COMMUNICATOR_H_

#include <cstdint>
#include <memory>

#include "tfcollective/tfcollective.h"

namespace tfc_tf {

struct CommunicatorDeleter {
  void operator()(tfc_communicator* communicator) const { tfc_communicator_release(communicator); }
};
using Communicator = std::unique_ptr<tfc_communicator, CommunicatorDeleter>;

// Ready to be filled in. Most of it is the message, which need not be cleared.
inline tfc_error EmptyError() {
  tfc_error error;
  error.struct_size = sizeof(error);
  error.code = TFC_OK;
  error.peer = -1;
  error.sys_errno = 0;
  error.reserved = 0;
  error.message[0] = '\0';
  return error;
}

// Empty, and the error is filled in, where the process set has none. Looked up whenever an op runs, so that a graph
// that was traced once finds the communicator that is there now.
inline Communicator AcquireCommunicator(int32_t process_set_id, tfc_error* error) {
  tfc_communicator* communicator = nullptr;
  tfc_process_set_acquire(process_set_id, &communicator, error);
  return Communicator(communicator);
}

// False, and the error is filled in, where that fails.
inline bool GetInfo(const Communicator& communicator, tfc_communicator_info* info, tfc_error* error) {
  *info = tfc_communicator_info();
  info->struct_size = sizeof(*info);
  return tfc_communicator_get_info(communicator.get(), info, error) == TFC_OK;
}

// The rows of a reduce-scatter that this rank gets.
inline int64_t RowsOf(const tfc_communicator_info& info, int64_t rows) {
  return rows / info.size + (info.rank < rows % info.size ? 1 : 0);
}

}  // namespace tfc_tf

#endif  // TFCOLLECTIVE_TF_COMMON_COMMUNICATOR_H_
