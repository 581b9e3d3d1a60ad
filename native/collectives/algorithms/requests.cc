#include "collectives/algorithms/requests.h"

namespace tfc {

Status Requests::Send(int peer, uint32_t step, const ConstSpans& spans, Ticket* ticket) {
  const int rank = context_.members.ranks[static_cast<size_t>(peer)];
  const Result<Ticket> posted = context_.transport.PostSend(rank, context_.TagOf(step), spans);
  if (!posted.ok()) return Explain(posted.status(), step);
  *ticket = posted.value();
  return Status::Ok();
}

Status Requests::Receive(int peer, uint32_t step, const MutableSpans& spans, Ticket* ticket) {
  const int rank = context_.members.ranks[static_cast<size_t>(peer)];
  const Result<Ticket> posted = context_.transport.PostReceive(rank, context_.TagOf(step), spans);
  if (!posted.ok()) return Explain(posted.status(), step);
  *ticket = posted.value();
  return Status::Ok();
}

Status Requests::Wait(Ticket ticket, uint64_t step) {
  if (ticket == 0) return Status::Ok();
  const Status status = context_.transport.Wait(ticket, context_.deadline);
  return status.ok() ? status : Explain(status, step);
}

Status Requests::Explain(const Status& status, uint64_t step) const {
  return status.WithContext(std::string(phase_) + ", step " + std::to_string(step + 1) + " of " +
                            std::to_string(steps_));
}

Status TicketQueue::WaitBelow(uint64_t end) {
  while (done_ < end && !tickets_.empty()) {
    TFC_RETURN_IF_ERROR(requests_.Wait(tickets_.front(), done_));
    tickets_.pop_front();
    ++done_;
  }
  return Status::Ok();
}

}  // namespace tfc
