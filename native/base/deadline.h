// A point in monotonic time until which a wait may last.
#ifndef TFCOLLECTIVE_BASE_DEADLINE_H_
#define TFCOLLECTIVE_BASE_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace tfc {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // At most about 30 years, beyond which the clock overflows; as many for what is no number: a peer may send it.
  static Clock::duration Seconds(double seconds) {
    const double counted = seconds < 1e9 ? std::max(seconds, -1e9) : 1e9;
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(counted));
  }
  static Deadline After(double seconds) { return After(seconds, Clock::now()); }
  // For callers that have looked at the clock already.
  static Deadline After(double seconds, Clock::time_point now) { return Deadline(now + Seconds(seconds)); }
  static Deadline Never() { return Deadline(Clock::time_point::max()); }
  static Deadline At(Clock::time_point when) { return Deadline(when); }

  bool Passed() const { return Clock::now() >= when_; }
  Clock::time_point when() const { return when_; }
  // Seconds left, never negative.
  double Left() const { return std::max(0.0, std::chrono::duration<double>(when_ - Clock::now()).count()); }
  // For poll(2): milliseconds left rounded up, at most `cap`.
  int LeftMillis(int cap) const {
    const double millis = Left() * 1e3 + 0.999;
    return millis >= cap ? cap : static_cast<int>(millis);
  }
  // For calls that take a time on CLOCK_MONOTONIC, which this clock is on Linux.
  timespec Monotonic() const {
    const auto since_boot = std::max(Clock::duration::zero(), when_.time_since_epoch());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
    timespec time = {};
    time.tv_sec = static_cast<time_t>(seconds.count());
    time.tv_nsec =
        static_cast<long>(std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot - seconds).count());
    return time;
  }
  Deadline Earlier(Deadline other) const { return Deadline(std::min(when_, other.when_)); }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_DEADLINE_H_
