// The incoming half of one connection: finds the receive that each message is for.
//
// A message whose receive is posted is read straight into the spans (but for the few bytes that were
// read together with its header). One whose receive is not posted is kept: the peer sends no more of
// those than there is room for (see room.h), so the connection can always be read.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_RECEIVE_STREAM_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_RECEIVE_STREAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "collectives/transport/frame.h"
#include "collectives/transport/tcp/request_key.h"
#include "collectives/transport/tcp/request_table.h"
#include "collectives/transport/tcp/room.h"
#include "collectives/transport/tcp/send_stream.h"

namespace tfc {

class ReceiveStream {
 public:
  // `room` and `out`, which takes the replies to the peer's frames, must outlive the stream.
  ReceiveStream(uint64_t generation, Room* room, SendStream* out) : generation_(generation), room_(room), out_(out) {}

  // The request is done at once if its message is kept. MISMATCH if a message with the tag is another
  // one than expected; INVALID_ARGUMENT if a receive with the tag is posted already. Error messages
  // speak of the peer as "it".
  Status Post(Request* request);

  struct Outcome {
    size_t bytes = 0;      // read now
    bool blocked = false;  // there is no more at present
    bool ended = false;    // the peer closed its side
    int error = 0;         // errno of a failed read
    Status status;         // MISMATCH, PROTOCOL, RESOURCE_EXHAUSTED: the stream cannot go on
  };
  // Reads what there is without blocking, at most about 1 MiB, and marks complete receives as done.
  Outcome Pump(int fd);

  bool HasPosted() const { return !posted_.empty(); }
  bool HasKept(const Tag& tag) const;  // in full

 private:
  struct Kept {
    FrameHeader header;
    std::unique_ptr<std::byte[]> data;
    bool complete = false;
  };

  Status ParseStage();
  Status OnHeader();
  Status OnAnnouncement();
  Status BeginEager();
  Status BeginGranted();
  Status Keep();
  void BeginMessage(Request* target);
  void EndMessage();
  Status TakeKept(Request* request, Kept* kept);
  ssize_t Read(int fd, size_t* room);
  void Account(size_t got);

  template <typename Value>
  using ByKey = std::unordered_map<RequestKey, Value, RequestKeyHash>;

  const uint64_t generation_;
  Room* const room_;
  SendStream* const out_;
  ByKey<Request*> posted_;
  ByKey<Kept> kept_;
  ByKey<FrameHeader> announced_;  // that have no posted receive

  // The message under way. Its payload goes to `target_->cursor`, else (kept) to `keep_cursor_`.
  FrameHeader header_;
  bool in_message_ = false;
  Request* target_ = nullptr;
  Cursor keep_cursor_;

  // Bytes read beyond what was asked for: the next header and the start of its payload.
  std::array<std::byte, 1024> stage_;
  size_t stage_begin_ = 0;
  size_t stage_end_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_RECEIVE_STREAM_H_
