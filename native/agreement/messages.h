// The encoding of requests and decisions on the control connections.
#ifndef TFCOLLECTIVE_AGREEMENT_MESSAGES_H_
#define TFCOLLECTIVE_AGREEMENT_MESSAGES_H_

#include <tuple>

#include "agreement/negotiation.h"
#include "agreement/standstill.h"
#include "control/wire.h"

namespace tfc {

inline bool IsValid(Subject subject) { return subject <= Subject::kSetup; }

inline auto FieldsOf(const Request*) {
  return std::make_tuple(&Request::subject, &Request::name, &Request::on_gpus, &Request::signature, &Request::view,
                         &Request::timeout_s, &Request::takes_zeros, &Request::blob, &Request::objection);
}

// `only_rank` and `ends_all` are for rank 0, which sends it.
inline auto FieldsOf(const Decision*) {
  return std::make_tuple(&Decision::subject, &Decision::name, &Decision::on_gpus, &Decision::channel,
                         &Decision::refusal, &Decision::blobs);
}

inline auto FieldsOf(const Running*) {
  return std::make_tuple(&Running::channel, &Running::sequence, &Running::signature, &Running::title);
}

inline auto FieldsOf(const Standstill*) {
  return std::make_tuple(&Standstill::holds, &Standstill::begun, &Standstill::completed, &Standstill::running);
}

}  // namespace tfc

#endif  // TFCOLLECTIVE_AGREEMENT_MESSAGES_H_
