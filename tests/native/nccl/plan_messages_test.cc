// What a bucket plan on GPUs costs in control messages: counted at all ranks, with all of the library below the C
// interface.
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/nccl/device_communicator.h"
#include "executor/messages.h"
#include "gpu_world.h"
#include "testing/tcp_world.h"

namespace tfc::testing {
namespace {

constexpr size_t kBuckets = 2;
constexpr size_t kCount = 16;
constexpr double kSeconds = 60;

using Counts = std::map<Message, int>;

// One rank of two, with all that it is made of. Hands on what it receives, and counts it.
class Rank final : public ControlHandler {
 public:
  Rank(int rank, SocketAddress root, TcpListener listener) : engine_(OptionsOf(rank)) {
    ControlOptions options;
    options.self = Identity{rank, 2, 7};
    options.root = std::move(root);
    options.key = TcpWorld::Key();
    control_ = TakeOrDie(ControlConnections::Create(options, std::move(listener), this));
    engine_.Attach(control_.get());
    devices_ = std::make_unique<DeviceCommunicator>(&engine_, DeviceCommunicatorOptions());
    DeviceOptions libraries;
    libraries.cuda_library = kCudaStandin;
    libraries.nccl_library = kNcclStandin;
    EXPECT_TRUE(devices_->Configure(libraries).ok());
    for (size_t bucket = 0; bucket < kBuckets; ++bucket)
      buffers_.push_back(std::make_unique<OnGpu<float>>(rank, std::vector<float>(kCount, 1.0f)));
  }

  Status Connect() { return control_->Start(Deadline::After(kSeconds)); }
  void Leave() {
    EXPECT_TRUE(devices_->Shutdown(kSeconds));
    engine_.Shutdown(kSeconds);
  }

  // Gives the ticket.
  Result<uint64_t> Start(size_t bucket, const Done& launched) {
    PlanSpec spec;
    spec.name = spec.signature = "plan";
    spec.num_buckets = kBuckets;
    spec.op = Op::kSum;
    Operation operation;
    auto* const memory = reinterpret_cast<std::byte*>(buffers_[bucket]->data());
    operation.input = {{memory, kCount * sizeof(float)}};
    operation.output = {{memory, kCount * sizeof(float)}};
    DeviceCall call;
    call.by_name = true;
    call.launched = launched;
    call.plan = TakeOrDie(engine_.AcquirePlan(spec));
    call.bucket = bucket;
    return devices_->Submit(std::move(operation), call);
  }
  // Starts all buckets of a step; the tickets.
  std::vector<uint64_t> StartStep() {
    std::vector<uint64_t> tickets;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket)
      tickets.push_back(
          TakeOrDie(Start(bucket, [](const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); })));
    return tickets;
  }
  Status Wait(uint64_t ticket) { return devices_->Wait(ticket, kSeconds); }
  void Finish(const std::vector<uint64_t>& tickets) {
    for (const uint64_t ticket : tickets) {
      const Status status = devices_->Wait(ticket, kSeconds);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  float Value() const { return buffers_.back()->Get().back(); }
  void Forget() { engine_.ForgetPlan("plan"); }

  Counts counts() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }
  void WaitFor(Message type) {
    std::unique_lock<std::mutex> lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return counts_.count(type) != 0; }));
  }
  // All messages that were sent to this rank before this call have been counted.
  void Settle() {
    std::promise<void> passed;
    control_->Post([&passed] { passed.set_value(); });
    ASSERT_EQ(passed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }

  void OnMessage(int from, uint8_t type, const std::string& payload) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++counts_[static_cast<Message>(type)];
      changed_.notify_all();
    }
    engine_.OnMessage(from, type, payload);
  }
  void OnClosed(int rank, const Status& why) override { engine_.OnClosed(rank, why); }
  void OnDataConnection(int peer, UniqueFd fd) override { engine_.OnDataConnection(peer, std::move(fd)); }
  std::optional<Deadline::Clock::time_point> OnTick(Deadline::Clock::time_point now) override {
    return engine_.OnTick(now);
  }

 private:
  static EngineOptions OptionsOf(int rank) {
    EngineOptions options;
    options.topology = MakeTopology(rank, {"node", "node"});
    return options;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Counts counts_;
  std::vector<std::unique_ptr<OnGpu<float>>> buffers_;
  std::unique_ptr<ControlConnections> control_;
  Engine engine_;
  std::unique_ptr<DeviceCommunicator> devices_;
};

