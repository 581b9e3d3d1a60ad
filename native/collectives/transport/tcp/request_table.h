// The posted sends and receives of a transport, by ticket.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REQUEST_TABLE_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REQUEST_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "collectives/transport/tcp/cursor.h"
#include "collectives/transport/transport.h"

namespace tfc {

struct Request {
  uint32_t uses = 0;  // of this slot; makes old tickets recognisable
  bool live = false;  // posted and not yet waited for
  bool done = false;
  bool is_send = false;
  int peer = 0;
  Tag tag;
  Cursor cursor;  // payload
};

class RequestTable {
 public:
  // A fresh request; stays where it is in memory until Release.
  Request* Acquire(Ticket* ticket) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    Request& request = slots_[index];
    ++request.uses;
    request.live = true;
    request.done = false;
    *ticket = (Ticket{request.uses} << 32) | (index + 1u);
    return &request;
  }

  // Null if the ticket was never given out or has been released.
  Request* Find(Ticket ticket) {
    const size_t index = static_cast<size_t>(ticket & 0xffffffffu) - 1;  // ticket 0 wraps to out of range
    if (index >= slots_.size()) return nullptr;
    Request& request = slots_[index];
    return request.live && request.uses == static_cast<uint32_t>(ticket >> 32) ? &request : nullptr;
  }

  void Release(Ticket ticket) {
    Request* request = Find(ticket);
    if (request == nullptr) return;
    request->live = false;
    request->cursor.Clear();
    free_.push_back(static_cast<uint32_t>((ticket & 0xffffffffu) - 1));
  }

 private:
  std::deque<Request> slots_;  // a deque: growing moves nothing
  std::vector<uint32_t> free_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REQUEST_TABLE_H_
