// Joining as one rank takes part in it: as a rank that runs operations without the joined ones, as a joined rank that
// takes part with zeros, and as rank 0. See joining.h.
#ifndef TFCOLLECTIVE_EXECUTOR_JOIN_PROTOCOL_H_
#define TFCOLLECTIVE_EXECUTOR_JOIN_PROTOCOL_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "communicator/failure.h"
#include "communicator/operation.h"
#include "control/control_connections.h"
#include "executor/joining.h"
#include "executor/messages.h"
#include "executor/scheduler.h"
#include "executor/watch.h"

namespace tfc {

class JoinProtocol {
 public:
  // The functions of the engine that the protocol needs.
  class Host {
   public:
    virtual ~Host() = default;
    // Waits until all that this rank has begun has ended.
    virtual Status WaitUntilNothingRuns() = 0;
    // Runs the task on the channel, after what is there.
    virtual void RunInTurn(uint32_t channel, const Scheduler::Task& task) = 0;
    // Runs an operation as any other one, to its end and within its timeout.
    virtual void RunHere(Operation* operation, const Resources& resources, Channel* channel) = 0;
    // Ends everything here, and everything here and at the peers.
    virtual void Fail(const Status& status) = 0;
    virtual void FailEverywhere(const Status& status) = 0;
  };

  // All must outlive this object.
  JoinProtocol(int size, WatchList* watch, const FirstFailure* failure, Host* host)
      : size_(size), watch_(watch), failure_(failure), host_(host), joined_(size), tracker_(size) {}
  void Attach(ControlConnections* control) { control_ = control; }

  // On the thread that joins.
  Result<int> Join(double timeout_s);

  // For operations.
  const JoinedRanks& joined() const { return joined_; }
  // Lets rank 0 tell the joined ranks that they are missing from this operation.
  Status Call(const Operation& operation, uint32_t channel, uint64_t sequence);
  // Turns an average of the ranks that contributed before it began into one of those that did.
  void Correct(const Operation& operation, uint32_t channel, uint64_t sequence) const;

  // On the monitor thread.
  // PROTOCOL if the message is none.
  Status OnMessage(int from, Message type, const std::string& payload);
  // At rank 0: `rank` joins. True if all have now.
  bool Arrive(int rank, const Progress& progress);
  bool has_joined(int rank) const {
    monitor_.AssertHeld();
    return tracker_.joined(rank);
  }
  // Tells all ranks of the joins that matter to them.
  void Announce();
  std::optional<Deadline::Clock::time_point> due() const {
    monitor_.AssertHeld();
    return tracker_.due();
  }
  // PEER_LOST if this rank waits in vain, because a rank has left.
  Status LeftWithoutJoining() const;

 private:
  Result<int> ContributeUntilAllJoin(double timeout_s);
  // The contributions that rank 0 has asked this rank for, and, when there is nothing left, who has joined last.
  bool HasWork() const;
  std::optional<ZeroContribution> NextContribution();
  int last_joined() const;
  void Run(const ZeroContribution& contribution, const Resources& resources, Channel* channel);
  Status OnJoined(const std::string& payload);
  void Order(const std::vector<JoinTracker::Order>& orders);
  Status NotAllJoined(double timeout_s) const TFC_REQUIRES(monitor_);

  const int size_;
  WatchList* const watch_;
  const FirstFailure* const failure_;
  Host* const host_;
  ControlConnections* control_ = nullptr;
  JoinedRanks joined_;
  ThreadRole monitor_;
  JoinTracker tracker_ TFC_GUARDED_BY(monitor_);  // rank 0

  mutable Mutex mutex_;
  bool joining_ TFC_GUARDED_BY(mutex_) = false;                        // this rank has joined
  std::deque<ZeroContribution> contributions_ TFC_GUARDED_BY(mutex_);  // what it has to take part in
  std::optional<int> all_joined_ TFC_GUARDED_BY(mutex_);               // the rank that joined last
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_JOIN_PROTOCOL_H_
