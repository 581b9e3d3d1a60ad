// What stands behind the handles that several files of the C interface know.
#ifndef TFCOLLECTIVE_CAPI_HANDLES_H_
#define TFCOLLECTIVE_CAPI_HANDLES_H_

#include <memory>

#include "capi/session.h"

struct tfc_communicator {
  std::shared_ptr<tfc::Session> session;
};

#endif  // TFCOLLECTIVE_CAPI_HANDLES_H_
