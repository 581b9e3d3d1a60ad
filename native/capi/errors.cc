#include "capi/errors.h"

#include <algorithm>
#include <cstring>

namespace tfc {

void FillError(const Status& status, tfc_error* error) {
  if (error == nullptr || error->struct_size < sizeof(tfc_error)) return;
  error->code = static_cast<int32_t>(status.code());
  error->peer = status.peer();
  error->sys_errno = status.sys_errno();
  if (status.ok()) {
    error->message[0] = '\0';
    return;
  }
  const size_t size = std::min(status.message().size(), sizeof(error->message) - 1);
  std::memcpy(error->message, status.message().data(), size);
  error->message[size] = '\0';
}

tfc_code Return(const Status& status, tfc_error* error) {
  FillError(status, error);
  return static_cast<tfc_code>(status.code());
}

}  // namespace tfc
