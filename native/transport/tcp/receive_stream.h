// The incoming half of one connection: finds the receive that each message is for.
//
// A message whose receive is posted is read straight into the spans (but for the few bytes that were
// read together with its header). One whose receive is not posted is kept, up to a limit; beyond it
// the stream stalls: it reads on once that receive is posted or kept messages have been taken.
#ifndef TFCOLLECTIVE_TRANSPORT_TCP_RECEIVE_STREAM_H_
#define TFCOLLECTIVE_TRANSPORT_TCP_RECEIVE_STREAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "transport/frame.h"
#include "transport/tcp/request_table.h"

namespace tfc {

class ReceiveStream {
 public:
  struct Options {
    uint64_t generation = 0;
    size_t max_kept_bytes = 0;
  };
  explicit ReceiveStream(const Options& options) : options_(options) {}

  // The request is done at once if its message is kept. MISMATCH if a message with the tag is another
  // one than expected; INVALID_ARGUMENT if a receive with the tag is posted already. Error messages
  // speak of the peer as "it".
  Status Post(Request* request);

  struct Outcome {
    size_t bytes = 0;      // taken in now: read, or read earlier and left behind a stall
    bool blocked = false;  // there is no more at present
    bool ended = false;    // the peer closed its side
    int error = 0;         // errno of a failed read
    Status status;         // MISMATCH, PROTOCOL, RESOURCE_EXHAUSTED: the stream cannot go on
  };
  // Reads what there is without blocking, at most about 1 MiB, and marks complete receives as done.
  Outcome Pump(int fd);

  bool stalled() const { return stalled_; }
  bool HasPosted() const { return !posted_.empty(); }
  bool HasKept(const Tag& tag) const;  // in full

 private:
  struct Key {
    uint32_t channel;
    uint32_t step;
    uint64_t sequence;
    bool operator==(const Key& other) const {
      return channel == other.channel && step == other.step && sequence == other.sequence;
    }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Kept {
    FrameHeader header;
    std::unique_ptr<std::byte[]> data;
    bool complete = false;
  };

  static Key KeyOf(const Tag& tag) { return Key{tag.channel, tag.step, tag.sequence}; }
  static Key KeyOf(const FrameHeader& header) { return Key{header.channel, header.step, header.sequence}; }

  Status ParseStage();
  Status BeginMessage();
  Status Keep();
  void EndMessage();
  Status TakeKept(Request* request, Kept* kept);
  ssize_t Read(int fd, size_t* room);
  void Account(size_t got);

  Options options_;
  std::unordered_map<Key, Request*, KeyHash> posted_;
  std::unordered_map<Key, Kept, KeyHash> kept_;
  size_t kept_bytes_ = 0;

  // The message under way. Its payload goes to `target_->cursor`, else (kept) to `keep_cursor_`.
  FrameHeader header_;
  bool in_message_ = false;
  bool stalled_ = false;  // header_ is read, but there is no place for its payload
  Request* target_ = nullptr;
  Cursor keep_cursor_;

  // Bytes read beyond what was asked for: the next header and the start of its payload.
  std::array<std::byte, 1024> stage_;
  size_t stage_begin_ = 0;
  size_t stage_end_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TRANSPORT_TCP_RECEIVE_STREAM_H_
