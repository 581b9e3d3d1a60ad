// Refused connections are logged, but unauthenticated peers must not fill the disk: after a few lines at once there
// is one a second, and it says how many there would have been.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REFUSAL_LOG_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REFUSAL_LOG_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/log.h"

namespace tfc {

class RefusalLog {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RefusalLog(Log log) : log_(log) {}

  void Note(const std::string& message, Clock::time_point now = Clock::now()) {
    const double seconds = std::chrono::duration<double>(now - last_).count();
    allowed_ = std::min(kAtOnce, allowed_ + seconds * kPerSecond);
    last_ = now;
    if (allowed_ < 1) {
      ++left_out_;
      return;
    }
    allowed_ -= 1;
    log_.Warning(left_out_ == 0 ? message : message + " (" + std::to_string(left_out_) + " more before)");
    left_out_ = 0;
  }

 private:
  static constexpr double kAtOnce = 20;
  static constexpr double kPerSecond = 1;

  Log log_;
  double allowed_ = kAtOnce;
  int64_t left_out_ = 0;
  Clock::time_point last_ = Clock::now();
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_REFUSAL_LOG_H_
