// A log that remembers, for tests.
#ifndef TFCOLLECTIVE_TESTING_LOG_RECORDER_H_
#define TFCOLLECTIVE_TESTING_LOG_RECORDER_H_

#include <algorithm>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"

namespace tfc {

class LogRecorder {
 public:
  // Valid as long as the recorder.
  Log log() {
    return Log([](void* self, int32_t, const char* message) { static_cast<LogRecorder*>(self)->Add(message); }, this);
  }
  std::vector<std::string> lines() const {
    const MutexLock lock(mutex_);
    return lines_;
  }
  bool Contains(const std::string& part) const {
    const std::vector<std::string> all = lines();
    return std::any_of(all.begin(), all.end(),
                       [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }

 private:
  void Add(const char* message) {
    const MutexLock lock(mutex_);
    lines_.emplace_back(message);
  }

  mutable Mutex mutex_;
  std::vector<std::string> lines_ TFC_GUARDED_BY(mutex_);
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTING_LOG_RECORDER_H_
