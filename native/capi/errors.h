// From Status to what the C interface gives back.
#ifndef TFCOLLECTIVE_CAPI_ERRORS_H_
#define TFCOLLECTIVE_CAPI_ERRORS_H_

#include <exception>
#include <new>

#include "base/status.h"
#include "tfcollective/tfcollective.h"

namespace tfc {

// Writes `status` to `error`; nothing where the caller has no place for it.
void FillError(const Status& status, tfc_error* error);

// The code of `status`, and the rest of it in `error`.
tfc_code Return(const Status& status, tfc_error* error);

// No exception crosses the C border.
template <typename Body>
tfc_code Guarded(tfc_error* error, Body body) {
  try {
    return Return(body(), error);
  } catch (const std::bad_alloc&) {
    return Return(Status(Code::kResourceExhausted, "out of memory"), error);
  } catch (const std::exception& exception) {
    return Return(Status(Code::kInternal, exception.what()), error);
  }
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_CAPI_ERRORS_H_
