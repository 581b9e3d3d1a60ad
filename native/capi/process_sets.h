// The communicators of this process by the number of their process set; 0 is the set of all ranks.
#ifndef TFCOLLECTIVE_CAPI_PROCESS_SETS_H_
#define TFCOLLECTIVE_CAPI_PROCESS_SETS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "capi/communicator_impl.h"

namespace tfc {

// TensorFlow's kernels have no way to be given a communicator but by number: an address would be part of
// the graph and outlive the communicator.
class ProcessSets {
 public:
  static ProcessSets& Get() {
    static auto* sets = new ProcessSets();  // never destroyed: kernels may still run at exit
    return *sets;
  }
  void Set(int32_t process_set_id, std::shared_ptr<CommunicatorImpl> impl) {
    std::shared_ptr<CommunicatorImpl> previous;  // released outside the lock: it may shut down
    {
      const MutexLock lock(mutex_);
      previous = std::exchange(communicators_[process_set_id], std::move(impl));
    }
  }
  std::shared_ptr<CommunicatorImpl> Find(int32_t process_set_id) {
    const MutexLock lock(mutex_);
    const auto found = communicators_.find(process_set_id);
    return found == communicators_.end() ? nullptr : found->second;
  }

 private:
  Mutex mutex_;
  std::map<int32_t, std::shared_ptr<CommunicatorImpl>> communicators_ TFC_GUARDED_BY(mutex_);
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_CAPI_PROCESS_SETS_H_
