#include "collectives/algorithms/requests.h"
#include "collectives/algorithms/transport_algorithms.h"

namespace tfc {

Status DisseminationBarrier(const TransportContext& context) {
  const int size = context.members.size(), index = context.members.index;
  uint64_t rounds = 0;
  for (int distance = 1; distance < size; distance *= 2) ++rounds;
  Requests requests(context, "barrier", rounds);
  uint32_t round = 0;
  for (int distance = 1; distance < size; distance *= 2, ++round) {
    Ticket sent = 0, received = 0;
    TFC_RETURN_IF_ERROR(requests.Receive((index - distance + size) % size, round, {}, &received));
    TFC_RETURN_IF_ERROR(requests.Send((index + distance) % size, round, {}, &sent));
    TFC_RETURN_IF_ERROR(requests.Wait(received, round));
    TFC_RETURN_IF_ERROR(requests.Wait(sent, round));
  }
  return Status::Ok();
}

}  // namespace tfc
