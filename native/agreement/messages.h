// How a request and a decision look on the control connections.
#ifndef TFCOLLECTIVE_AGREEMENT_MESSAGES_H_
#define TFCOLLECTIVE_AGREEMENT_MESSAGES_H_

#include <string>

#include "agreement/negotiation.h"
#include "base/status.h"

namespace tfc {

std::string Encode(const Request& request);
std::string Encode(const Decision& decision);

// PROTOCOL for bytes that are no such message.
Status Decode(const std::string& bytes, Request* request);
Status Decode(const std::string& bytes, Decision* decision);

}  // namespace tfc

#endif  // TFCOLLECTIVE_AGREEMENT_MESSAGES_H_
