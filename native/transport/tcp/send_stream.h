// The outgoing half of one connection: queued sends, written in order.
#ifndef TFCOLLECTIVE_TRANSPORT_TCP_SEND_STREAM_H_
#define TFCOLLECTIVE_TRANSPORT_TCP_SEND_STREAM_H_

#include <cstddef>
#include <deque>

#include "transport/tcp/request_table.h"

namespace tfc {

class SendStream {
 public:
  // The request must stay until it is done; its header and cursor are set.
  void Queue(Request* request) { queue_.push_back(request); }
  bool empty() const { return queue_.empty(); }

  struct Outcome {
    size_t bytes = 0;      // written now
    bool blocked = false;  // the kernel takes no more at present
    int error = 0;         // errno of a failed write
  };
  // Writes what the kernel takes without blocking, several messages in one call where possible, and
  // marks what is fully written as done.
  Outcome Pump(int fd);

 private:
  size_t Collect(struct iovec* pieces, size_t capacity) const;
  void Account(size_t sent);

  std::deque<Request*> queue_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TRANSPORT_TCP_SEND_STREAM_H_
