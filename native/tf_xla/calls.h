// The collectives that a program compiled by XLA calls, on the host's memory.
#ifndef TFCOLLECTIVE_TF_XLA_CALLS_H_
#define TFCOLLECTIVE_TF_XLA_CALLS_H_

#include "tf_xla/ffi_api.h"
#include "tfcollective/tfcollective.h"

namespace tfc_tf::xla {

// Runs the call of a frame, whose attribute `kind` names it, and returns when it is done. Its first argument and its
// first result only say what it comes after: XLA knows no other order of calls. A call finds its communicator when it
// runs, and a program has nothing in it of the number of ranks, but for the shapes of all-gather and reduce-scatter.
tfc_code RunCall(const CallFrame& frame, tfc_error* error);

}  // namespace tfc_tf::xla

#endif  // TFCOLLECTIVE_TF_XLA_CALLS_H_
