// What stands behind the handles that several files of the C interface know.
#ifndef TFCOLLECTIVE_CAPI_HANDLES_H_
#define TFCOLLECTIVE_CAPI_HANDLES_H_

#include <memory>

#include "capi/communicator_impl.h"

struct tfc_communicator {
  std::shared_ptr<tfc::CommunicatorImpl> impl;
};

#endif  // TFCOLLECTIVE_CAPI_HANDLES_H_