class GpuPlanMessagesTest : public GpuTest {};

// Both ranks, connected.
struct TwoRanks {
  TwoRanks() {
    std::thread connecting([this] { EXPECT_TRUE(root->Connect().ok()); });
    EXPECT_TRUE(other->Connect().ok());
    connecting.join();
  }

  TcpListener at_root = TakeOrDie(TcpListener::Create("127.0.0.1"));
  const SocketAddress address = at_root.address();
  const std::unique_ptr<Rank> root = std::make_unique<Rank>(0, address, std::move(at_root));
  const std::unique_ptr<Rank> other = std::make_unique<Rank>(1, address, TakeOrDie(TcpListener::Create("127.0.0.1")));
};

TEST_F(GpuPlanMessagesTest, OnlyTheFirstStepCostsMessages) {
  const TwoRanks ranks;
  Rank& root = *ranks.root;
  Rank& other = *ranks.other;
  const auto step = [&] {
    const std::vector<uint64_t> at_root_now = root.StartStep(), at_other_now = other.StartStep();
    root.Finish(at_root_now);
    other.Finish(at_other_now);
  };
  const auto settle = [&] {
    other.Settle();
    root.Settle();
  };

  step();
  EXPECT_EQ(root.Value(), 2.0f);
  // Each rank asks for the plan and for the set-up of its queue, and hears once of each.
  EXPECT_EQ(root.counts(), (Counts{{Message::kRequest, 4}, {Message::kDecision, 2}}));
  EXPECT_EQ(other.counts(), (Counts{{Message::kDecision, 2}}));

  for (int again = 0; again < 100; ++again) step();
  settle();
  EXPECT_EQ(root.counts(), (Counts{{Message::kRequest, 4}, {Message::kDecision, 2}}));
  EXPECT_EQ(other.counts(), (Counts{{Message::kDecision, 2}}));

  // A plan that is begun anew is agreed on anew; its queue is there.
  root.Forget();
  other.Forget();
  root.WaitFor(Message::kFreed);
  other.WaitFor(Message::kFreed);
  step();
  EXPECT_EQ(root.counts(),
            (Counts{{Message::kRequest, 6}, {Message::kDecision, 3}, {Message::kForget, 2}, {Message::kFreed, 1}}));
  std::thread leaving([&] { other.Leave(); });
  root.Leave();
  leaving.join();
}

// The ranks have agreed on the plan. The one that leaves then has not come to the set-up of its queue, and never will.
TEST_F(GpuPlanMessagesTest, ARankThatLeavesBeforeThePlansFirstBucketIsNotWaitedFor) {
  const TwoRanks ranks;
  Rank& root = *ranks.root;
  Rank& other = *ranks.other;
  const Done any = [](const Status&) {};
  TakeOrDie(root.Start(1, any));  // each waits for its turn, behind bucket 0
  TakeOrDie(other.Start(1, any));
  root.WaitFor(Message::kDecision);
  other.WaitFor(Message::kDecision);
  std::thread leaving([&] { other.Leave(); });
  root.WaitFor(Message::kLeft);
  root.Settle();
  const auto ticket = root.Start(0, any);
  const Status status = ticket.ok() ? root.Wait(ticket.value()) : ticket.status();
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
  EXPECT_EQ(status.peer(), 1);
  root.Leave();
  leaving.join();
}

// A decision that lacks what the ranks have said must not be read.
TEST_F(GpuPlanMessagesTest, ASetUpWithoutWhatEachRankSaysIsMalformed) {
  EngineOptions options;
  options.topology = MakeTopology(0, {"node"});
  Engine engine(options);
  DeviceCommunicator devices(&engine, DeviceCommunicatorOptions());
  Decision decision;
  decision.subject = Subject::kSetup;
  decision.name = "the set-up of direct calls";
  decision.on_gpus = true;
  devices.Decide(decision);
  const OnGpu<float> buffer(0, std::vector<float>(kCount, 1.0f));
  Operation operation;
  operation.collective = Collective::kAllReduce;
  auto* const memory = reinterpret_cast<std::byte*>(buffer.data());
  operation.input = {{memory, kCount * sizeof(float)}};
  operation.output = {{memory, kCount * sizeof(float)}};
  const auto ticket = devices.Run(std::move(operation), DeviceCall());
  EXPECT_EQ(ticket.status().code(), Code::kProtocol) << ticket.status().message();
}

}  // namespace
}  // namespace tfc::testing
