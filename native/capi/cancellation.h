// Lets one thread cancel a connect that another thread is in.
#ifndef TFCOLLECTIVE_CAPI_CANCELLATION_H_
#define TFCOLLECTIVE_CAPI_CANCELLATION_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"

namespace tfc {

// Thread-safe. Requested once, it stays so.
class Cancellation {
 public:
  using End = std::function<void(const std::string& cause)>;

  // Never waits longer than the `end` of an open scope takes. The first cause counts.
  void Request(const std::string& cause) {
    const MutexLock lock(mutex_);
    if (cause_) return;
    cause_ = cause;
    if (end_) end_(cause);
  }

  // While it is open, a request calls `end`, at most once, on its own thread; a request that came before calls it in
  // the constructor. One scope at a time.
  class Scope {
   public:
    // `cancellation` may be nullptr, and else must outlive the scope.
    Scope(Cancellation* cancellation, End end) : cancellation_(cancellation) {
      if (cancellation_ != nullptr) cancellation_->Open(std::move(end));
    }
    ~Scope() { Close(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // Ends the scope; true if a request has come. `end` does not run, and is not called, after it.
    bool Close() {
      Cancellation* const cancellation = std::exchange(cancellation_, nullptr);
      return cancellation != nullptr && cancellation->Leave();
    }

   private:
    Cancellation* cancellation_;
  };

 private:
  void Open(End end) {
    const MutexLock lock(mutex_);
    end_ = std::move(end);
    if (cause_) end_(*cause_);
  }
  bool Leave() {
    const MutexLock lock(mutex_);
    end_ = nullptr;
    return cause_.has_value();
  }

  Mutex mutex_;
  std::optional<std::string> cause_ TFC_GUARDED_BY(mutex_);
  End end_ TFC_GUARDED_BY(mutex_);
};

}  // namespace tfc

struct tfc_cancellation {
  tfc::Cancellation cancellation;
};

#endif  // TFCOLLECTIVE_CAPI_CANCELLATION_H_
